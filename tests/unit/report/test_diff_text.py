"""A diff begins with its answer and shows what matters; the rest comes with --all."""

import io
import json
import re

import pytest
from folders import make_config, make_record, write
from sweeps import small_sweep

from memlab.analyse.collect import collect, read_run
from memlab.analyse.diff import Comparison, compare
from memlab.analyse.effects import Effects, Pair, effects_by
from memlab.analyse.quantities import Difference, Quantity
from memlab.analyse.run_view import RunView
from memlab.core.basis import Basis
from memlab.report.diff_text import (
    comparison_answer,
    effects_answer,
    growth_line,
    sets_answer,
    show_comparison,
    show_effects,
)
from memlab.report.text import console

GIB = 2**30

POINT = {"hardware": {"gpus": 4}, "seq_len": {"tokens": 512}, "batch": {"micro": 1}}


def run(name: str, reserved=40.0, seconds=0.5, status="ok", **summary) -> RunView:
    """Four GPUs whose ranks differ by 1 GiB of reserved memory; steps that vary by 1 %."""
    ranges = {
        "peak_allocated_bytes": {"max": 30 * GIB, "mean": 30 * GIB, "min": 30 * GIB},
        "peak_reserved_bytes": {"max": reserved * GIB, "mean": reserved * GIB, "min": (reserved - 1) * GIB},
        "device_used_bytes": {"max": (reserved + 1) * GIB, "mean": GIB, "min": reserved * GIB},
        "host_peak_bytes": {"max": 5 * GIB, "mean": 5 * GIB, "min": 5 * GIB},
    }
    figures = {**ranges, "step_seconds": seconds, "usd_per_million_tokens": seconds, "tokens_per_second": 1 / seconds}
    return RunView(
        path=name,
        run_id=name,
        source="measured",
        status=status,
        reason=None,
        fingerprint="",
        isolation="fresh",
        config={"hardware": {"gpus": 4}, "seq_len": {"tokens": len(name)}},
        choices={},
        summary={**figures, **summary} if status == "ok" else {},
        detail=json.dumps([{}, [seconds * share for share in (0.99, 1.0, 1.01)]]),
    )


def shown(comparison: Comparison, monkeypatch, all_figures=False, width=80) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    out = console(io.StringIO())
    show_comparison(comparison, out, all_figures)
    return out.file.getvalue().splitlines()


def test_the_answer_is_what_the_other_run_takes():
    assert comparison_answer(compare([run("a"), run("bb", reserved=30.0, seconds=0.502)])) == (
        "B takes 30.0 GiB of reserved memory (A 40.0 GiB, -25.0 %), "
        "0.502 s a step (A 0.500 s, +0.4 %, within the noise), "
        "$0.50 a million tokens (A $0.50, +0.4 %, within the noise)."
    )


def test_the_same_is_called_that():
    assert "40.0 GiB of reserved memory (as A)" in comparison_answer(compare([run("a"), run("bb", seconds=1.0)]))


def test_a_run_without_figures_is_how_it_ended():
    assert comparison_answer(compare([run("a"), run("bb", status="gpu_oom")])) == "A ran, B ran out of GPU memory."


def test_the_main_figures_are_shown_and_what_changed_by_more_than_the_noise(monkeypatch):
    comparison = compare([run("a", num_alloc_retries=0), run("bb", reserved=30.0, num_alloc_retries=3)])
    lines = shown(comparison, monkeypatch)
    names = [line.split("  ")[0] for line in lines]
    main = ["peak allocated", "peak reserved", "host peak", "step time", "USD per million tokens"]
    assert [name for name in names if name in main] == main
    assert "num alloc retries" in names
    assert not {"device used", "tokens per second"} & set(names)
    assert any(line.endswith("that follow from these: 2 (--all shows them).") for line in lines)
    every = [line.split("  ")[0] for line in shown(comparison, monkeypatch, True)]
    assert {"device used", "tokens per second"} <= set(every)


def test_it_fits_80_columns_and_no_name_breaks(monkeypatch):
    name = "Meta_Llama_3_8B-zero3-expandable-checkpointing-s2001-b1-4xH200-c9e9a0bf"
    lines = shown(compare([run(name), run(name + "-r2", reserved=30.0)]), monkeypatch)
    assert max(map(len, lines)) <= 80
    assert f"A  {name}  (ok)" in lines


