"""``memlab plan``: which configurations it walks, which changes it tries, and what it refuses. Nothing is predicted."""

import sys

import pytest

from memlab.cli.commands.plan import AXES, combinations, combined_axes
from memlab.cli.compose import compose_config
from memlab.cli.main import main
from memlab.cli.override_words import expand
from memlab.cli.single_changes import changes_to_predict, composes_command
from memlab.core.config import Config
from memlab.core.config_values import flat, to_dict
from memlab.core.errors import MemlabError
from memlab.core.plan import make_plan
from memlab.files.conf_files import options_of as shipped
from memlab.planner.changes import CHANGES

HERE = ("model=tiny", "hardware=h100_x8")


def test_the_axes_are_walked_unless_they_are_settled():
    axes = combined_axes(expand([*HERE, "zero_stage=zero2,zero3", "offload=none", "seq_len.tokens=512,1024"]))
    assert axes == {
        "zero_stage": ["zero_stage=zero2", "zero_stage=zero3"],
        "seq_len.tokens": ["seq_len.tokens=512", "seq_len.tokens=1024"],
        "checkpointing": ["checkpointing=none", "checkpointing=full"],
        "allocator": ["allocator=default", "allocator=expandable"],
    }


def test_a_value_of_an_axis_settles_it():
    assert "zero_stage" not in combined_axes(expand([*HERE, "zero_stage.stage=2"]))


def test_combinations_that_mean_nothing_are_left_out():
    given = expand([*HERE, "checkpointing=none", "allocator=default"])
    found = [candidate.options for candidate in combinations(given, combined_axes(given))]
    assert {"zero_stage": "zero0", "offload": "optimizer"} not in found
    assert [options["zero_stage"] for options in found if options["offload"] == "all"] == ["zero3"]
    assert len(found) == 4 + 3 + 1


def test_several_machines(capsys):
    given = expand(["model=tiny", "hardware=h100_x8,h200_x8", "zero_stage=zero3", "offload=none"])
    candidates = combinations(given, combined_axes(given))
    assert {(each.options["hardware"], each.config.hardware.memory_gib) for each in candidates} == {
        ("h100_x8", 79.19),
        ("h200_x8", 139.8),
    }


def test_every_change_and_every_axis_is_there():
    for word in [word for word, _, _ in CHANGES] + [f"{group}={each}" for group in AXES for each in AXES[group]]:
        key, _, option = word.partition("=")
        assert option in shipped(key) or key in flat(to_dict(Config())), word


def changes(*words):
    given = expand([*HERE, *words])
    config, choices = compose_config([*HERE, *words, "mode=predict"])
    return [change.told for change in changes_to_predict(given, make_plan(config, choices))]


def test_the_changes_that_mean_something():
    found = changes("zero_stage=zero2", "offload=none", "checkpointing=none", "batch.micro=5")
    assert {"checkpointing=full", "allocator=expandable", "zero_stage=zero3", "offload=optimizer"} <= set(found)
    assert "batch.micro=2" in found
    assert not {"zero_stage=zero1", "offload=all", "attention=sdpa"} & set(found)


