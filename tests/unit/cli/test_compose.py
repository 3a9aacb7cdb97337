"""From words to a configuration, and how wrong words are refused."""

from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from memlab.cli.compose import compose_config, compose_words, hardware_here
from memlab.cli.override_words import OF_A_GPU, check_words, expand
from memlab.core.errors import ConfigError
from memlab.core.sizes import GIB
from memlab.files.conf_files import conf_dir, options_of
from memlab.system import machine


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as error:
        expand(words)
    return str(error.value)


def compose_refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as error:
        compose_config(words)
    return str(error.value)


def test_values_follow_the_words(composed):
    config, choices = composed(
        *("model=llama3_8b", "zero_stage=zero3", "offload=optimizer", "allocator=expandable", "checkpointing=full"),
        *("seq_len.tokens=2048", "batch.micro=2", "hardware=h100_x8"),
    )
    assert config.model.config["num_hidden_layers"] == 32
    assert (config.zero_stage.stage, config.offload.optimizer, config.offload.param) == (3, "cpu", "none")
    assert config.allocator.conf == "expandable_segments:True"
    assert config.checkpointing.enabled
    assert (config.seq_len.tokens, config.batch.micro, config.hardware.gpus) == (2048, 2, 8)
    assert (choices["model"], choices["seq_len"], choices["hardware"]) == ("llama3_8b", "s512", "h100_x8")


@pytest.mark.parametrize("plus", ["", "+"])
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("zero_stge=zero3", "Unknown key 'zero_stge'. Did you mean 'zero_stage'?"),
        ("batch.mikro=2", "Unknown key 'batch.mikro'. Did you mean 'batch.micro'?"),
        ("seq_len.token=8", "Unknown key 'seq_len.token'. Did you mean 'seq_len.tokens'?"),
        ("batch.micro.x=2", "'batch.micro' must be a whole number, not {'x': "),
        (
            "gradient_accumulation_steps=4",
            "Unknown key 'gradient_accumulation_steps': here it is batch.accumulation=4.",
        ),
        ("optimizer.learning_rate=1e-4", "Unknown key 'optimizer.learning_rate': here it is optimizer.lr=1e-4."),
        ("zero_optimization.stage=3", "Unknown key 'zero_optimization.stage': here it is zero_stage=zero3."),
        ("torch_empty_cache_steps=4", "Unknown key 'torch_empty_cache_steps': here it is training_args.torch_empty_"),
        ("steps_per_print=4", "Unknown key 'steps_per_print': here it is deepspeed.steps_per_print=4."),
        ("search=batch", "Unknown key 'search': here it is sweep.search=batch."),
        ("offload_optimizer.device=cpu", "Unknown key 'offload_optimizer.device': here it is offload=optimizer."),
        ("offload_optimizer=true", "Unknown key 'offload_optimizer': here it is offload=optimizer."),
        ("fsdp=x", "Unknown key 'fsdp': here it is training_args.fsdp=x, only with a trainer of your own (memlab's"),
        ("training_arg.lr=2", "Unknown key 'training_arg'. Did you mean 'training_args'?"),
        ("modle=tiny", "Unknown key 'modle'. Did you mean 'model'?"),
    ],
)
def test_an_unknown_key_is_refused_whatever_stands_before_it(plus, word, message):
    assert compose_refusal(plus + word, "hardware=cpu").startswith(message)


def test_a_group_of_memlabs_is_no_place_for_a_key_of_ones_own():
    refused = compose_refusal("seq_len.token=8", "hardware=cpu")
    assert refused == "Unknown key 'seq_len.token'. Did you mean 'seq_len.tokens'?"


