"""Places in a command: filled from the configuration, refused with the nearest name, and never without effect."""

from dataclasses import replace
from pathlib import Path

import pytest

from memlab.core.command_template import check_effects, check_places, command_environment, filled, parse
from memlab.core.config import Allocator, Batch, Config, Model, Training, ZeroStage
from memlab.core.errors import ConfigError


def config(command: str, **groups) -> Config:
    groups = {"model": Model(path="owner/name"), "allocator": Allocator(conf=""), **groups}
    return Config(training=Training(loop="command", command=command), **groups)


def words(command: str, **groups) -> list[str]:
    return filled(config(command, **groups), Path("run/deepspeed.json"), Path("run/output"), 29501)


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
