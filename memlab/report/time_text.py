"""Text of ``memlab explain --time``: the time of a step by kind of work, profiled and predicted."""

from collections.abc import Iterator

from rich.console import Console

from memlab.analyse.explain.time_by_kind import KindTime, StepByKind, TimeComparison
from memlab.report import units
from memlab.report.text import say, show_table

COLUMNS = ("kind of work", "profiled", "launches", "predicted", "predicted launches", "predicted / profiled")


def show_time_by_kind(found: TimeComparison, out: Console) -> None:
    say(" ".join(_answer(found)), out, "bold")
    if found.profiled is not None and found.predicted is None:
        say(f"There is no prediction to compare with: {found.reason}.", out)
    elif found.predicted is None:
        say(f"The step time is not predicted: {found.reason}.", out)
    elif found.profiled is not None and found.profiled.busy_seconds:
        say(_difference(found, found.profiled, found.predicted), out)
    on = (found.profiled or found.predicted or _NOTHING).on
    title = f"Time of one step on the {on}, rank 0; kernels on different streams run at once, so the sum can exceed it"
    show_table(out, title, COLUMNS, _rows(found))


_NOTHING = StepByKind({}, 0.0, 0.0)


def _answer(found: TimeComparison) -> Iterator[str]:
    if found.profiled is not None and found.usual_seconds is None:
        yield f"A profiled step took {units.seconds(found.profiled.step_seconds)}."
    elif found.profiled is not None:
        profiled = units.seconds(found.profiled.step_seconds)
        yield f"A step took {units.seconds(found.usual_seconds)}, with the profiler {profiled}."
    if found.predicted is not None:
        basis = found.predicted.basis
        reason = f" ({basis.reason})" if basis.reason else ""
        seconds = units.quantity("step_seconds", found.predicted.step_seconds, basis)
        yield f"The predicted step takes {seconds}{reason}."
    for name, step, whole in _steps(found):
        if step.busy_seconds:
            yield f"The device is busy for {units.percent(step.busy_seconds / whole)} of the {name} step."


def _steps(found: TimeComparison) -> Iterator[tuple[str, StepByKind, float]]:
    """Yield the name of each side, its step by kind, and the seconds of its whole step."""
    if found.profiled is not None and found.measured_seconds:
        yield "measured", found.profiled, found.measured_seconds
    if found.predicted is not None:
        yield "predicted", found.predicted, found.predicted.step_seconds


def _difference(found: TimeComparison, profiled: StepByKind, predicted: StepByKind) -> str:
    """Say how much of the difference between the two steps is the device's work, and how much its waiting."""
    (_, _, measured_whole), (_, _, predicted_whole) = _steps(found)
    work = predicted.busy_seconds - profiled.busy_seconds
    whole = predicted_whole - measured_whole
    kinds = dict.fromkeys([*profiled.kinds, *predicted.kinds])
    by_kind = {kind: _seconds_of(predicted, kind) - _seconds_of(profiled, kind) for kind in kinds}
    largest = sorted(by_kind, key=lambda kind: -abs(by_kind[kind]))[:2]
    named = "; ".join(f"{kind} {_more_or_less(by_kind[kind])}" for kind in largest)
    return (
        f"The predicted step takes {_more_or_less(whole)}: the device works {_more_or_less(work)} ({named}) and waits "
        f"{_more_or_less(whole - work)}, for the host or for another rank."
    )


def _seconds_of(step: StepByKind, kind: str) -> float:
    return step.kinds[kind].seconds if kind in step.kinds else 0.0


def _more_or_less(seconds: float) -> str:
    return f"{units.seconds(abs(seconds))} {'less' if seconds < 0 else 'more'}"


def _rows(found: TimeComparison) -> Iterator[tuple[str, ...]]:
    profiled, predicted = found.profiled or _NOTHING, found.predicted or _NOTHING
    for kind in dict.fromkeys([*profiled.kinds, *predicted.kinds]):
        yield kind, *_cells(profiled.kinds.get(kind), predicted.kinds.get(kind))
    yield "sum", *_cells(*(step.total if step.kinds else None for step in (profiled, predicted)))
    wholes = found.measured_seconds or 0.0, predicted.step_seconds
    busy = profiled.busy_seconds, predicted.busy_seconds
    idle = [whole - works if works else 0.0 for whole, works in zip(wholes, busy, strict=True)]
    step = "step with the profiler" if found.profiled and found.usual_seconds is None else "step without the profiler"
    for name, seconds in (("device busy", busy), ("device idle", idle), (step, wholes)):
        yield name, *_cells(*(KindTime(each, 0) if each else None for each in seconds))


def _cells(profiled: KindTime | None, predicted: KindTime | None) -> tuple[str, ...]:
    ratio = predicted.seconds / profiled.seconds if profiled and predicted and profiled.seconds else None
    cells = (text for time in (profiled, predicted) for text in _of(time))
    return *cells, "-" if ratio is None else f"{ratio:.2f}"


def _of(time: KindTime | None) -> tuple[str, str]:
    if time is None:
        return "-", "-"
    return units.seconds(time.seconds), f"{time.count:,.0f}" if time.count else ""