def test_all_words_of_other_libraries_are_named_at_once():
    words = ["bf16=true", "zero_optimization.stage=3", "batch.micro=2", "hydra.job.name=a", "+note=a", "optim=sgd"]
    here = {"bf16": "precision=bf16", "zero_optimization.stage": "zero_stage=zero3"}
    here["optim"] = "optimizer.source=transformers optimizer.name=sgd"
    told = " ".join(f"Unknown key '{word}': here it is {meant}." for word, meant in here.items())
    assert compose_refusal("hardware=cpu", *words) == told


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("zero_stage=3", "Unknown option '3' of config group 'zero_stage'. Did you mean 'zero3'?"),
        ("hardware=h200", "Unknown option 'h200' of config group 'hardware'. Did you mean 'h200_x1' or 'h200_x8'?"),
        ("hardware=l4_x1", "Unknown option 'l4_x1' of config group 'hardware'. Choose one of: a100_40g_x8, "),
        ("hardware=4090", "Unknown option '4090' of config group 'hardware'. Did you mean 'rtx4090_x1'?"),
        ("hardware=a10_x1", "Unknown option 'a10_x1' of config group 'hardware'. Did you mean 'a10g_x1'?"),
        ("hardware=h100_x4", "Unknown option 'h100_x4' of config group 'hardware'. Did you mean 'h100_x"),
        ("model=lama3_8b", "Unknown option 'lama3_8b' of config group 'model'. Did you mean 'llama3_8b'?"),
        (
            "seq_len=731",
            "Unknown option '731' of config group 'seq_len'. Set the value itself with seq_len.tokens=731.",
        ),
        ("batch=3", "Unknown option '3' of config group 'batch'. Set the value itself with batch.micro=3."),
        ("offload=cpu", "Unknown option 'cpu' of config group 'offload'. Choose one of: "),
        ("offlod/x=none", "Unknown key 'offlod/x'. Did you mean 'offload'?"),
        ("zero_stage@mine=zero3", "Could not override 'zero_stage@mine'. Did you mean to override zero_stage?"),
        ("+zero_stage=zero3", "'zero_stage' has an option already: write zero_stage=<option> without +."),
        ("~model", "Config group 'model' needs one option: model=<option>. Several are a sweep, with -m and commas: "),
        ("~offload=none", "Config group 'offload' needs one option: offload=<option>. "),
        ("zero_stage=[zero2,zero3]", "Config group 'zero_stage' needs one option: zero_stage=<option>. "),
        ("zero_stage=[zero3]", "Config group 'zero_stage' needs one option: zero_stage=<option>. "),
        ("mine=1", "Unknown key 'mine'. Did you mean 'name'? (A key of your own: +mine=...)"),
        ("sweep=tiny_cpu", "Unknown option 'tiny_cpu' of config group 'sweep'. Studies are experiments: +experiment=t"),
        ("experiment=tiny_cp", "Unknown option 'tiny_cp' of config group 'experiment'. Did you mean 'tiny_cpu'?"),
        ("+experiment=tiny_cp", "Unknown option 'tiny_cp' of config group 'experiment'. Did you mean 'tiny_cpu'?"),
        ("+own=5", "'own' must be keys with values, not 5."),
        ("own=5", "Unknown key 'own'. A key of your own: +<name>=<value>."),
        ("batch.micro=[1", "Cannot read 'batch.micro=[1': a bracket is not closed, or not opened."),
        (
            "batch.micro=,2",
            "Cannot read 'batch.micro=,2': a value is missing beside a comma. Write them all, as in seed",
        ),
        ("batch.micro=1,,2", "Cannot read 'batch.micro=1,,2': a value is missing beside a comma."),
        ("batch.micro", "Cannot read 'batch.micro': it has no value. Write batch.micro=<value>, without spaces."),
        ("+range(1,3)", "Cannot read '+range(1,3)': a word is <key>=<value>, without spaces. Write <key>=range(1,3)."),
        ("name=a;b", "Cannot read 'name=a;b': its value needs quotes, which the shell must keep: \"name='a;b'\"."),
        ("seed=rnge(1,3)", "Cannot read 'seed=rnge(1,3)': Unknown function 'rnge'. Available: bool,"),
        ("batch.micro=null", "'batch.micro' must be a whole number, not null."),
        (
            "name=${oc.env:NOT_SET_HERE}",
            "'name' takes the environment variable NOT_SET_HERE, which is not set. Set it, or write a default behind a",
        ),
        (
            "hydra/launcher=joblib",
            "Unknown option 'joblib' of config group 'hydra/launcher'. It is of Hydra's plugin hydra-joblib-launcher, ",
        ),
        ("batch.micro=1,2", "'batch.micro=1,2' has several values: add -m to sweep over them."),
        ("seq_len.tokens=range(1,9)", "'seq_len.tokens=range(1,9)' has several values: add -m to sweep over them"),
    ],
)
def test_what_hydra_cannot_compose_is_one_line_with_what_is_meant(word, message):
    refused = compose_refusal(word)
    assert refused.startswith(message) and "\n" not in refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# @package _global_\nseq_len:\n  tokens: [64\nname: x\n", "FILE, line 4: no valid YAML: "),
        ("# @package _global_\nseed: 1\n  x: 3\n", "FILE, line 3: no valid YAML: mapping values are not allowed "),
        (
            "# @package _global_\ndefaults:\n  - override zero_stage: zero3\n",
            "experiment/mine.yaml: 'zero_stage' needs a slash in the defaults: - override /zero_stage: <option>",
        ),
        (
            "# @package _global_\ndefaults:\n  - zero_stage: zero3\n",
            "experiment/mine.yaml: 'zero_stage' needs a slash in the defaults: - override /zero_stage: <option>",
        ),
        (
            "# @package _global_\ndefaults:\n  - /zero_stage: zero3\n",
            "A file adds 'zero_stage', which has an option already: - override /zero_stage: <option>",
        ),
        (
            "defaults:\n  - override /zero_stage: zero3\n",
            "The first line of experiment/mine.yaml must be '# @package _global_': it sets any key.",
        ),
    ],
)
def test_what_is_wrong_in_an_experiments_file_is_said(tmp_path, text, message):
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        compose_config(["hardware=cpu", "+experiment=mine"], str(tmp_path))
    assert str(error.value).startswith(message.replace("FILE", str(file))) and "\n" not in str(error.value)


