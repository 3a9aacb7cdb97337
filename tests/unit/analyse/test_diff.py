"""Diffs of runs: what differs, what it did, what is noise, and which conclusions cannot be drawn."""

import json

import pytest
from folders import MIB, make_config, make_record, write

from memlab.analyse.collect import read_run
from memlab.analyse.diff import compare, planned_run
from memlab.analyse.quantities import Difference, Quantity, interpolate, merge_repeats
from memlab.core.config import Checkpointing, Offload
from memlab.core.config_values import to_dict
from memlab.core.errors import MemlabError
from memlab.core.plan import make_plan
from memlab.report.diff_text import comparison_answer
from memlab.runs.folder import RunFolder

OFFLOAD = {"offload": Offload(optimizer="cpu")}


def saved(folder, config=None, choices=None, **figures):
    return read_run(write(folder, make_record(config, choices, **figures)))


@pytest.fixture
def pair(tmp_path):
    base = saved(tmp_path)
    offloaded = {"zero_stage": "zero2", "offload": "optimizer"}
    return base, saved(tmp_path, make_config(**OFFLOAD), offloaded, allocated=80 * MIB, seconds=1.0)


def test_only_what_differs_is_shown(pair):
    comparison = compare(pair)
    assert [(change.key, change.values) for change in comparison.choices] == [("offload", ("none", "optimizer"))]
    assert [(change.key, change.values) for change in comparison.values] == [("offload.optimizer", ("none", "cpu"))]
    assert "zero_optimization.offload_optimizer.device" in {change.key for change in comparison.deepspeed}
    assert comparison.environment == ()
    assert comparison.warnings == ()


def test_a_run_that_does_not_last_is_warned_of(pair):
    pair[1].summary["verdict"] = "does_not_last"
    comparison = compare(pair)
    assert comparison.warnings == (f"{pair[1].run_id} does not last: its memory grows with each step.",)
    assert comparison_answer(comparison) == "A ran, B does not last."


def test_figures_with_their_noise(pair):
    rows = {row.key: row.differences[0] for row in compare(pair).quantities}
    memory = rows["peak_allocated_bytes"]
    assert (memory.absolute, memory.relative, memory.noise) == (-20 * MIB, -0.2, 2 * MIB)
    assert memory.within_noise is False
    assert rows["backward.peak_allocated_bytes"].absolute == -20 * MIB
    assert rows["step_seconds"].relative == pytest.approx(1.0)
    assert rows["samples_per_second"].relative == pytest.approx(-0.5)
    assert rows["usd_per_million_tokens"].relative == pytest.approx(1.0)


def test_a_difference_within_the_noise_is_called_that(tmp_path):
    base = saved(tmp_path)
    other = saved(tmp_path, make_config(**OFFLOAD), allocated=101 * MIB, seconds=0.501)
    rows = {row.key: row.differences[0] for row in compare([base, other]).quantities}
    assert rows["peak_allocated_bytes"].within_noise is True  # 1 MiB; the ranks differ by 2
    assert rows["step_seconds"].within_noise is True  # 1 ms; two standard errors of the median are 5


def test_noise_of_one_rank_or_one_step_is_not_known(tmp_path):
    assert Difference(Quantity(1.0), Quantity(2.0)).within_noise is None
    assert Difference(Quantity(1.0), Quantity(2.0, 5.0)).within_noise is True


def test_a_share_is_told_of_a_base_that_is_worth_it_only(tmp_path):
    """13 bytes of pinned memory against 27 GiB are +27 GiB, not +225485783200 %."""
    base = saved(tmp_path, host_pinned_bytes=13)
    other = saved(tmp_path, make_config(**OFFLOAD), host_pinned_bytes=27 * 2**30)
    (pinned,) = {row.key: row for row in compare([base, other]).quantities}["host_pinned_bytes"].differences
    assert (pinned.absolute, pinned.relative) == (27 * 2**30 - 13, None)
    (back,) = {row.key: row for row in compare([other, base]).quantities}["host_pinned_bytes"].differences
    assert back.relative == pytest.approx(-1)


def test_environments_differ_in_what_they_are_not_in_how_many_gpus_were_seen(tmp_path):
    runs = [saved(tmp_path), saved(tmp_path, make_config(**OFFLOAD))]
    for run, seen in zip(runs, (["NVIDIA H200"] * 4, ["NVIDIA H200"]), strict=True):
        run.environment = {**run.environment, "gpus": seen}
    runs[1].environment["triton"] = "3.6.0"  # of a run that uses it
    assert compare(runs).environment == compare(runs).warnings == ()
    runs[1].environment["gpus"] = ["NVIDIA H100"]
    (warning,) = compare(runs).warnings
    assert "(gpus: NVIDIA H200 / NVIDIA H100)" in warning


