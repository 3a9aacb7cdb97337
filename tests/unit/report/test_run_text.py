"""What a person sees of a run."""

import io

import pytest

from memlab.core.record import LIVE_TENSORS
from memlab.report.run_text import show_run
from memlab.report.text import console
from memlab.report.units import gib


@pytest.fixture
def shown(record, monkeypatch):
    def show(width: int = 120, **changes) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        out = console(io.StringIO())
        show_run(record(**changes), out)
        return out.file.getvalue()

    return show


def row(text: str, first: str) -> list[str]:
    """The cells of the table row that begins with this."""
    rows = [
        [cell.strip() for cell in line.strip("│ ").split("│")] for line in text.splitlines() if line.startswith("│")
    ]
    [found] = [cells for cells in rows if cells[0] == first]
    return found


def test_ranks_that_are_alike_share_a_row(shown, rank):
    text = shown(ranks=[rank(0), rank(1), rank(2, peak_reserved_bytes=2**30), rank(3)])
    assert row(text, "0-1, 3") == ["0-1, 3", "NVIDIA H200", "2.000", "3.000", "4.000", "1.000", "0"]
    assert row(text, "2") == ["2", "NVIDIA H200", "2.000", "1.000", "4.000", "1.000", "0"]
    assert "torch's caching allocator" in text


def test_a_table_fits_a_terminal_of_80_columns_with_every_name_and_figure_whole(shown, rank):
    name = "NVIDIA H100 80GB HBM3"
    text = shown(
        80, ranks=[rank(number, device_name=name, host_peak_bytes=(number + 1) * 2**30) for number in range(8)]
    )
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("2.000") >= 8 and text.count("4.000") >= 8


def test_a_run_id_that_is_longer_than_a_line_is_cut_in_its_middle(shown):
    run_id = "Llama_3.1_8B-zero2-allocator-checkpointing-s1024-b16-lora16-1xH200-47c90967"
    lines = shown(40, run_id=run_id, ranks=[], summary={}, timing={}).splitlines()
    assert max(map(len, lines)) <= 40
    [cut] = [line for line in lines if "\N{HORIZONTAL ELLIPSIS}" in line]
    assert cut.startswith("Llama_3.1_8B") and cut.endswith("47c90967")
    assert run_id in shown(80, run_id=run_id)


def test_phases_are_those_of_the_highest_rank_in_the_order_of_a_run(shown, rank):
    low = {"peak_allocated_bytes": 2**30, "peak_reserved_bytes": 2**30, "end_allocated_bytes": 0}
    high = {**low, "peak_allocated_bytes": 3 * 2**30}
    text = shown(ranks=[rank(0, phases={"forward": low, "model_build": low}), rank(1, phases={"forward": high})])
    assert row(text, "forward") == ["forward", "3.000", "1.000", "0.000"]
    assert text.index("│ model build") < text.index("│ forward")
    assert "backward" not in text


def test_speed_and_where_the_time_went(shown):
    text = shown()
    assert "step 0.500 s (median of 3, 0.400 s to 0.600 s)" in text
    assert "2,048 tokens/s" in text
    assert "took 12.0 s (launch 1.0, training 2.0)" in text


def test_what_a_cpu_run_measured_is_said(shown, rank):
    on_cpu = {"memory_source": LIVE_TENSORS, "device_used_bytes": None, "num_alloc_retries": None}
    text = shown(ranks=[rank(0, **on_cpu), rank(1, **on_cpu)])
    assert "allocated is live tensors" in text
    assert row(text, "0-1") == ["0-1", "NVIDIA H200", "2.000", "3.000", "1.000"]
    assert "retries" not in text and "used" not in text


def test_a_run_that_ended_early_shows_what_there_is(shown, rank):
    unknown = dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "host_peak_bytes"))
    text = shown(
        status="gpu_oom",
        reason="rank 0 in backward [step 2]: no memory",
        ranks=[rank(0, phases={}, **unknown)],
        summary={},
    )
    assert "gpu_oom" in text and "rank 0 in backward [step 2]: no memory" in text
    assert row(text, "0")[2:] == ["4.000", "0"]


def test_a_run_without_ranks_is_its_reason(shown):
    text = shown(status="unsupported", reason="because", ranks=[], summary={}, timing={})
    assert text.splitlines() == ["Unsupported: because.", "tiny-zero2-s512-b1-2xH200-0123abcd  measured: unsupported"]