@pytest.mark.parametrize("word", ["experiment=mine", "+experiment=mine"])
def test_an_experiment_needs_no_plus(tmp_path, word):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 7\n")
    assert compose_config(["hardware=cpu", word], str(tmp_path))[0].seed == 7
    assert compose_words([word], str(tmp_path)).hydra.overrides.task == ["+experiment=mine"]


def test_a_key_that_a_group_of_ones_own_lacks_is_refused_with_the_nearest(tmp_path):
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "slow.yaml").write_text("rate: 0.1\nwarmup: 7\n")
    told = r"Unknown key 'schedule.rat'. Did you mean 'schedule.rate'\? \(A key of your own: \+schedule.rat=\.\.\.\)"
    with pytest.raises(ConfigError, match=told):
        compose_config(["hardware=cpu", "+schedule=slow", "schedule.rat=3"], str(tmp_path))


@pytest.mark.parametrize(("word", "meant"), [("ssed", "seed"), ("sead", "seed"), ("zero", "zero_stage")])
def test_a_key_of_ones_own_that_is_nearly_one_of_memlabs_is_refused(word, meant):
    assert compose_refusal(f"+{word}=2") == f"Unknown key '{word}'. Did you mean '{meant}'?"


@pytest.mark.parametrize("word", ["training=mine", "training.command=x", "training.script=x.py"])
def test_a_trainer_of_ones_own_does_not_run_memlabs_loop(tmp_path, word):
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "mine.yaml").write_text("command: python train.py {batch.micro}\n")
    with pytest.raises(ConfigError, match="add training=command, or write 'loop: command' into the file of your tr"):
        compose_config([word, "hardware=cpu"], str(tmp_path))


