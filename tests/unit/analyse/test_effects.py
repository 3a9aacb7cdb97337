"""The effect of one axis over a sweep: pairs, their range, interpolation, and who has no partner."""

import time
from dataclasses import replace

import pytest
from folders import MIB, make_config, make_record, write

from memlab.analyse.collect import collect
from memlab.analyse.diff import compare
from memlab.analyse.effects import effects_by
from memlab.analyse.identity import TOKENS, axis_value, differing_axes, select, what_varies
from memlab.analyse.run_view import value_at
from memlab.analyse.table import points_table
from memlab.core.config import Measure, Offload
from memlab.core.errors import MemlabError


def add(folder, tokens, offload="none", status="ok", **parts):
    allocated = (100 if offload == "none" else 50) * MIB + tokens * MIB
    config = make_config(tokens, offload=Offload(optimizer=offload), **parts)
    choices = {"zero_stage": "zero2", "offload": "none" if offload == "none" else "optimizer"}
    write(folder, make_record(config, choices, status, **({"allocated": allocated} if status == "ok" else {})))


def runs_of(folder):
    return collect([folder]).runs


def test_pairs_their_range_and_the_lonely(tmp_path):
    for tokens in (100, 200):
        add(tmp_path, tokens)
        add(tmp_path, tokens, "cpu")
    add(tmp_path, 300, micro=4)
    effects = effects_by(runs_of(tmp_path), "offload")
    assert [(pair.tokens, pair.base, pair.other) for pair in effects.pairs] == [
        (100, "none", "optimizer"),
        (200, "none", "optimizer"),
    ]
    (allocated,) = (each for each in effects.ranges if each.key == "peak_allocated_bytes")
    assert (allocated.lowest, allocated.highest) == (-50 / 200, -50 / 300)
    assert (allocated.pairs, allocated.within_noise) == (2, 0)
    (where,) = {pair.where for pair in effects.pairs}
    assert where in effects.configurations and "offload" not in where
    ((run_id, reason),) = effects.unpaired
    assert "s300-b4" in run_id
    assert reason == "no run differs from it in offload alone"


def test_offset_grids_are_interpolated_and_nothing_is_extrapolated(tmp_path):
    for tokens in (100, 200):
        add(tmp_path, tokens)
    add(tmp_path, 150, "cpu")
    add(tmp_path, 250, "cpu")
    effects = effects_by(runs_of(tmp_path), "offload")
    at_150, at_200 = effects.pairs
    assert (at_150.tokens, at_150.interpolated) == (150, "base")
    assert at_150.differences["peak_allocated_bytes"].absolute == -50 * MIB
    assert (at_200.tokens, at_200.interpolated) == (200, "other")
    assert [reason for _, reason in effects.unpaired] == [
        "no measurement of optimizer at or around 100 tokens",
        "no measurement of none at or around 250 tokens",
    ]


def test_an_out_of_memory_is_no_partner(tmp_path):
    add(tmp_path, 100)
    add(tmp_path, 100, "cpu", status="gpu_oom")
    effects = effects_by(runs_of(tmp_path), "offload")
    assert not effects.pairs and not effects.unpaired
    assert [pair.endings for pair in effects.ended] == [("ok", "gpu_oom")]


def test_a_repeat_that_ran_out_of_memory_counts_only_among_most(tmp_path):
    add(tmp_path, 100)
    for repeat, status in ((1, "gpu_oom"), (2, "ok"), (3, "failed")):
        add(tmp_path, 100, "cpu", status, measure=Measure(steps=4, repeat=repeat))
    assert len(effects_by(runs_of(tmp_path), "offload").pairs) == 1
    add(tmp_path, 100, "cpu", "gpu_oom", measure=Measure(steps=4, repeat=4))
    (pair,) = effects_by(runs_of(tmp_path), "offload").ended
    assert pair.endings == ("ok", "gpu_oom")


def test_other_environments_are_told(tmp_path):
    add(tmp_path, 100)
    add(tmp_path, 100, "cpu")
    runs = runs_of(tmp_path)
    runs[0].environment = {**runs[0].environment, "torch": "2.2.2"}
    assert effects_by(runs, "offload").warnings[0].startswith("The environments differ (torch")


def test_the_sequence_length_can_be_the_axis(tmp_path):
    add(tmp_path, 100)
    add(tmp_path, 200)
    (pair,) = effects_by(runs_of(tmp_path), "seq_len.tokens").pairs
    assert pair.differences["peak_allocated_bytes"].absolute == 100 * MIB


def test_a_value_of_a_library_is_an_axis(tmp_path):
    """Also where one run leaves it to the library, and where the key is deeper than those of memlab."""
    for tokens in (100, 200):
        add(tmp_path, tokens)
        add(tmp_path, tokens, deepspeed={"aio": {"block_size": 4}})
    runs = runs_of(tmp_path)
    assert differing_axes(runs[:2]) in (["deepspeed.aio.block_size"], ["seq_len", "deepspeed.aio.block_size"])
    pairs = effects_by(runs, "deepspeed.aio.block_size").pairs
    assert [(pair.tokens, pair.base, pair.other) for pair in pairs] == [(100, "4", "null"), (200, "4", "null")]
    assert what_varies(runs) == ["deepspeed.aio.block_size"]


