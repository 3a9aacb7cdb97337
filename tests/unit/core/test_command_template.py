"""Places in a command: filled from the configuration, refused with the nearest name, and never without effect."""

from dataclasses import replace
from pathlib import Path

import pytest

from memlab.core.command_template import check_effects, check_places, command_environment, filled, given, parse
from memlab.core.config import Adapter, Allocator, Batch, Checkpointing, Config, Model, Training, ZeroStage
from memlab.core.errors import ConfigError


def config(command: str, **groups) -> Config:
    groups = {"model": Model(path="owner/name"), "allocator": Allocator(conf=""), **groups}
    return Config(training=Training(loop="command", command=command), **groups)


def words(command: str, **groups) -> list[str]:
    return words_of(config(command, **groups))


def words_of(point: Config) -> list[str]:
    return filled(point, Path("run/deepspeed.json"), Path("run/output"), 29501, Path("run/data"))


def trainer(command: str, words: dict, script: str = "", **groups) -> Config:
    point = config(command, **groups)
    return replace(point, training=replace(point.training, words=words, script=script, trainer="mine"))


def test_places_are_filled():
    command = (
        "deepspeed --master_port {master_port} t.py --ds {deepspeed_json} -o {run_dir} -m {model.path} -b={batch.micro}"
    )
    assert words(command, batch=Batch(micro=4)) == [
        *("deepspeed", "--master_port", "29501", "t.py", "--ds", "run/deepspeed.json", "-o", "run/output"),
        *("-m", "owner/name", "-b=4"),
    ]


def test_a_value_with_blanks_stays_one_word():
    assert words("train {model.path}", model=Model(path="my model")) == ["train", "my model"]


def test_a_doubled_brace_is_a_brace():
    assert words("""train '{{"a": {batch.micro}}}'""") == ["train", '{"a": 1}']


def test_words_of_a_trainer_stand_once_and_between_braces_too():
    given = {"batch.micro": "--b {batch.micro}"}
    assert words_of(trainer("train {{{batch.micro}}} {{x}}", given)) == ["train", "{--b", "1}", "{x}"]
    assert words_of(trainer("train {{batch.micro}}", given)) == ["train", "{batch.micro}", "--b", "1"]


def test_flags_are_written_as_yaml_writes_them():
    assert words("train --gc {checkpointing.enabled} --betas {optimizer.betas}")[2:] == [
        "false",
        "--betas",
        "[0.9, 0.999]",
    ]


def test_keys_of_ones_own_have_places_under_their_own_names():
    command = "train --lr {schedule.lr} --note {note}"
    assert words(command, own={"schedule": {"lr": 0.1}, "note": "a b"}) == ["train", "--lr", "0.1", "--note", "a b"]
    points = [config("train {note}", own={"note": "a", "other": value}) for value in (1, 2)]
    with pytest.raises(ConfigError, match=r"'other' varies, but training\.command has no place for it"):
        check_effects(points)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train {batch.mirco}", "Did you mean 'batch.micro'"),
        ("train {hardware.hostfile}", "'hardware.hostfile' has no value"),
        ("train {", "written twice"),
        ("train {}", "no place"),
        ("train {batch.micro:3}", "no place"),
        ("train 'open", "No closing quotation"),
        ("", "is empty"),
    ],
)
def test_what_cannot_be_filled_is_refused(command, message):
    with pytest.raises(ConfigError, match=message):
        check_places(config(command))


def test_a_key_that_varies_needs_a_way_to_the_command():
    points = [config("train --deepspeed {deepspeed_json}", batch=Batch(micro=micro)) for micro in (1, 2)]
    with pytest.raises(ConfigError, match=r"'batch.micro' varies.*write \{batch.micro\}"):
        check_effects(points)


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        ("train -b {batch.micro}", {"batch": Batch(micro=2)}),
        ("train --deepspeed {deepspeed_json}", {"zero_stage": ZeroStage(stage=3)}),
        ("train", {"allocator": Allocator(conf="expandable_segments:True")}),
    ],
)
def test_a_place_the_json_and_the_environment_are_ways(command, changes):
    check_effects([config(command), config(command, **changes)])


def test_all_values_are_in_the_json_of_a_script_without_transformers():
    points = [config("train --deepspeed {deepspeed_json}", batch=Batch(micro=micro)) for micro in (1, 2)]
    check_effects([replace(point, training=replace(point.training, auto=False)) for point in points])


def test_the_environment_is_the_callers_with_the_composed_allocator():
    environ = {"PATH": "/bin", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:5"}
    assert command_environment(config("train"), environ) == {"PATH": "/bin"}
    expandable = config("train", allocator=Allocator(conf="expandable_segments:True"))
    assert command_environment(expandable, environ)["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_words_without_places_are_known_before_anything_is_filled():
    assert parse("train --out here -b {batch.micro} '{{x}}'").plain_words == ["train", "--out", "here", "-b", "{x}"]


GC = {"checkpointing.enabled": {"true": "--gc 'all layers'", "false": ""}}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("run {checkpointing.enabled} train.py", ["run", "--gc", "all layers", "train.py"]),
        ("run train.py", ["run", "train.py", "--gc", "all layers"]),
    ],
)
def test_a_value_becomes_its_words_at_its_place_or_at_the_end(command, expected):
    assert words_of(trainer(command, GC, checkpointing=Checkpointing(enabled=True))) == expected
    assert words_of(trainer(command, GC)) == ["run", "train.py"]


def test_words_of_a_key_have_places_too_and_a_list_is_spread():
    words = {
        "model.path": "--model {model.path}",
        "adapter.method": {"lora": "--targets *{adapter.target_modules} --data {data_dir}/train.json"},
    }
    point = trainer("train", words, adapter=Adapter(method="lora", target_modules=["q proj", "{v}"]))
    assert words_of(point) == [
        *("train", "--model", "owner/name", "--targets", "q proj", "{v}", "--data", "run/data/train.json")
    ]
    assert {"model.path", "adapter.method", "adapter.target_modules"} <= given(point)


def test_a_script_brings_words_of_its_own():
    point = trainer("run {training.script} -b {batch.micro}", {}, "'my train.py' --lr {optimizer.lr}")
    assert words_of(point) == ["run", "my train.py", "--lr", "1e-05", "-b", "1"]
    with pytest.raises(ConfigError, match=r"mine needs a script: add training\.script="):
        check_places(replace(point, training=replace(point.training, script="")))


def test_the_arguments_of_transformers_are_words():
    point = config("train {training_args}", checkpointing=Checkpointing(enabled=True), batch=Batch(micro=3))
    found = words_of(replace(point, training_args={"torch_empty_cache_steps": 4}))
    for name, value in {
        **{"--per_device_train_batch_size": "3", "--bf16": "true", "--report_to": "none"},
        **{"--gradient_checkpointing_kwargs": '{"use_reentrant": false}', "--torch_empty_cache_steps": "4"},
    }.items():
        assert found[found.index(name) + 1] == value
    assert not {"--output_dir", "--deepspeed"} & set(found)
    check_effects([point, replace(point, seed=3)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"batch.mirco": "-b {batch.micro}"}, "training.words: no key 'batch.mirco'. Did you mean 'batch.micro'"),
        ({"batch.micro": 3}, "'batch.micro' has words as text"),
        ({"batch.micro": {"1": ["-b", "1"]}}, "'batch.micro' has words as text"),
        ({"batch.micro": "-b {batch.mirco}"}, "no key 'batch.mirco'"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        check_places(trainer("train", words))
