"""Text of ``memlab explain --time``: the time of a step by kind of work, profiled and predicted."""

from collections.abc import Iterator

from rich.console import Console

from memlab.analyse.explain.time_by_kind import Comparison, KindTime, StepByKind
from memlab.report import units
from memlab.report.terminal_table import show_table
from memlab.report.text import say

COLUMNS = ("kind of work", "profiled", "launches", "predicted", "predicted launches", "predicted / profiled")


def show_time_by_kind(found: Comparison, out: Console) -> None:
    say(_answer(found), out, "bold")
    if found.profiled is not None and found.predicted is None:
        say(f"There is no prediction to compare with: {found.reason}.", out)
    elif found.predicted is None:
        say(f"The step time is not predicted: {found.reason}.", out)
    on = (found.profiled or found.predicted or _NOTHING).on
    title = f"Time of one step on the {on}, rank 0; kernels on different streams run at once, so the sum can exceed it"
    show_table(out, title, COLUMNS, _rows(found.profiled or _NOTHING, found.predicted or _NOTHING))


_NOTHING = StepByKind({}, 0.0, 0.0)


def _answer(found: Comparison) -> str:
    parts = []
    if found.profiled is not None:
        usual = "" if found.usual_seconds is None else f" ({units.seconds(found.usual_seconds)} without the profiler)"
        parts.append(f"A profiled step took {units.seconds(found.profiled.step_seconds)}{usual}.")
    if found.predicted is not None:
        note = f" ({found.predicted.note})" if found.predicted.note else ""
        parts.append(f"The predicted step takes {units.seconds(found.predicted.step_seconds)}{note}.")
    for name, step in (("measured", found.profiled), ("predicted", found.predicted)):
        if step is not None and step.busy_seconds:
            share = units.percent(step.busy_seconds / step.step_seconds)
            parts.append(f"The device is busy for {share} of the {name} step.")
    return " ".join(parts)


def _rows(profiled: StepByKind, predicted: StepByKind) -> Iterator[tuple[str, ...]]:
    for kind in dict.fromkeys([*profiled.kinds, *predicted.kinds]):
        yield kind, *_cells(profiled.kinds.get(kind), predicted.kinds.get(kind))
    both = [step.total if step.kinds else None for step in (profiled, predicted)]
    yield "sum", *_cells(*both)
    busy = [KindTime(step.busy_seconds, 0) if step.busy_seconds else None for step in (profiled, predicted)]
    yield "device busy", *_cells(*busy)
    whole = [KindTime(step.step_seconds, 0) if step.step_seconds else None for step in (profiled, predicted)]
    yield "step", *_cells(*whole)


def _cells(profiled: KindTime | None, predicted: KindTime | None) -> tuple[str, ...]:
    ratio = predicted.seconds / profiled.seconds if profiled and predicted and profiled.seconds else None
    cells = (text for time in (profiled, predicted) for text in _of(time))
    return *cells, "-" if ratio is None else f"{ratio:.2f}"


def _of(time: KindTime | None) -> tuple[str, str]:
    if time is None:
        return "-", "-"
    return units.seconds(time.seconds), f"{time.count:,.0f}" if time.count else ""
