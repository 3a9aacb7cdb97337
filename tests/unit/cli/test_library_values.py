"""``deepspeed.<path>=`` and ``training_args.<field>=``: what is refused, with the word here, and what passes."""

import re

import pytest

from memlab.cli.compose import compose_config
from memlab.cli.library_values import KEYS, check_library_values, library_word
from memlab.core.config import LIBRARIES
from memlab.core.config_values import merged
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.errors import ConfigError
from memlab.core.foreign_words import foreign_word
from memlab.core.plan import engine_key, make_plan, run_id, training_arguments


def nested(path: str, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


@pytest.fixture
def checked(config):
    """``checked("deepspeed.aio.block_size", 1)``: the configuration with this value of a library, checked."""

    def build(path: str, value, **changes):
        made = config({key.replace("__", "."): each for key, each in changes.items()})
        for name, values in nested(path, value).items():
            setattr(made, name, values)
        check_library_values(made)
        return made

    return build


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "training_args.torch_empty_cach_steps",
            4,
            "Unknown key 'training_args.torch_empty_cach_steps'. Did you mean 'training_args.t",
        ),
        ("deepspeed.aio.block_siz", 1, "Unknown key 'deepspeed.aio.block_siz'. Did you mean 'deepspeed.aio.block_si"),
        ("deepspeed.zero_optimisation.stage", 3, "Unknown key 'deepspeed.zero_optimisation'. Here it is zero_stage=ze"),
        ("deepspeed.zero_optimization.stge", 3, "Unknown key 'deepspeed.zero_optimization.stge'. Here it is zero_stag"),
        ("training_args.learning_rat", 0.1, "Unknown key 'training_args.learning_rat'. Here it is optimizer.lr=0.1."),
        (
            "deepspeed.flop_profiler.enabled",
            True,
            "Unknown key 'deepspeed.flop_profiler'. Did you mean 'deepspeed.flops",
        ),
        ("deepspeed.aio", 1, "'deepspeed.aio' has keys of its own, not the value 1. Choose one of: block_size, "),
        (
            "training_args.torch_empty_cache_steps",
            "x",
            "'training_args.torch_empty_cache_steps' must be a whole number, ",
        ),
        ("training_args.torch_compile", 1, "'training_args.torch_compile' must be true or false, not 1."),
        (
            "training_args.lr_scheduler_type",
            "cosin",
            "'training_args.lr_scheduler_type' cannot be 'cosin'. Did you mean ",
        ),
        ("deepspeed.fp16.hysteresis", True, "'deepspeed.fp16.hysteresis' must be a whole number, not True."),
    ],
)
def test_what_the_libraries_do_not_take_is_refused(checked, path, value, message):
    with pytest.raises(ConfigError) as error:
        checked(path, value)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("path", "value", "here"),
    [
        ("deepspeed.zero_optimization.stage", 3, "zero_stage here: zero_stage=zero3."),
        ("deepspeed.zero_optimization.cpu_offload", True, "offload here: offload=optimizer."),
        ("deepspeed.train_micro_batch_size_per_gpu", 2, "batch.micro here: batch.micro=2."),
        ("deepspeed.train_batch_size", 8, "batch.micro here: batch.micro=<samples of one GPU>."),
        ("deepspeed.activation_checkpointing.profile", True, "checkpointing.profile here: checkpointing.profile=true."),
        ("training_args.learning_rate", 0.1, "optimizer.lr here: optimizer.lr=0.1."),
        ("training_args.bf16", True, "precision here: precision=bf16."),
        ("training_args.output_dir", "x", "hydra.run.dir here: hydra.run.dir=x."),
        ("training_args.max_steps", 7, "measure.steps here: measure.steps=7."),
    ],
)
@pytest.mark.parametrize("loop", ["memlab", "command"])
def test_what_a_group_sets_is_refused_with_both_names(checked, path, value, here, loop):
    with pytest.raises(ConfigError) as error:
        checked(path, value, training__loop=loop, training__command="train {deepspeed_json}")
    assert str(error.value) == f"'{path}' is {here}"


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("training_args.report_to", "wandb", "logs nothing"),
        ("training_args.save_strategy", "steps", "saves nothing"),
        ("training_args.eval_strategy", "steps", "only trains"),
        ("training_args.dataloader_num_workers", 2, "data loader of its own"),
        ("training_args.deepspeed", "ds.json", "deepspeed.<path>=<value>"),
        ("training_args.auto_find_batch_size", True, "batch that is measured"),
        ("deepspeed.memory_breakdown", True, "peaks"),
        ("deepspeed.wall_clock_breakdown", True, "synchronise"),
        ("deepspeed.zero_allow_untested_optimizer", True, "memlab sets it"),
    ],
)
def test_what_would_break_memlabs_loop_is_refused_with_the_reason(checked, path, value, why):
    changes = {"optimizer__source": "transformers", "optimizer__name": "adamw_torch"}
    with pytest.raises(ConfigError) as error:
        checked(path, value, **changes)
    assert why in str(error.value) and f"'{path}'" in str(error.value)


