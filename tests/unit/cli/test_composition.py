"""``mode=compose`` and ``memlab show --plan``: what the groups compose into, as JSON, without hardware."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memlab.cli import experiments, hydra_app
from memlab.cli import main as cli
from memlab.cli.commands.plan import combinations, combined_axes
from memlab.cli.compose import compose_config
from memlab.cli.override_words import expand
from memlab.cli.single_changes import changes_to_predict, plan_of_words, words_changed
from memlab.core.plan import make_plan
from memlab.launch.composition import composition
from memlab.runs.folder import RunFolder
from memlab.system import machine

LAUNCH = Path(__file__).parents[3] / "launch.py"


@pytest.fixture
def composed(tmp_path, monkeypatch, capfd):
    """``composed("zero_stage=zero3")``: what launch.py mode=compose prints, in an empty folder, or its error."""

    def run(*words: str, flags: tuple[str, ...] = ()) -> list[dict] | str:
        monkeypatch.setattr(sys, "argv", ["launch.py", *flags, "mode=compose", *words])
        with pytest.raises(SystemExit) as left:
            cli.launch()
        out, err = capfd.readouterr()
        if left.value.code:
            return err
        decoder, found = json.JSONDecoder(), []
        while out.strip():
            value, end = decoder.raw_decode(out.lstrip())
            found.append(value)
            out = out.lstrip()[end:]
        return found

    def asks(*_):
        raise AssertionError("nothing is asked of this machine")

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for place in (machine, experiments):
        monkeypatch.setattr(place, "detect", asks)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    yield run
    assert not any((tmp_path / "empty").iterdir())
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_words_without_flags_are_composed_once_into_what_hydras_application_composes(composed, monkeypatch):
    words = ("hardware=h200_x1", "zero_stage=zero3", "batch.micro=3", "+note=a")
    shown = composed(*words, flags=("--run",))
    monkeypatch.setattr(hydra_app.hydra, "main", None)
    assert composed(*words) == shown and shown[0]["deepspeed"]["zero_optimization"]["stage"] == 3


def test_a_place_that_is_no_key_is_refused_by_name(composed):
    refused = composed("training=command", "training.command='train {batch.micr}'", "hardware=h200_x8")
    assert "no key 'batch.micr'. Did you mean 'batch.micro'?" in refused


def test_one_configuration_is_one_object(composed):
    words = ("hardware=h200_x8", "zero_stage=zero3", "offload=optimizer", "deepspeed.steps_per_print=7", "seed=3")
    (found,) = composed(*words)
    plan = make_plan(*compose_config(words))
    assert found["deepspeed"] == plan.deepspeed and found["deepspeed"]["steps_per_print"] == 7
    assert found["training_args"] == plan.training_args
    assert found["environment"] == plan.environment
    assert (found["world_size"], found["unsupported"]) == (8, [])
    line = (
        "-m deepspeed.launcher.runner --hostfile none --include localhost:0,1,2,3,4,5,6,7 --master_port {master_port}"
    )
    assert found["command"] == [
        sys.executable,
        *line.split(),
        "--no_local_rank",
        "--module",
        "memlab.training",
        "{run_dir}",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["hardware=cpu", "batch.micro=3", "training_args.lr_scheduler_kwargs={num_cycles: 2}"],
        ["hardware=h200_x1", "optimizer=adamw_8bit", "seed=7", "allocator=expandable", "deepspeed.aio.block_size=4"],
        ["hardware=h200_x1", "training=command", "training.command='train \"a b\" {batch.micro}'"],
        ["hardware=cpu", "+one='7'", "+two='null'", "+three='1e-5'", "+four=[a,'b, c','3',null]", "+five={k: 'true'}"],
        ["hardware=cpu", """+both='it\\'s "so"'""", r"+end='a\\'", "+day=2026-11-24", "+none=''"],
    ],
)
def test_its_words_compose_it_again(composed, words):
    (found,) = composed(*words)
    assert composed(*found["words"]) == [found]


def test_this_machine_is_one_gpu_of_which_nothing_is_known(composed):
    (found,) = composed()
    assert found["world_size"] == 1 and found["environment"]["DS_ACCELERATOR"] == "cuda"
    (found,) = composed("hardware.gpu='NVIDIA H200'", "hardware.gpus=2")
    assert found["world_size"] == 2


def test_a_sweep_is_a_stream_of_objects(composed):
    found = composed("hardware=cpu", "zero_stage=zero1,zero3", "seq_len.tokens=64,128", flags=("-m",))
    assert [each["deepspeed"]["zero_optimization"]["stage"] for each in found] == [1, 1, 3, 3]
    assert ["seq_len.tokens=128" in each["words"] for each in found] == [False, True, False, True]


def test_a_sweep_of_one_point_is_one_line(composed, capfd, monkeypatch):
    monkeypatch.setattr(json.JSONDecoder, "raw_decode", lambda _, text: (text, len(text)))
    (found,) = composed("hardware=cpu", "seed=3", flags=("-m",))
    assert found.count("\n") == 1


def test_values_of_hydras_are_known(composed):
    """``${hydra:...}`` is resolved by Hydra's application alone."""
    for flags in ((), ("-m",)):
        (found,) = composed("hardware=cpu", "+mode_here=${hydra:runtime.choices.precision}", flags=flags)
        assert "+mode_here=bf16" in found["words"]


def test_an_experiment_that_is_a_sweep_is_no_value_of_a_sweep(composed):
    refused = composed("+experiment=tiny_cpu,seed_batch_8b", flags=("-m",))
    own, of_hydra_1_4 = "an experiment that is a sweep cannot be one of several values", "'hydra.sweeper' must be"
    assert own in refused or of_hydra_1_4 in refused