def test_a_key_of_the_users_own_is_an_axis(tmp_path):
    for tag in ("first", "second try"):
        add(tmp_path, 100, own={"tag": tag})
    (pair,) = effects_by(runs_of(tmp_path), "tag").pairs
    assert (pair.base, pair.other) == ("first", "second try")


def test_an_unknown_axis(tmp_path):
    add(tmp_path, 100)
    with pytest.raises(MemlabError, match="Did you mean 'offload'"):
        effects_by(runs_of(tmp_path), "offlod")


def test_select(tmp_path):
    add(tmp_path, 100)
    add(tmp_path, 200, "cpu")
    runs = runs_of(tmp_path)
    assert len(select(runs, ["offload=none"])) == 1
    assert len(select(runs, ["seq_len.tokens=200", "status=ok"])) == 1
    with pytest.raises(MemlabError, match="Did you mean 'offload'"):
        select(runs, ["offlod=none"])


def test_predictions_are_paired_with_measurements(tmp_path):
    add(tmp_path, 100)
    record = make_record(make_config(100, mode="predict"), {"zero_stage": "zero2", "offload": "none"})
    record.source = "predicted"
    write(tmp_path, record)
    (pair,) = effects_by(runs_of(tmp_path), "mode").pairs
    assert (pair.base, pair.other) == ("measured", "predicted")
    assert pair.differences["peak_allocated_bytes"].absolute == -100 * MIB


def test_repeats_are_one_point_whose_spread_is_its_noise(tmp_path):
    for repeat, allocated in ((1, 100), (2, 110)):
        record = make_record(make_config(100, measure=Measure(steps=4, repeat=repeat)), allocated=allocated * MIB)
        write(tmp_path, record)
    offloaded = make_config(100, offload=Offload(optimizer="cpu"))
    write(tmp_path, make_record(offloaded, {"zero_stage": "zero2", "offload": "optimizer"}, allocated=98 * MIB))
    (pair,) = effects_by(runs_of(tmp_path), "offload").pairs
    difference = pair.differences["peak_allocated_bytes"]
    assert (difference.absolute, difference.noise, difference.within_noise) == (-7 * MIB, 10 * MIB, True)


def test_thousands_of_options_take_seconds(tmp_path):
    """A sweep over learning rates has as many configurations as runs: nothing may compare each with each."""
    add(tmp_path, 100)
    [run] = runs_of(tmp_path)
    rates = [{**run.config, "optimizer": {**run.config["optimizer"], "lr": 1e-6 * (1 + n)}} for n in range(3000)]
    began = time.process_time()
    effects = effects_by([replace(run, config=config) for config in rates], "optimizer")
    assert len(effects.pairs) == 2999
    assert len({pair.other for pair in effects.pairs} | {effects.pairs[0].base}) == 3000
    assert time.process_time() - began < 10


def test_an_option_is_named_with_the_values_that_its_parts_differ_in(tmp_path):
    """Two runs of one option differ in a value of it: the option alone would name both."""
    for tokens in (100, 200):
        add(tmp_path, tokens)
        add(tmp_path, tokens, "cpu")
    runs = [
        replace(run, config={**run.config, "offload": {**run.config["offload"], "ratio": 0.5}})
        if value_at(run.config, "offload.optimizer") == "cpu" and value_at(run.config, "seq_len.tokens") == 200
        else run
        for run in runs_of(tmp_path)
    ]
    found = {(pair.base, pair.other) for pair in effects_by(runs, "offload").pairs}
    assert found == {("none", "optimizer"), ("none", "optimizer ratio=0.5")}  # 1.0 is the value of the option


def test_keys_of_ones_own_are_axes_under_their_own_names(tmp_path):
    for tokens, slow in ((100, True), (100, False), (200, True), (200, False)):
        add(tmp_path, tokens, own={"schedule": {"slow": slow, "steps": 7}, "note": "a"})
    runs = runs_of(tmp_path)
    assert what_varies(runs) == differing_axes([run for run in runs if value_at(run.config, TOKENS) == 100])
    assert what_varies(runs) == ["schedule.slow"]
    assert {axis_value(run, "schedule.slow") for run in runs} == {True, False} and not hasattr(runs[0].config, "own")
    assert [pair.tokens for pair in effects_by(runs, "schedule.slow").pairs] == [100, 200]
    assert {change.key for change in compare(runs[:2]).values} <= {"schedule.slow", TOKENS}
    assert "schedule.slow" in points_table(runs).columns
    assert len(select(runs, ["schedule.slow=True", "note=a"])) == 2
