"""Two sets of runs: which points pair, what differs between the sets, and how far memory may grow."""

from collections import Counter
from dataclasses import replace

import pytest
from folders import MIB, make_config, make_record, write

from memlab.analyse.collect import collect
from memlab.analyse.effects import Effects, Pair, effects_of_sets
from memlab.analyse.growth_limit import GrowthLimit
from memlab.analyse.quantities import Difference, Quantity
from memlab.core.config import Allocator, Checkpointing, Hardware, Measure, Offload, Training
from memlab.core.errors import MemlabError


def add(folder, tokens=100, offload="none", status="ok", source="measured", allocated=100, name=None, **parts):
    config = make_config(tokens, offload=Offload(optimizer=offload), **parts)
    config.mode = "measure" if source == "measured" else "predict"
    choices = {"zero_stage": "zero2", "offload": "none" if offload == "none" else "optimizer"}
    record = make_record(config, choices, status, **({"allocated": allocated * MIB} if status == "ok" else {}))
    record = replace(record, source=source)
    path = write(folder, record)
    if name:
        path.rename(folder / name)


def compared(tmp_path, by=None) -> Effects:
    sides = [collect([tmp_path / name]).runs for name in ("a", "b")]
    return effects_of_sets(*sides, names=("a", "b"), by=by)


def allocated(pair) -> float:
    return pair.differences["peak_allocated_bytes"].absolute / MIB


def test_all_points_of_two_sweeps_pair_and_none_is_interpolated(tmp_path):
    for name, more in (("a", 0), ("b", 5)):
        for offload in ("none", "cpu"):
            for tokens in (100, 200):
                add(tmp_path / name, tokens, offload, allocated=tokens + more)
    add(tmp_path / "a", 150)
    effects = compared(tmp_path)
    assert [(allocated(pair), pair.tokens, pair.interpolated) for pair in effects.pairs] == [
        (5, tokens, None) for _ in ("none", "cpu") for tokens in (100, 200)
    ]
    assert Counter(pair.where for pair in effects.pairs) == {"offload=none": 2, "offload=optimizer": 2}
    ((name, reason),) = effects.unpaired
    assert "-s150-" in name and reason == "only in a"
    assert effects.warnings == [] and effects.by == ""


def test_how_and_at_which_price_a_point_was_measured_does_not_matter(tmp_path):
    add(tmp_path / "a")
    prices = Hardware(gpu="A100", gpus=2, memory_gib=80.0, usd_per_gpu_hour=9.0)
    add(tmp_path / "b", source="predicted", allocated=90, hardware=prices, measure=Measure(steps=9, snapshot=True))
    effects = compared(tmp_path)
    assert [allocated(pair) for pair in effects.pairs] == [-10]
    assert effects.warnings == []


def test_a_prediction_pairs_with_a_prediction_where_both_sets_have_one(tmp_path):
    for source, sizes in (("measured", (100, 110)), ("predicted", (200, 230))):
        for name, size in zip("ab", sizes, strict=True):
            add(tmp_path / name, source=source, allocated=size)
    effects = compared(tmp_path)
    assert {pair.where: allocated(pair) for pair in effects.pairs} == {
        "zero_stage=zero2 offload=none measured": 10,
        "zero_stage=zero2 offload=none predicted": 30,
    }


def test_repeats_are_their_median(tmp_path):
    add(tmp_path / "a")
    for repeat, size in ((1, 104), (2, 190), (3, 105)):
        add(tmp_path / "b", allocated=size, measure=Measure(steps=4, repeat=repeat))
    assert [allocated(pair) for pair in compared(tmp_path).pairs] == [5]


def test_a_point_out_of_memory_in_one_set_or_both_has_a_partner(tmp_path):
    for tokens, statuses in ((100, ("ok", "gpu_oom")), (200, ("gpu_oom", "gpu_oom")), (300, ("failed", "ok"))):
        for name, status in zip("ab", statuses, strict=True):
            add(tmp_path / name, tokens, status=status)
    effects = compared(tmp_path)
    assert not effects.pairs and not effects.unpaired
    assert [pair.endings for pair in effects.ended] == [("ok", "gpu_oom"), ("gpu_oom", "gpu_oom"), ("failed", "ok")]


def test_sets_that_differ_in_an_axis_pair_over_all_other_axes(tmp_path):
    for offload in ("none", "cpu"):
        for tokens in (100, 300):
            add(tmp_path / "a", tokens, offload)
        add(tmp_path / "b", 200, offload, allocator=Allocator(conf="expandable_segments:True"))
    effects = compared(tmp_path)
    assert [(pair.tokens, pair.interpolated) for pair in effects.pairs] == [(200, "base")] * 2
    assert effects.by == "allocator"