def test_values_of_the_libraries_are_axes(composed):
    values = ("training_args.torch_empty_cache_steps=1,4", "deepspeed.aio.block_size=2,4")
    found = composed("hardware=cpu", *values, flags=("-m",))
    sizes = [(each["training_args"]["torch_empty_cache_steps"], each["deepspeed"]["aio"]) for each in found]
    assert sizes == [(steps, {"block_size": size}) for steps in (1, 4) for size in (2, 4)]


def test_modes_are_not_mixed(composed):
    assert "mode=compose cannot be one of several values" in composed("mode=compose,predict", flags=("-m",))


def test_other_launchers_start_nothing(composed):
    assert "so hydra/launcher=basic cannot start it: leave it out" in composed(
        "hydra/launcher=basic", "hardware=cpu", flags=("-m",)
    )


def test_a_wrong_word_is_one_line(composed):
    assert composed("hardware=cpu", "batch.micro=0") == "memlab: 'batch.micro' must be at least 1, not 0.\n"


def test_why_a_combination_cannot_run(composed):
    (found,) = composed("hardware=h200_x1", "offload=param")
    assert "only ZeRO stage 3 partitions parameters" in found["unsupported"][0]


def test_a_command_is_filled(composed):
    command = "'deepspeed train.py --deepspeed {deepspeed_json} --lr {optimizer.lr} --out {run_dir}'"
    (found,) = composed("hardware=h200_x1", "training=command", f"training.command={command}", "allocator=expandable")
    filled = "deepspeed train.py --deepspeed deepspeed.json --lr 1e-05 --out {run_dir}"
    assert found["command"] == filled.split()
    assert found["deepspeed"]["train_micro_batch_size_per_gpu"] == "auto"
    assert found["training_args"] is None
    assert found["environment"] == dict.fromkeys(
        ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True"
    )
    (without,) = composed("hardware=h200_x1", "training=command", "training.command='python train.py'")
    assert without["deepspeed"] is None


def test_several_nodes_need_their_hostfile(composed, tmp_path):
    nodes = ("hardware=h200_x8", "hardware.nodes=2")
    (found,) = composed(*nodes)
    assert (found["world_size"], found["command"]) == (16, None)
    hosts = tmp_path / "hosts"
    hosts.write_text("one slots=8\ntwo slots=8\n")
    (found,) = composed(*nodes, "hardware.launcher=pdsh", f"hardware.hostfile={hosts}")
    line = "--master_addr one --num_nodes 2 --num_gpus 8 --master_port {master_port} --no_local_rank"
    assert " ".join(found["command"]).endswith(f"{line} --module memlab.training {{run_dir}}")


def test_neither_torch_nor_what_runs_something_is_imported(tmp_path):
    heavy = {"torch", "transformers", "deepspeed", "pandas", "matplotlib", "memlab.cli.experiments"}
    code = f"""
import atexit, runpy, sys
sys.argv = ["launch.py", "mode=compose"]
atexit.register(lambda: print({heavy} & set(sys.modules), file=sys.stderr))
runpy.run_path({str(LAUNCH)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n" and json.loads(done.stdout)["words"] == ["model=tiny"]


@pytest.mark.parametrize("words", [[], ["--config-dir"]])
def test_what_plan_proposes_composes_what_it_predicted_with(tmp_path, words):
    """Each configuration of a search, with its batch, and each single change."""
    config_dir = str(tmp_path) if words else None
    (tmp_path / "seq_len").mkdir()
    (tmp_path / "seq_len" / "s731.yaml").write_text("tokens: 731\n")
    given = expand(["hardware=h200_x1", "offload=none", *["seq_len=s731"] * bool(words)], config_dir)
    for candidate in combinations(given, combined_axes(given), config_dir):
        typed = [word for word in candidate.words if word not in ("--config-dir", config_dir)]
        assert (len(typed) == len(candidate.words)) == (not words)
        predicted = composition(candidate.plan(3))
        assert (
            composition(make_plan(*compose_config([*typed, "batch.micro=3", "mode=compose"], config_dir))) == predicted
        )
    given = {**given, "batch": ["batch=b4"]}
    for change in changes_to_predict(given, plan_of_words(given, config_dir), config_dir):
        again = compose_config([*words_changed(given, change.told), "mode=compose"], config_dir)
        assert composition(make_plan(*again)) == composition(change.plan)


def test_a_record_shows_the_same_object(composed, record, tmp_path, capfd):
    words = ["hardware=h200_x1", "zero_stage=zero3"]
    (expected,) = composed(*words)
    plan = make_plan(*compose_config(words))
    ran, kept = RunFolder(tmp_path / "sweep" / "ran"), RunFolder(tmp_path / "sweep" / "imported")
    ran.start(plan, ["deepspeed", "--master_port", "29500"])
    for folder in (ran, kept):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.finish(record(config=plan.config, choices=plan.choices))
    (tmp_path / "sweep" / "imported" / RunFolder.PLAN).unlink(missing_ok=True)

    def shown(path: Path) -> list[dict]:
        with pytest.raises(SystemExit):
            cli.main(["show", "--plan", str(path)])
        out = capfd.readouterr().out
        return [json.loads(line) for line in out.splitlines()] if path.name == "sweep" else [json.loads(out)]

    as_it_ran = {**expected, "command": ["deepspeed", "--master_port", "29500"]}
    assert shown(ran.path) == [as_it_ran]
    assert shown(kept.path) == [expected]
    assert shown(tmp_path / "sweep") == [expected, as_it_ran]
    assert shlex.join(expected["words"]) == "model=tiny zero_stage=zero3 hardware=h200_x1"