def test_keys_and_groups_of_ones_own_are_composed(tmp_path):
    (tmp_path / "schedule").mkdir()
    (tmp_path / "schedule" / "slow.yaml").write_text("lr_end: 0.1\nsteps: 7\n")
    words = ["hardware=cpu", "+schedule=slow", "+schedule@other=slow", "+note=a", "+tags=[a,b]", "~seed"]
    config, choices = compose_config(words, str(tmp_path))
    slow = {"lr_end": 0.1, "steps": 7}
    assert config.own == {"schedule": slow, "other": slow, "note": "a", "tags": ["a", "b"]}
    assert (choices["schedule"], config.seed) == ("slow", 0)


def test_defaults_of_ones_own_machine_are_a_file_that_git_ignores(tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "default.yaml").write_text("# @package _global_\nhardware:\n  usd_per_gpu_hour: 9.0\n")
    config, choices = compose_config(["hardware=h200_x1"], str(tmp_path))
    assert config.hardware.usd_per_gpu_hour == 9.0 and "local" not in choices and config.own == {}
    assert "/conf/local/" in (Path(conf_dir()).parent / ".gitignore").read_text().splitlines()
    (tmp_path / "local" / "default.yaml").write_text("hardware:\n  usd_per_gpu_hour: 9.0\n")
    with pytest.raises(ConfigError, match=r"first line of the file in local/ must be '# @package _global_'"):
        compose_config(["hardware=h200_x1"], str(tmp_path))


def test_a_number_may_be_text_where_a_variable_holds_it(monkeypatch):
    monkeypatch.setenv("MY_TOKENS", "731")
    monkeypatch.setenv("MY_FORCE", "yes")
    words = ["seq_len.tokens=${oc.env:MY_TOKENS}", "force=${oc.env:MY_FORCE}", "name=7", "optimizer.lr='1e-4'"]
    config, _ = compose_config(["hardware=cpu", *words])
    assert (config.seq_len.tokens, config.force, config.name, config.optimizer.lr) == (731, True, "7", 1e-4)


@pytest.mark.parametrize(
    "word", ["zero_stage=glob(*)", "zero_stage=zero1,zero2", "seq_len.tokens=range(1,9,2)", "hydra.run.dir=x"]
)
def test_what_hydra_can_do_is_let_through(word):
    check_words([word])
    expand([word])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seq_len.tokens=range(5,1)"], "'seq_len.tokens' has no value"),
        (["seq_len.tokens=glob(*)"], "'seq_len.tokens' has no value"),
        (["model=glob(nothing*)", "batch.micro=1,2"], "'model' has no value"),
        (
            ["optimizer.lr=interval(0,1)"],
            "'optimizer.lr': an interval is for a sweeper that searches, such as hydra/sw",
        ),
        (["seq_len.tokens=1,range(2,5)"], "'seq_len.tokens': a range cannot be one of several values"),
    ],
)
def test_words_that_stand_for_no_points_are_refused(words, message):
    assert refusal(*words).startswith(message)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["seq_len.tokens=range(1,1000000000)"], "999,999,999 points (999,999,999 of seq_len.tokens)"),
        (["seq_len.tokens=shuffle(range(1,1000000000))"], "999,999,999 points"),
        (["seq_len.tokens=sort(range(1,1000000000),reverse=true)"], "999,999,999 points"),
        (["optimizer.lr=range(0.0,1,1e-9)"], "1,000,000,000 points"),
        (
            ["seq_len.tokens=range(1,1001)", "batch.micro=range(100,0,-1)", "offload=none,all"],
            "200,000 points (1,000 of seq_len.tokens x 100 of batch.micro x 2 of offload)",
        ),
        (["batch.micro=range(0,2000)", "measure.repeats=6"], "12,000 points (2,000 of batch.micro x 6 of"),
    ],
)
def test_points_are_counted_before_they_are_made(words, count):
    message = refusal(*words)
    assert count in message and "at most 10,000" in message


def test_as_many_points_as_allowed_are_let_through():
    expand(["seq_len.tokens=range(1,10001)", "batch.micro=1", "model=glob(tiny)"])


