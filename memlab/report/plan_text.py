"""What fits, by prediction, in a terminal."""

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from memlab.predict.search import Change, Outcome, Row
from memlab.report import units
from memlab.report.text import grid
from memlab.terminal import safe

WHY_WORTH_MEASURING = "no other one uses options as fast everywhere and fits as large a batch"

PLAIN_S = 10.0
"""How often a line tells of progress where the output is no terminal."""


class PlanProgress:
    """To be used with ``with``: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, out: Console):
        self._out = out
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
        self._task = self._bar.add_task("starting", total=None)
        self._last_line = time.monotonic()

    def __enter__(self) -> "PlanProgress":
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def told(self, what: str, done: int, of: int) -> None:
        self._bar.update(self._task, description=what, completed=done, total=of)
        if not self._out.is_terminal and time.monotonic() - self._last_line > PLAIN_S:
            self._last_line = time.monotonic()
            self._out.print(f"{what}: {done} of {of}")


def show_rows(rows: Sequence[Row], out: Console) -> None:
    """The largest batch of each configuration, and what it leaves."""
    names = _names(rows)
    speed = any(row.summary.get("tokens_per_second") for row in rows)
    cells = [
        (
            *(row.candidate.options.get(name, "-") for name in names),
            row.batch or "-",
            units.gib(row.best.used if row.best else None),
            units.gib(row.best.free if row.best else None),
            units.gib(row.best.host if row.best else None),
            _probability(row),
            *([_rate(row), units.usd(row.usd_per_million_tokens)] if speed else []),
            _beyond(row),
        )
        for row in rows
    ]
    columns = [*names, "largest batch", "used GiB", "free GiB", "host GiB", "probability"]
    columns += ["tokens/s", "$ a million tokens", "one more"] if speed else ["one more"]
    out.print(grid("Largest micro batch that fits, predicted; of the fullest GPU", columns, cells, len(names)))


def show_choice(chosen: Row | None, measure: Sequence[Row], shown: int, out: Console) -> None:
    """The cheapest, and what to measure before believing it."""
    if chosen is not None:
        by = "a token" if chosen.usd_per_million_tokens is not None else "an hour; speed is not predicted"
        price = units.usd(chosen.usd_per_hour)
        out.print(f"cheapest that fits, by dollars {by}: {_line(chosen)} ({price} an hour)", soft_wrap=True)
    if measure:
        why = "fastest first" if all(_rate(row) != "-" for row in measure) else WHY_WORTH_MEASURING
        out.print(f"worth measuring ({why}):")
    for row in measure[:shown]:
        out.print(f"  {_line(row)}", soft_wrap=True)
    if len(measure) > shown:
        out.print(f"  and {len(measure) - shown} more")


def show_changes(base: Outcome, changes: Sequence[Change], out: Console) -> None:
    """What a configuration needs, and what each single change takes off."""
    if isinstance(base, str):
        out.print(f"cannot be predicted: {safe(base)}", soft_wrap=True)
        return
    out.print(f"as it is: {ending(base)}; it needs {units.gib(base.used)} GiB of the fullest GPU")
    rows = [
        (
            change.word,
            ending(change.outcome),
            change.price,
            *(("-", "-", "-") if isinstance(change.outcome, str) else _figures(change)),
        )
        for change in changes
    ]
    columns = ["change", "then it", "at the price of", "needs GiB", "saves GiB", "host GiB"]
    out.print(grid("One change at a time, predicted", columns, rows, 3))


def _figures(change: Change) -> tuple[str, ...]:
    return units.gib(change.outcome.used), units.gib(change.saved), units.gib(change.outcome.host)


def ending(outcome: Outcome) -> str:
    return safe(outcome) if isinstance(outcome, str) else outcome.verdict.replace("_", " ")


def _beyond(row: Row) -> str:
    """How one sample more than the largest batch ends."""
    if not row.batch:
        return f"1: {ending(row.of_one)}"
    return "not tried" if row.next_up is None else f"{row.batch + 1}: {ending(row.next_up)}"


def _probability(row: Row) -> str:
    """That the largest batch does fit, by the errors of earlier predictions."""
    known = row.summary.get("fit_probability")
    return "-" if known is None else f"{known:.0%}"


def _rate(row: Row) -> str:
    rate = row.summary.get("tokens_per_second")
    return "-" if rate is None else units.number(rate)


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.candidate.options))


def _line(row: Row) -> str:
    words = [f"{name}={option}" for name, option in row.candidate.options.items()]
    return " ".join([*words, f"batch.micro={row.batch}"])