def test_a_change_keeps_the_other_words():
    given = expand([*HERE, "zero_stage=zero3", "offload=all", "batch=b4", "seq_len.tokens=77"])
    config, choices = compose_config([*HERE, "zero_stage=zero3", "offload=all", "batch=b4", "seq_len.tokens=77"])
    plans = {change.told: change.plan for change in changes_to_predict(given, make_plan(config, choices))}
    assert not {"offload=optimizer", "zero_stage=zero2"} & set(plans)
    assert plans["batch.micro=2"].config.seq_len.tokens == 77
    assert plans["checkpointing=full"].config.batch.micro == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hardware=a100_80_x8"], "Did you mean 'a100_80g_x8'"),
        ([*HERE, "batch=b4"], "'batch': memlab plan searches the batch"),
        ([*HERE, "batch.micro=1,2"], "'batch.micro': memlab plan searches the batch"),
        (["mode=measure"], "'mode': memlab plan always predicts"),
        (["sweep.prune=false"], "'sweep.prune': memlab plan always predicts"),
        (["--changes", *HERE, "zero_stage=zero2,zero3"], "give 'zero_stage' one value"),
        (["--changes", *HERE, "zero_stage=zero2", "offload=param"], "only ZeRO stage 3 partitions parameters"),
        (["hardware=cpu"], "None of these combinations can be predicted"),
    ],
)
def test_what_is_refused(words, message, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["plan", *words])
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--changes"], ["seq_len.tokens=512,1024"]])
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.path=../../etc/passwd", "model.path=../../etc/passwd: no such folder"),
        ("predict.calibrate=/nonexistent", "predict.calibrate=/nonexistent: no such file or folder."),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_walked(words, word, message, capsys):
    with pytest.raises(SystemExit) as left:
        main(["plan", "model=hf", "model.path=gpt2", "hardware=h100_x8", word, *words])
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"memlab: {message}")


COMMAND = (
    "hardware=h100_x1",
    "training=command",
    'training.command="python train.py --deepspeed {deepspeed_json} --micro {batch.micro}"',
)


def options_of(*words):
    given = expand([*COMMAND, *words])
    return [candidate.options for candidate in combinations(given, combined_axes(given))]


def test_a_command_is_planned_over_what_reaches_it():
    """Through its DeepSpeed JSON: stages and offload that DeepSpeed reads, each once."""
    assert options_of() == [
        {"zero_stage": stage, "offload": offload}
        for stage, offloads in (
            ("zero0", ["none"]),
            ("zero1", ["none", "optimizer"]),
            ("zero2", ["none", "optimizer"]),
            ("zero3", ["none", "optimizer", "all"]),
        )
        for offload in offloads
    ]
    assert len(options_of("zero_stage=zero3", "offload=none", "allocator=default,expandable")) == 2


def test_a_place_is_an_axis_of_a_command():
    command = 'training.command="python train.py {batch.micro} {checkpointing.enabled}"'
    given = expand(["hardware=h100_x1,h200_x1", "training=command", command])
    assert list(combined_axes(given)) == ["hardware", "checkpointing"]


def test_a_command_may_have_any_name(tmp_path):
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "mine.yaml").write_text("loop: command\ncommand: python train.py {batch.micro}\n")
    given = expand(["hardware=h100_x1", "training=mine"], str(tmp_path))
    assert composes_command(given, str(tmp_path)) and combined_axes(given, str(tmp_path)) == {}
    with pytest.raises(MemlabError, match="not both"):
        composes_command(expand(["training=mine,memlab"], str(tmp_path)), str(tmp_path))


def test_single_changes_of_a_command_are_those_that_reach_it():
    words = [*COMMAND, "zero_stage=zero2", "offload=none"]
    config, choices = compose_config([*words, "mode=predict", "measure=quick"])
    found = [
        change.told for change in changes_to_predict(expand([*words, "measure=quick"]), make_plan(config, choices))
    ]
    assert found == [
        *("allocator=expandable", "zero_stage=zero3", "zero_stage.reduce_bucket_size=50000000", "offload=optimizer")
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"{sys.executable} train.py", "batch.micro does not reach training.command"),
        ("python train.py {batch.mirco}", "Did you mean 'batch.micro'?"),
        ("bake train.py {batch.micro}", "no program 'bake' on the path"),
    ],
)
def test_a_command_that_cannot_be_planned_is_refused(command, message, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["plan", "training=command", f'training.command="{command}"', "hardware=h100_x1"])
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_a_plan_of_a_command_names_its_machine(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "training=command", 'training.command="python train.py {batch.micro}"'])
    assert "add hardware=a100_80g_x8" in capsys.readouterr().err