def test_no_word_is_advised_that_memlabs_loop_cannot_take(checked):
    for library, keys in KEYS.items():
        for key in keys():
            word = library_word(key, "x") or ""
            if word == f"{library}.{key}=x" and not foreign_word(key):
                try:
                    checked(f"{library}.{key}", "x")
                except ConfigError as error:
                    assert "cannot be set" not in str(error)


def test_no_value_that_memlab_composes_is_replaced(checked, config):
    """Each value of both libraries that groups or memlab's loop set, whatever its name."""
    paths = [f"deepspeed.{path}" for path in leaves(deepspeed_config(config()))]
    paths += [f"training_args.{path}" for path in training_arguments(config()) if path != "lr_scheduler_type"]
    for path in paths:
        with pytest.raises(ConfigError):
            checked(path, None)


def leaves(values: dict, path: str = "") -> list[str]:
    inner = [leaves(each, f"{path}{key}.") if isinstance(each, dict) else [path + key] for key, each in values.items()]
    return [each for part in inner for each in part]


def test_a_key_of_deepspeeds_optimizer_needs_deepspeeds_optimizer(checked):
    path = "deepspeed.optimizer.params.adam_w_mode"
    assert deepspeed_config(checked(path, False))["optimizer"]["params"]["adam_w_mode"] is False
    with pytest.raises(ConfigError, match=r"add optimizer.source=deepspeed"):
        checked(path, False, optimizer__source="transformers", optimizer__name="adamw_torch")


def test_a_command_needs_a_place_for_an_argument(checked):
    changes = {"training__loop": "command", "training__command": "train --n {training_args.neftune_noise_alpha}"}
    checked("training_args.neftune_noise_alpha", 5, **changes)
    checked("deepspeed.steps_per_print", 5, **changes)
    with pytest.raises(ConfigError, match=r"training.command has no place for it. Write {training_args.label"):
        checked("training_args.label_smoothing_factor", 0.1, **changes)


def test_the_values_are_in_the_plan_beside_those_of_the_groups(checked, config):
    arguments = checked("training_args.torch_empty_cache_steps", 4)
    assert make_plan(arguments, {}).training_args == make_plan(config(), {}).training_args | {
        "torch_empty_cache_steps": 4
    }
    blocks = checked("deepspeed.fp16.hysteresis", 4, precision__dtype="fp16")
    groups = deepspeed_config(config({"precision.dtype": "fp16"}))
    assert deepspeed_config(blocks) == merged(groups, {"fp16": {"hysteresis": 4}})
    assert deepspeed_config(blocks)["fp16"]["enabled"] is True
    assert training_arguments(checked("training_args.lr_scheduler_type", "cosine"))["lr_scheduler_type"] == "cosine"


@pytest.mark.parametrize("path", ["training_args.torch_empty_cache_steps", "deepspeed.gradient_predivide_factor"])
def test_each_value_is_a_run_of_its_own_with_a_name(checked, config, path):
    one, four = checked(path, 1), checked(path, 4)
    name = path.partition(".")[2]
    assert run_id(four).startswith(f"tiny-zero2-s512-b1-{name}_4-2xCPU-")
    assert len({run_id(config()), run_id(one), run_id(four)}) == len({engine_key(each) for each in (one, four)}) + 1
    assert {getattr(config(), library) == {} for library in LIBRARIES} == {True}


def test_a_key_that_the_family_of_a_model_lacks_is_refused_with_the_nearest():
    words = ("hardware=cpu", "mode=compose", "model=gpt2", "+model.overrides.num_hidden_layers=1")
    assert compose_config(words)[0].model.overrides == {"num_hidden_layers": 1}  # one of its aliases
    told = "model.overrides.n_layers: GPT2Config has no such key. Did you mean 'n_layer'?"
    with pytest.raises(ConfigError, match=re.escape(told)):
        compose_config([*words, "model.overrides.n_layers=1"])


def test_they_are_words_of_the_command_line():
    words = ("hardware=cpu", "training_args.torch_empty_cache_steps=4", "deepspeed.aio.block_size=2048")
    config, _ = compose_config(words)
    assert (config.training_args, config.deepspeed) == ({"torch_empty_cache_steps": 4}, {"aio": {"block_size": 2048}})
    with pytest.raises(ConfigError, match=r"is batch.accumulation here: batch.accumulation=4\."):
        compose_config(["hardware=cpu", "training_args.gradient_accumulation_steps=4"])