def test_the_effect_of_an_axis_is_a_short_sentence():
    differences = [{"peak_reserved_bytes": Difference(Quantity(10.0), Quantity(value))} for value in (8.0, 9.0, 6.0)]
    pairs = [Pair("", 1, 512, "none", "full", each) for each in differences]
    answer = effects_answer(Effects("checkpointing", pairs=pairs))
    assert answer == "full instead of none: -20.0 % reserved memory (median of 3 pairs)."
    assert effects_answer(Effects("offload")) == "offload: no two runs differ only in it."


def test_quantities_that_change_alike_share_their_words_and_the_table_has_the_other_options():
    half = Difference(Quantity(2.0, 0.1), Quantity(1.0))
    differences = {"peak_reserved_bytes": half, "step_seconds": half, "usd_per_million_tokens": half}
    pairs = [Pair("", 1, 512, "a", other, differences) for other in ("b", "c", "d", "e", "e")]
    assert effects_answer(Effects("offload", pairs=pairs)) == (
        "e instead of a: -50.0 % reserved memory and step time and price (median of 2 pairs); 3 more in the table."
    )


def test_changes_within_the_noise_are_called_that():
    pair = Pair("", 1, 512, "a", "b", {"step_seconds": Difference(Quantity(2.0, 0.1), Quantity(2.02))})
    assert effects_answer(Effects("offload", pairs=[pair])).startswith(
        "b instead of a: +1.0 % step time (within the noise) (one pair)"
    )


def test_bounds_are_written_as_such_and_not_compared(monkeypatch):
    """Predicted without a calibration, ZeRO-3 was "2 to 8 % faster" than ZeRO-2; it takes 1.4 to 3.2 times as long."""
    runs = run("a"), run("bb", reserved=30.0, seconds=0.48)
    for each in runs:
        each.source, each.steps = "predicted", {"basis_reason": "no calibration for A100"}
    comparison = compare(runs)
    assert comparison_answer(comparison) == (
        "B takes 30.0 GiB of reserved memory (A 40.0 GiB, -25.0 %); step time: not known (no calibration for A100)."
    )
    step = next(line for line in shown(comparison, monkeypatch, width=100) if line.startswith("step time"))
    assert re.split(r"\s{2,}", step.strip())[:4] == ["step time", "at least 0.500 s", "at least 0.480 s", "not known"]
    for each, stage in zip(runs, ("zero2", "zero3"), strict=True):
        each.choices, each.config = {"zero_stage": stage}, {**POINT, "zero_stage": {"stage": stage}}
    effects = effects_by(runs, "zero_stage")
    assert effects_answer(effects) == (
        "zero3 instead of zero2: -25.0 % reserved memory (one pair); step time: not known (no calibration for A100)."
    )
    assert not {"step_seconds", "tokens_per_second", "usd_per_million_tokens"} & set(effects.pairs[0].differences)


def test_times_with_an_error_are_compared_and_their_error_is_noise():
    runs = run("a"), run("bb", seconds=0.55)
    for each in runs:
        each.source, each.steps = "predicted", {"error": {"p90": 0.23}}
    assert "0.550 s a step (A 0.500 s, +10.0 %, within the noise)" in comparison_answer(compare(runs))


def test_both_columns_are_there_where_one_side_is_empty(monkeypatch):
    """Default against expandable, the first question: the default sets nothing."""
    runs = run("a"), run("bb")
    for each, conf in zip(runs, ("", "expandable_segments:True"), strict=True):
        each.config["allocator"] = {"conf": conf}
    lines = shown(compare(runs), monkeypatch)
    assert ["allocator.conf", "(empty)", "expandable_segments:True"] in [
        re.split(r"\s{2,}", line.strip()) for line in lines
    ]