@pytest.mark.parametrize("word", ["batch.micro=range(1,9,0)", "optimizer.lr=range(0,inf,0.1)", "seed=range(0,nan)"])
def test_a_range_without_an_end_is_refused(word):
    assert refusal(word).endswith("a range needs a finite start and stop, and a step other than 0.")


@pytest.mark.parametrize("url", ["https://me:sesame@example.org/model", "https://sesame@example.org/model"])
def test_a_password_in_a_word_is_refused_without_repeating_it(url):
    message = refusal(f"model.path={url}")
    assert "model.path" in message and "sesame" not in message


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["batch.micro=two"], ["'batch.micro' must be a whole number, not 'two'."]),
        (["batch.micro=0"], ["'batch.micro' must be at least 1, not 0."]),
        (["precision.dtype=bf17"], ["Did you mean 'bf16'?"]),
        (["allocator=custom"], ["'allocator.conf' has no value"]),
        (["seed=1,2"], ["add -m", "seed=1,2"]),
        (["+zero_stage=zero3"], ["zero_stage"]),
    ],
)
def test_a_wrong_value_is_one_line(words, parts):
    message = compose_refusal("hardware=cpu", *words)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_keys_of_the_hugging_face_config_need_no_plus(composed):
    config, _ = composed("model.overrides.num_hidden_layers=1", "hardware=cpu")
    assert config.model.overrides == {"num_hidden_layers": 1}


def test_own_options_stand_beside_the_shipped(tmp_path):
    folder = tmp_path / "mine, it's all mine"
    (folder / "seq_len").mkdir(parents=True)
    (folder / "seq_len" / "s731.yaml").write_text("tokens: 731\n")
    assert "s731" in options_of("seq_len", str(folder)) and "s512" in options_of("seq_len", str(folder))
    config, choices = compose_config(["seq_len=s731", "hardware=cpu"], str(folder))
    assert (config.seq_len.tokens, choices["seq_len"]) == (731, "s731")


def test_composing_leaves_hydra_as_it_was(composed):
    compose_config(["hardware=cpu"])
    assert not GlobalHydra.instance().is_initialized()


@pytest.fixture
def local(monkeypatch):
    """``local(machine)``: what hardware=auto says on that machine, for a mode."""

    def on(found: machine.Machine, mode: str) -> dict:
        monkeypatch.setattr(machine, "detect", lambda: found)
        hardware_here.cache_clear()
        return hardware_here(mode)

    yield on
    hardware_here.cache_clear()


H100 = machine.Gpu("0", "NVIDIA H100 80GB HBM3", 80 * GIB, (9, 0))
ODD = machine.Gpu("0", "NVIDIA Riva 128", GIB, (1, 0))


def test_auto_is_two_cpu_ranks_without_a_gpu(local):
    found = local(machine.Machine(), "measure")
    assert (found["device"], found["gpus"]) == ("cpu", 2)


@pytest.fixture
def without_gpus(local):
    local(machine.Machine(), "predict")


def test_auto_predicts_no_gpu_that_was_not_named(without_gpus):
    assert compose_refusal("mode=predict").startswith("A prediction is for GPUs that you name: add hardware=")


def test_auto_has_the_published_figures_of_a_gpu_that_is_named(without_gpus):
    hardware = compose_config(["mode=predict", "hardware.gpu=NVIDIA GeForce RTX 4090"])[0].hardware
    assert (hardware.gpus, hardware.memory_gib, hardware.bf16_tflops) == (1, 23.52, 165.2)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["hardware.gpu=RTX6000"], "known GPUs. Choose one of: a100_40g_x8, "),
        (["hardware.gpu=RTX4090"], "Did you mean 'rtx4090_x1'"),
        (["hardware.gpu=RTX6000", "hardware.memory_gib=48"], "add hardware.memory_gib, hardware.bf16_tflops, "),
        (["hardware=a100_80g_x1", "hardware.gpu=RTX6000"], "would have the memory and speeds of hardware=a100_80g_x1"),
        (["hardware=a100_80g_x1", "hardware.gpu=H100 80GB HBM3"], "Choose one of: h100_x1, h100_x8."),
        (["hardware.gpu=4"], "Their number is hardware.gpus=4."),
    ],
)
def test_a_gpu_never_has_the_memory_and_speeds_of_another(without_gpus, words, hint):
    refused = compose_refusal("mode=predict", *words)
    assert hint in refused and "\n" not in refused