def test_a_prediction_has_no_driver_to_differ_in(tmp_path):
    runs = [saved(tmp_path), saved(tmp_path, make_config(**OFFLOAD))]
    runs[1].environment = {**runs[1].environment, "driver": None, "gpus": []}
    assert compare(runs).environment == ()


def test_more_than_two_runs_are_compared_with_the_first(tmp_path):
    runs = [saved(tmp_path, make_config(tokens), allocated=tokens * MIB) for tokens in (100, 200, 400)]
    rows = {row.key: row for row in compare(runs).quantities}
    assert [each.absolute for each in rows["peak_allocated_bytes"].differences] == [100 * MIB, 300 * MIB]


def test_repeats_make_noise():
    merged = merge_repeats([{"a": Quantity(value, 1.0)} for value in (10.0, 30.0, 11.0)])
    assert merged["a"] == Quantity(11.0, 20.0)  # the median, whatever a single repeat met


def test_interpolation_of_a_price_follows_its_rate():
    low, high = ({"usd_per_million_tokens": Quantity(price)} for price in (1000.0, 1.0))
    assert interpolate(low, high, 0.5)["usd_per_million_tokens"].value == pytest.approx(2 / 1.001)


def test_confounds_come_first(tmp_path):
    base = saved(tmp_path)
    config = make_config(stage=3, checkpointing=Checkpointing(enabled=True), **OFFLOAD)
    other = saved(tmp_path, config)
    other.environment = {**other.environment, "torch": "2.2.2", "hostname_hash": "elsewhere"}
    three, environment = compare([base, other]).warnings
    assert three.startswith("3 axes differ (zero_stage, offload, checkpointing): their effects cannot be separated.")
    assert environment == "The environments differ (torch: 2.9.0 / 2.2.2): they may cause part of the difference."
    by = compare([base, other], by="offload").warnings[0]
    assert by.startswith("These also differ: zero_stage, checkpointing. The effect may not come")


def test_a_run_that_ended_otherwise_and_one_that_is_incomplete_are_told(tmp_path):
    base = saved(tmp_path)
    oom = saved(tmp_path, make_config(tokens=4096), status="gpu_oom")
    base.incomplete = ["no figures of rank 1 (of 2)"]
    told = " ".join(compare([base, oom]).warnings)
    assert "ended as gpu_oom" in told
    assert "no figures of rank 1" in told


def test_the_deepspeed_json_that_ran_is_the_one_compared(pair):
    (RunFolder(pair[0].path).path / RunFolder.DEEPSPEED).write_text(json.dumps({"own": 1}))
    changes = {change.key: change.values for change in compare(pair).deepspeed}
    assert changes["own"] == (1, None)


def test_training_arguments_that_differ_are_those_of_memlabs_own_training(tmp_path):
    base, larger = saved(tmp_path), saved(tmp_path, make_config(micro=4))
    (change,) = compare([base, larger]).training_args
    assert (change.key, change.values) == ("per_device_train_batch_size", (1, 4))
    (RunFolder(base.path).path / RunFolder.TRAINING_ARGS).write_text(json.dumps({"own": 1}))
    assert "own" in {change.key for change in compare([base, larger]).training_args}
    larger.config["training"] = {**larger.config["training"], "loop": "command"}
    assert compare([base, larger]).training_args == ()


@pytest.mark.parametrize("form", ["plan.json", "config.json", "config.yaml"])
def test_configurations_are_compared_before_anything_ran(tmp_path, form):
    sides = []
    for name, config in (("a", make_config()), ("b", make_config(**OFFLOAD))):
        file = tmp_path / name / form
        file.parent.mkdir()
        file.write_text(json.dumps(make_plan(config, {}).to_json() if form == "plan.json" else to_dict(config)))
        sides.append(planned_run(file))
    comparison = compare(sides)
    assert [change.key for change in comparison.values] == ["offload.optimizer"]
    assert comparison.quantities == ()
    assert comparison.warnings == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "unreadable"),
        ("- 1", "not a configuration"),
        ("seed: ${x}", "--resolve"),
        ("sed: 1", "Did you mean 'seed'"),
    ],
)
def test_a_configuration_file_that_cannot_be_used(tmp_path, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(MemlabError, match=message):
        planned_run(file)