def test_groups_come_before_values_and_what_they_compose_into_comes_last(monkeypatch, tmp_path):
    runs = [
        read_run(write(tmp_path, make_record(make_config(micro=micro, stage=stage), {"zero_stage": f"zero{stage}"})))
        for stage, micro in ((2, 1), (3, 4))
    ]
    lines = [re.split(r"\s{2,}", line.strip()) for line in shown(compare(runs), monkeypatch)]
    rows = [
        ["zero_stage", "zero2", "zero3"],
        ["batch.micro", "1", "4"],
        ["zero_optimization.stage", "2", "3"],
        ["per_device_train_batch_size", "1", "4"],
    ]
    assert [row for row in lines if row in rows] == rows


def test_pairs_are_named_by_what_differs_beside_the_axis_and_the_batch(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "120")
    out = console(io.StringIO())
    show_effects(effects_by(collect([small_sweep(tmp_path)]).runs, "allocator"), out)
    text = " ".join(out.file.getvalue().split())
    assert "6 pairs; * marks a difference within the noise; configuration small zero2 measured; from ->" in text


@pytest.mark.parametrize("all_figures", [False, True])
def test_effects_without_pairs_have_no_empty_tables(monkeypatch, all_figures):
    monkeypatch.setenv("COLUMNS", "80")
    out = console(io.StringIO())
    show_effects(Effects("offload", unpaired=[("run", "because")]), out, all_figures)
    lines = out.file.getvalue().splitlines()
    assert lines == ["offload: no two runs differ only in it.", "1 point without a partner (run: because)."]


def test_many_points_without_a_partner_are_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = console(io.StringIO())
    show_effects(
        Effects("", ("a", "b"), unpaired=[(f"run{n}", "only in a") for n in range(9)] + [("last", "failed")]), out
    )
    assert out.file.getvalue().splitlines() == [
        "a and b share no point that ran in both.",
        "10 points without a partner (run0, run1, run2 and 6 more: only in a; last: failed).",
    ]


def test_steps_of_two_sets_that_are_bounds_are_not_compared(monkeypatch):
    memory = {"peak_reserved_bytes": Difference(Quantity(10.0), Quantity(9.0))}
    timed = {**memory, "step_seconds": Difference(Quantity(2.0), Quantity(1.0))}
    pairs = [Pair("", 1, 512, "a", "b", each) for each in (memory, memory, timed)]
    effects = Effects("", ("a", "b"), pairs=pairs, bounds=[Basis("lower bound", reason="no calibration for A100")])
    assert sets_answer(effects) == (
        "3 pairs, b instead of a: median and largest change of peak reserved -10.0 % and -10.0 %, "
        "step time -50.0 % and -50.0 % (of 1 pair); step time of the other pairs: not known (no calibration for A100)."
    )


def with_command(name: str, command: str | None) -> RunView:
    loop = {"loop": "command", "command": command} if command else {"loop": "memlab", "command": ""}
    each = run(name)
    each.config["training"] = loop
    return each


def test_of_two_commands_only_the_words_that_differ_are_shown(monkeypatch):
    command = "deepspeed --num_gpus {} train.py --deepspeed {} --bf16 true --max_length 1024"
    runs = [with_command("a", command.format(1, "zero2.json")), with_command("b", command.format(2, "zero3.json"))]
    row = next(line for line in shown(compare(runs), monkeypatch, width=120) if "training.command" in line)
    cells = re.split(r"\s{2,}", row.strip())
    assert cells == ["training.command", "--num_gpus 1 --deepspeed zero2.json", "--num_gpus 2 --deepspeed zero3.json"]


def test_a_command_beside_a_run_of_memlab_has_no_words_to_compare(monkeypatch):
    lines = shown(compare([with_command("a", "python train.py"), with_command("b", None)]), monkeypatch)
    assert not any("training.command" in line for line in lines)
    assert any("training.loop" in line for line in lines)


def test_growth_from_almost_nothing_is_a_size_since_it_is_no_share():
    sizes = Difference(Quantity(2.0**16, small=2.0**20), Quantity(2.0**28, small=2.0**20))
    pair = Pair("zero2", 1, 512, "a", "b", {"peak_reserved_bytes": sizes})
    line = growth_line([pair], 3, "2 %", {})
    assert line.endswith("1 of 3 pairs, worst zero2 batch 1 x 512 tokens (+0.250 GiB, 0.000 to 0.25 GiB).")