@pytest.mark.parametrize("option", [(), ("hardware=a100_80g_x1",)])
def test_a_gpu_that_memlab_does_not_know_is_described(without_gpus, option):
    values = {f"hardware.{key}": None for key in OF_A_GPU} | {"hardware.memory_gib": 48.0, "hardware.gpu": "RTX6000"}
    words = [f"{key}={'null' if value is None else value}" for key, value in values.items()]
    hardware = compose_config(["mode=predict", *option, *words])[0].hardware
    assert (hardware.gpu, hardware.memory_gib, hardware.bf16_tflops) == ("RTX6000", 48.0, None)


def test_auto_is_the_gpus_of_the_machine_with_their_published_figures(local):
    found = local(machine.Machine((H100, H100)), "measure")
    assert (found["gpu"], found["gpus"], found["memory_gib"]) == ("H100 80GB HBM3", 2, 79.19)
    assert found["bf16_tflops"] == 989.5


def test_auto_claims_no_figures_for_a_gpu_that_it_does_not_know(local):
    found = local(machine.Machine((ODD,)), "measure")
    assert (found["gpu"], found["bf16_tflops"], found["usd_per_gpu_hour"]) == ("NVIDIA Riva 128", None, None)


# --- prices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "usd_per_hour"),
    [
        (["hardware=a100_80g_x8"], 14.32),
        (["hardware=a100_80g_x8", "hardware.gpus=4"], 7.16),  # the share that is used
        (["hardware=h100_x8", "hardware.gpus=1"], 3.29),  # a machine of one
        (["hardware=a100_80g_x8", "hardware.gpus=4", "hardware.usd_per_gpu_hour=1"], 4.0),
        (["hardware=h200_x8", "hardware.nodes=2"], 56.0),
        (["hardware=rtx4090_x1"], None),
    ],
)
def test_the_gpus_that_are_used_are_paid(words, usd_per_hour):
    found = compose_config(["mode=predict", *words])[0].hardware.total_usd_per_hour
    assert found == (usd_per_hour and pytest.approx(usd_per_hour))


def test_auto_has_the_list_price_of_the_gpus_of_the_machine(monkeypatch):
    h200 = machine.Gpu("0", "NVIDIA H200", 140 * GIB, (9, 0))
    monkeypatch.setattr(machine, "detect", lambda: machine.Machine((h200, h200)))
    hardware_here.cache_clear()
    try:
        assert compose_config(["hardware=auto"])[0].hardware.total_usd_per_hour == 7.0
    finally:
        hardware_here.cache_clear()


def test_auto_counts_no_memory_that_the_driver_keeps(local):
    """NVML says 140.4 GiB of an H200, torch 139.8. A part of a GPU (MIG) has what NVML says."""
    whole = machine.Gpu("0", "NVIDIA H200", 143_771 * 2**20, (9, 0))
    assert local(machine.Machine((whole,)), "measure")["memory_gib"] == 139.8
    part = machine.Gpu("0", "NVIDIA H200 MIG 1g.18gb", 16 * GIB, (9, 0))
    assert local(machine.Machine((part,)), "measure")["memory_gib"] == 16


def test_the_price_of_a_node_names_the_price_of_a_gpu():
    with pytest.raises(
        ConfigError, match=r"'hardware.usd_per_hour': here it is hardware.usd_per_gpu_hour, the price of one"
    ):
        compose_config(["hardware=h200_x8", "hardware.usd_per_hour=28"])
