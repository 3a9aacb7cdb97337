"""One run, for a person at a terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from memlab.conf_files import overrides_of
from memlab.predict.remedies import remedies
from memlab.predict.verdicts import FITS
from memlab.record import FIRST_STEP_PHASES, LIVE_TENSORS, PHASES, Record
from memlab.report.units import gib
from memlab.unknown import MODEL_FLOPS, WORK


def show_run(record: Record, console: Console) -> None:
    """Memory by rank and by phase, speed, and how the run ended."""
    style = "green" if record.status == "ok" else "red"
    console.print(f"[bold]{record.run_id}[/]  [{style}]{record.status}[/]", highlight=False)
    if record.reason:
        console.print(f"  {record.reason}", highlight=False, markup=False)
    if record.ranks:
        console.print(_memory_table(record))
        console.print(_phase_table(record))
        console.print(_verdict_line(record), highlight=False)
        console.print(_speed_line(record), highlight=False)
        for line in _unknown_lines(record):
            console.print(line, highlight=False, markup=False)
    if record.source == "predicted" and record.summary.get("verdict", FITS) != FITS:
        _show_remedies(record, console)


def _show_remedies(record: Record, console: Console) -> None:
    """What could be changed so that it fits, from what the peak is made of."""
    console.print(f"{record.summary['verdict'].replace('_', ' ')}; what takes off the most of the peak:")
    for remedy in remedies(record):
        of = ", ".join(remedy.kinds)
        console.print(f"  {remedy.change}: at most {gib(remedy.nbytes)} GiB ({of})", highlight=False)
    command = " ".join(["memlab plan --changes", *overrides_of(record.choices, record.config)])
    console.print(f"each of them predicted: {command}", highlight=False, markup=False, soft_wrap=True)


def _memory_table(record: Record) -> Table:
    table = Table(title=f"Peak memory of the training steps, GiB ({_meaning(record)})", title_justify="left")
    columns = {
        "rank": lambda rank: str(rank["rank"]),
        "device": lambda rank: rank["device_name"],
        "allocated": lambda rank: gib(rank["peak_allocated_bytes"]),
        "reserved": lambda rank: gib(rank["peak_reserved_bytes"]),
        "used (driver)": lambda rank: gib(rank["device_used_bytes"]),
        "host": lambda rank: gib(rank["host_peak_bytes"]),
        "retries": lambda rank: "-" if rank["num_alloc_retries"] is None else str(rank["num_alloc_retries"]),
    }
    for name in columns:
        table.add_column(name, justify="left" if name == "device" else "right")
    for rank in record.ranks:
        table.add_row(*(cell(rank) for cell in columns.values()))
    return table


def _phase_table(record: Record) -> Table:
    table = Table(title="Peak by phase, highest rank, GiB", title_justify="left")
    for name in ("phase", "allocated", "reserved", "allocated at its end"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    order = (*PHASES[:2], *FIRST_STEP_PHASES, *PHASES[2:])
    for phase in order:
        found = [rank["phases"][phase] for rank in record.ranks if phase in rank["phases"]]
        if found:
            keys = ("peak_allocated_bytes", "peak_reserved_bytes", "end_allocated_bytes")
            table.add_row(phase.replace("_", " "), *(gib(max(one[key] for one in found)) for key in keys))
    return table


def _verdict_line(record: Record) -> str:
    """Of a prediction: whether it fits, how sure that is, and reserved memory as an interval."""
    if "verdict" not in record.summary:
        return ""
    parts = [record.summary["verdict"].replace("_", " ").replace("edge", "at the edge")]
    if (probability := record.summary.get("fit_probability")) is not None:
        parts.append(
            f"fits with a probability of {probability:.0%}, by the errors of earlier predictions "
            f"({record.summary['fit_probability_from']} configurations)"
        )
    low, high = (max(ends) for ends in zip(*(rank["peak_reserved_range_bytes"] for rank in record.ranks), strict=True))
    parts.append(f"reserved between {gib(low)} and {gib(high)} GiB" if low != high else "")
    cold = [rank["cold_peak_reserved_bytes"] for rank in record.ranks if rank["cold_peak_reserved_bytes"]]
    parts.append(f"{gib(max(cold))} GiB from process start, without an emptied cache" if cold else "")
    return "; ".join(part for part in parts if part)


def _speed_line(record: Record) -> str:
    summary = record.summary
    if "step_seconds" not in summary:
        return ""
    parts = [
        f"step {summary['step_seconds']:.4g} s ({_how_sure(record)})",
        f"{summary['tokens_per_second']:,.0f} tokens/s",
    ]
    if "model_flops_utilization" in summary:
        parts.append(f"model FLOP utilisation {summary['model_flops_utilization']:.1%}")
    if "last_loss" in summary:
        parts.append(f"loss {summary['last_loss']:.3f}")
    if summary.get("usd") is not None:
        parts.append(f"${summary['usd']:.2f}")
    parts += [f"[yellow]{doubt}[/]" for doubt in record.steps.get("doubts", [])]
    return "  ".join(parts) + f"\ntook {record.timing['total_s']:.1f} s{_where_time_went(record.timing)}"


def _unknown_lines(record: Record) -> list[str]:
    """What could not be told beside memory, and why."""
    names = {MODEL_FLOPS: "model FLOPs and their utilisation", WORK: "step time"}
    reasons = {name: why for rank in record.ranks for name, why in rank.get("unknown", {}).items()}
    return [f"unknown: {names.get(name, name)} ({why})" for name, why in reasons.items()]


def _how_sure(record: Record) -> str:
    """Of a measured step its spread; of a predicted one the error of predictions like it, or that it is a bound."""
    summary, steps = record.summary, record.steps
    if record.source == "measured":
        between = f"{summary['step_seconds_min']:.4g} to {summary['step_seconds_max']:.4g}"
        return f"median of {len(steps['seconds'])}, {between}"
    if not steps.get("error"):
        return f"lower bound: {steps.get('basis_reason')}"
    error = steps["error"]
    between = f"{summary['step_seconds_min']:.3g} to {summary['step_seconds_max']:.3g}"
    bound = f"at the datasheet's speed {summary['step_seconds_lower_bound']:.3g}"
    doubt = f"; {steps['basis_reason']}" if steps.get("basis_reason") else ""
    return f"predicted; error {error['median']:.0%} median, {error['p90']:.0%} in 9 of 10: {between}; {bound}{doubt}"


def _where_time_went(timing: dict[str, Any]) -> str:
    names = {"launch_s": "launch", "build_s": "model", "init_s": "engine", "train_s": "training"}
    parts = [f"{name} {timing[key]:.1f}" for key, name in names.items() if key in timing]
    return f" ({', '.join(parts)})" if parts else ""


def _meaning(record: Record) -> str:
    if any(rank["memory_source"] == LIVE_TENSORS for rank in record.ranks):
        return "a CPU: allocated is live tensors, reserved is the process's resident set"
    return "torch's caching allocator" if record.source == "measured" else "predicted"