def test_sizes_are_gib_with_three_figures():
    assert [gib(size) for size in (None, 0, 2**30 // 2, 1234 * 2**30)] == ["-", "0.000", "0.500", "1,234.000"]


PREDICTED_SPEED = {"step_seconds": 0.5, "step_seconds_min": 0.4, "tokens_per_second": 2048.0}


def test_a_predicted_step_says_its_error(shown):
    text = shown(
        source="predicted",
        summary={**PREDICTED_SPEED, "step_seconds_max": 0.6, "step_seconds_lower_bound": 0.1},
        steps={"seconds": [0.5], "basis": "calibrated", "error": {"median": 0.08, "p90": 0.2}},
    )
    line = " ".join(text.split())
    told = "error 8 % median, 20 % in 9 of 10: 0.400 s to 0.600 s; at the datasheet's speed 0.100 s"
    assert f"step 0.500 s (predicted; {told})" in line
    assert "2,048 tokens/s" in line


def test_a_step_without_a_calibration_is_called_a_lower_bound(shown):
    text = shown(
        source="predicted",
        summary={**PREDICTED_SPEED, "step_seconds_max": None, "step_seconds_lower_bound": 0.5},
        steps={"seconds": [0.5], "basis": "lower bound", "basis_reason": "no calibration for it", "error": None},
    )
    assert "step 0.500 s (lower bound: no calibration for it)" in " ".join(text.split())


def test_what_could_not_be_told_is_named_once_with_its_reason(shown, rank):
    unknown = {"model_flops_per_step": "ValueError: no formula for layers of the kind mamba"}
    text = shown(ranks=[rank(0, unknown=unknown), rank(1, unknown=unknown)])
    line = "unknown: model FLOPs and their utilisation (ValueError: no formula for layers of the kind mamba)"
    assert text.count(line) == 1
    assert "unknown:" not in shown()


def test_an_import_that_knows_no_wall_clock_and_no_single_steps_is_shown(shown):
    text = shown(timing={}, steps={})
    assert "step 0.500 s (median of 0, 0.400 s to 0.600 s)" in text and "took" not in text


def test_a_loss_that_is_no_number_is_not_shown(shown, record):
    summary = {**record().summary, "last_loss": None}
    assert "tokens/s" in shown(summary=summary) and "loss" not in shown(summary=summary)


def test_a_prediction_of_another_tool_without_ranges_is_shown(shown, record, rank):
    summary = {**record().summary, "verdict": "edge", "step_seconds_max": None, "fit_probability": 0.5}
    ranks = [rank(0, peak_reserved_bytes=None), rank(1, peak_reserved_bytes=None)]
    text = shown(source="predicted", summary={**summary, "fit_probability_same_gpu": 9}, ranks=ranks)
    assert "not calibrated for this configuration" in " ".join(text.split())


@pytest.mark.parametrize("text", ["[/foo]", "\x1b]52;c;aGFja2Vk\x07", "\x1b[2J", "\u202egnp"])
def test_what_a_record_says_is_printed_and_not_obeyed(shown, rank, text):
    out = shown(run_id=text, reason=text, ranks=[rank(0, device_name=text, reason=text)], steps={"doubts": [text]})
    assert all(letter.isprintable() for letter in out.replace("\n", ""))
    assert out.count("[/foo]") == 4 * (text == "[/foo]")


def test_a_prediction_names_the_versions_that_it_holds_for(shown, record, rank):
    versions = {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.23.0", "peft": "0.21.2"}
    likely = {**record().summary, "verdict": "fits"}
    one = rank(0, peak_reserved_range_bytes=[2**30, 2**30], cold_peak_reserved_bytes=2**30)
    text = shown(source="predicted", environment=versions, summary=likely, ranks=[one])
    wanted = (
        "Predicted for torch 2.13.0, deepspeed 0.19.8, transformers 5.23.0: other versions can reserve more or less."
    )
    assert wanted in " ".join(text.split())
    assert "Predicted for" not in shown(environment=versions)


def test_a_predicted_gpu_without_known_properties_is_named(shown, rank):
    why = "memlab knows no properties of NVIDIA L40"
    assert f"unknown: the GPU's model ({why})" in shown(ranks=[rank(0, unknown={"gpu_model": why})])
