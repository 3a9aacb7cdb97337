"""Terminal output of one run."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from memlab.core.config import to_dict
from memlab.core.record import FIRST_STEP_PHASES, HOST, LIVE_TENSORS, PHASES, Record
from memlab.core.unknown_figures import GPU_MODEL, MODEL_FLOPS, WORK
from memlab.files.conf_files import overrides_of
from memlab.planner.remedies import remedies
from memlab.predict.memory.verdicts import EDGE, FITS
from memlab.report import units
from memlab.report.answers import answer, ranges
from memlab.report.command_changes_text import show_command_changes
from memlab.report.command_text import command_sentences, show_command_phases
from memlab.report.effects_text import effects_sentences
from memlab.report.terminal_table import show_table
from memlab.report.text import say, show_command

RANK_QUANTITIES = {
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "used": "device_used_bytes",
    "host": "host_peak_bytes",
}
PHASE_QUANTITIES = {
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "allocated at its end": "end_allocated_bytes",
}
"""Column -> key of the record."""

TRACED = ("torch", "deepspeed", "transformers")
"""Libraries whose versions decide the predicted memory."""


def show_run(record: Record, console: Console) -> None:
    """Print the answer, the run's status and reason, memory by rank and by phase, and speed."""
    say(answer(record), console, "bold green" if record.status == "ok" else "bold red")
    say(f"{record.run_id}  {record.source}: {record.status}", console)
    if record.reason and record.ranks:  # without ranks, the answer is the reason
        say(record.reason, console, indent=2)
    if record.ranks:
        _show_ranks(record, console)
        if record.command:
            show_command_phases(record, console)
        else:
            _show_phases(record, console)
        sentences = (*command_sentences(record), *_ranges(record), *_speed(record))
        for sentence in (*sentences, *_versions(record), *_unknown(record)):
            say(sentence, console)
    show_command_changes(record, console)
    for sentence in effects_sentences(record):
        say(sentence, console)
    # Remedies are changes of memlab's own training; what a command can change is its script's business.
    is_predictable = bool(record.ranks) and not record.command
    if is_predictable and (record.status == "gpu_oom" or record.summary.get("verdict", FITS) != FITS):
        _show_remedies(record, console)


def _show_remedies(record: Record, console: Console) -> None:
    """Print the changes that reduce the peak, if its breakdown is known, and the command that predicts each change."""
    if found := remedies(record):
        say("Changes that lower the peak most:", console)
    for remedy in found:
        say(f"{remedy.change}: at most {units.about(remedy.nbytes)} GiB ({', '.join(remedy.kinds)})", console, indent=2)
    say("This command predicts what each change saves:", console)
    show_command(["memlab", "plan", "--changes", *overrides_of(record.choices, to_dict(record.config))], console)


def _show_ranks(record: Record, console: Console) -> None:
    """Print a row for each rank; ranks with the same cells share a row."""
    places = _places(record.ranks, RANK_QUANTITIES)
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank in record.ranks:
        quantities = (units.gib(rank[key], places) for key in RANK_QUANTITIES.values())
        retries = "-" if rank["num_alloc_retries"] is None else str(rank["num_alloc_retries"])
        alike.setdefault((rank["device_name"], *quantities, retries), []).append(rank["rank"])
    name = "rank" if len(record.ranks) == 1 else "ranks"
    rows = [(ranges(numbers), *cells) for cells, numbers in alike.items()]
    since = "from process start" if record.config.measure.protocol == "cold" else "of the training steps"
    title = f"Peak memory {since}, GiB ({_meaning(record)})"
    show_table(console, title, [name, "device", *RANK_QUANTITIES, "retries"], rows, left=2)


def _show_phases(record: Record, console: Console) -> None:
    found = {
        phase: [rank["phases"][phase] for rank in record.ranks if phase in rank["phases"]]
        for phase in (*PHASES[:2], *FIRST_STEP_PHASES, *PHASES[2:])
    }
    places = _places([values for phases in found.values() for values in phases], PHASE_QUANTITIES)
    rows = [
        (
            phase.replace("_", " "),
            *(units.gib(max(one[key] for one in phases), places) for key in PHASE_QUANTITIES.values()),
        )
        for phase, phases in found.items()
        if phases
    ]
    show_table(console, "Peak by phase, highest rank, GiB", ["phase", *PHASE_QUANTITIES], rows)


def _places(parts: Sequence[Mapping[str, Any]], quantities: Mapping[str, str]) -> int:
    return units.places(part[key] for part in parts for key in quantities.values())