def test_a_value_of_a_library_that_only_one_set_has_is_an_axis(tmp_path):
    for stage in (1, 2):
        add(tmp_path / "a", stage=stage)
        add(tmp_path / "b", stage=stage, deepspeed={"aio": {"block_size": 4}})
    effects = compared(tmp_path)
    assert (len(effects.pairs), effects.by) == (2, "deepspeed.aio.block_size")


def test_points_of_a_command_pair_by_what_was_composed_and_not_by_the_longest_sample(tmp_path):
    for name, more in (("a", 0), ("b", 5)):
        for tokens in (512, 1024):
            config = make_config(465, training=Training("command", "sft.py"))
            record = make_record(config, allocated=(tokens + more) * MIB)
            told = [{"key": "seq_len.tokens", "composed": tokens, "found": 465}]
            told += [{"key": "checkpointing.reentrant", "composed": False, "found": True}]
            write(
                tmp_path / name, replace(record, run_id=f"sft-s{tokens}", command={"words": [], "disagreements": told})
            )
    effects = compared(tmp_path)
    assert {(pair.tokens, allocated(pair)) for pair in effects.pairs} == {(512, 5), (1024, 5)}
    assert effects.unpaired == [] and effects.warnings == []


def test_several_axes_that_differ_are_told(tmp_path):
    add(tmp_path / "a")
    add(tmp_path / "b", offload="cpu", checkpointing=Checkpointing(enabled=True))
    assert compared(tmp_path).warnings[0].startswith("2 axes differ (offload, checkpointing)")
    (told,) = compared(tmp_path, by="offload").warnings
    assert told.startswith("These also differ: checkpointing.")


def test_two_configurations_for_one_of_the_other_set_are_refused(tmp_path):
    for stage in (1, 2):
        add(tmp_path / "a", stage=stage)
    add(tmp_path / "b", stage=3)
    told = r"a holds 2 configurations for one of the other folder, since the folders differ in zero_stage\."
    with pytest.raises(MemlabError, match=told):
        compared(tmp_path)


def test_a_command_is_the_same_with_another_interpreter_and_has_the_name_of_its_folder(tmp_path):
    for name in "ab":
        for script in ("one", "two"):
            command = Training(loop="command", command=f"/{name}/bin/python {script}.py")
            add(tmp_path / name, training=command, name=script)
    effects = compared(tmp_path)
    assert [pair.where for pair in effects.pairs] == ["one", "two"]
    assert effects.warnings == []


def test_commands_in_folders_of_one_name_pair_though_their_words_differ(tmp_path):
    for name, words, micro in (("a", "--batch 1", 1), ("b", "--batch 2", 2)):
        for script in ("one", "two"):
            command = Training(loop="command", command=f"python {script}.py {words}")
            add(tmp_path / name, training=command, micro=micro, allocated=100 * micro, name=script)
    effects = compared(tmp_path)
    assert [(pair.where, allocated(pair)) for pair in effects.pairs] == [("one", 100), ("two", 100)]
    assert effects.by == "batch"


def grown(base, other, statuses=("ok", "ok"), where="") -> Pair:
    values = {"peak_reserved_bytes": Difference(Quantity(base), Quantity(other))} if set(statuses) == {"ok"} else {}
    return Pair(where, 1, 512, "a", "b", values, endings=statuses)


@pytest.mark.parametrize(
    ("pair", "over_2_percent", "over_5_bytes"),
    [
        (grown(100.0, 102.0), False, False),
        (grown(100.0, 103.0), True, False),
        (grown(1000.0, 1006.0), False, True),
        (grown(100.0, 50.0), False, False),
        (grown(0.0, 1.0), True, False),
        (grown(0.0, 0.0), False, False),
        (grown(0, 0, ("ok", "gpu_oom")), True, True),
        (grown(0, 0, ("ok", "does_not_last")), True, True),
        (grown(0, 0, ("gpu_oom", "ok")), False, False),
    ],
)
def test_memory_grows_over_a_limit(pair, over_2_percent, over_5_bytes):
    assert bool(GrowthLimit("2 %", 0.02, is_share=True).over([pair])) is over_2_percent
    assert bool(GrowthLimit("5", 5.0, is_share=False).over([pair])) is over_5_bytes


def test_the_worst_pair_comes_first():
    pairs = [grown(100.0, 110.0), grown(100.0, 120.0), grown(0, 0, ("ok", "host_oom")), grown(100.0, 101.0)]
    assert GrowthLimit("2 %", 0.02, is_share=True).over(pairs) == [pairs[2], pairs[1], pairs[0]]


@pytest.mark.parametrize(
    "statuses", [("failed", "ok"), ("gpu_oom", "gpu_oom"), ("planned", "planned"), ("ok", "failed")]
)
def test_nothing_to_compare_is_not_within_the_limit(statuses):
    with pytest.raises(MemlabError, match="of no two runs can be compared"):
        GrowthLimit("2 %", 0.02, is_share=True).over([grown(0, 0, statuses)])