def _ranges(record: Record) -> list[str]:
    """Write the range of a prediction's reserved memory, and the reserved memory of a training without warm-up."""
    known = [found for rank in record.ranks if (found := rank["peak_reserved_range_bytes"])]
    if "verdict" not in record.summary or not known:
        return []
    low, high = (max(ends) for ends in zip(*known, strict=True))
    likely = max(rank["peak_reserved_bytes"] or 0 for rank in record.ranks)
    cold = max((rank["cold_peak_reserved_bytes"] or 0 for rank in record.ranks), default=0)
    found = []
    if record.summary["verdict"] == EDGE:
        found.append(
            "At the edge: whether it fits depends on when side streams free memory, or on whether the allocator "
            "returns cached memory in time."
        )
    if units.about(low) != units.about(high):
        when = "depending on when side streams free memory"
        found.append(f"Reserved memory lies between {units.about(low)} and {units.about(high)} GiB, {when}.")
    if cold and units.about(cold) != units.about(likely):
        found.append(f"Reserved if the cache is not emptied after start-up: {units.about(cold)} GiB.")
    return found


def _versions(record: Record) -> list[str]:
    """Write the library versions that a prediction is for; empty for a measurement."""
    if "verdict" not in record.summary:
        return []
    known = [f"{name} {record.environment[name]}" for name in TRACED if name in record.environment]
    return [f"Predicted for {', '.join(known)}: other versions can reserve more or less."] if known else []


def _speed(record: Record) -> list[str]:
    summary = record.summary
    if "step_seconds" not in summary:
        return []
    known = [key for key in ("tokens", "samples") if summary.get(f"{key}_per_second") is not None]
    parts = [f"{units.number(summary[f'{key}_per_second'])} {key}/s" for key in known[:1]]
    if summary.get("model_flops_utilization") is not None:
        parts.append(f"model FLOP utilisation {100 * summary['model_flops_utilization']:.1f} %")
    if summary.get("last_loss") is not None:
        parts.append(f"loss {summary['last_loss']:.3f}")
    if summary.get("usd") is not None:
        parts.append(f"{units.usd(summary['usd'])} for this run")
    step = f"step {units.seconds(summary['step_seconds'])} ({_step_detail(record)})"
    return [step, *record.steps.get("doubts", []), *filter(None, [", ".join(parts)]), *_took(record)]


def _unknown(record: Record) -> list[str]:
    """List the quantities that are unknown, with the reason."""
    names = {
        GPU_MODEL: "the GPU's model",
        MODEL_FLOPS: "model FLOPs and their utilisation",
        WORK: "step time",
    }
    reasons = {name: why for rank in record.ranks for name, why in rank.get("unknown", {}).items()}
    return [f"unknown: {names.get(name, name)} ({why})" for name, why in reasons.items()]


def _step_detail(record: Record) -> str:
    """Write the spread of a measured step, or the error of a predicted step, or that it is a lower bound."""
    summary, steps = record.summary, record.steps
    low, high, bound = (summary.get(f"step_seconds_{end}") for end in ("min", "max", "lower_bound"))
    if record.source == "measured":
        return f"median of {len(steps.get('seconds', []))}, {units.seconds(low)} to {units.seconds(high)}"
    if not steps.get("error"):
        return f"lower bound: {steps.get('basis_reason')}"
    median, most = (units.percent(steps["error"][share]) for share in ("median", "p90"))
    doubt = f"; {steps['basis_reason']}" if steps.get("basis_reason") else ""
    return (
        f"predicted; error {median} median, {most} in 9 of 10: "
        f"{units.seconds(low)} to {units.seconds(high)}; at the datasheet's speed {units.seconds(bound)}{doubt}"
    )


def _took(record: Record) -> list[str]:
    """Write the wall-clock time of the run and of its parts; empty for an imported run, which has none."""
    timing, verb = record.timing, "predicted in" if record.source == "predicted" else "took"
    if timing.get("total_s") is None:
        return []
    names = {"launch_s": "launch", "build_s": "model", "init_s": "engine", "train_s": "training"}
    parts = [f"{name} {timing[key]:.1f}" for key, name in names.items() if timing.get(key) is not None]
    return [f"{verb} {timing['total_s']:.1f} s" + f" ({', '.join(parts)})" * bool(parts)]


def _meaning(record: Record) -> str:
    if any(rank["memory_source"] == HOST for rank in record.ranks):
        return "no GPU: only the resident set of each process is known"
    if any(rank["memory_source"] == LIVE_TENSORS for rank in record.ranks):
        return "a CPU: allocated is live tensors, reserved is the process's resident set"
    return "torch's caching allocator" if record.source == "measured" else "predicted"
