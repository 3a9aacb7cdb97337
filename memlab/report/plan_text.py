"""Terminal output of ``memlab plan``: which configurations fit, by prediction."""

import shlex
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from memlab.core.record import FITS
from memlab.planner.search import Outcome, Row, SingleChange
from memlab.prediction.memory.rank_results import Estimate
from memlab.report import units
from memlab.report.text import say, show_command, show_table
from memlab.report.verdict_text import AFTER_A_CHANGE, WORDS, how_sure, is_calibrated
from memlab.system.terminal import safe

WHY_WORTH_MEASURING = "no other configuration has options at least as fast and fits as large a batch"

PLAIN_S = 10.0
"""Seconds between lines of progress if the output is not a terminal."""


class PlanProgress:
    """Progress display, used with ``with``: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, out: Console):
        self._out = out
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
        self._task = self._bar.add_task("starting", total=None)
        self._last_line = time.monotonic()
        self._stage, self._done = (self._last_line, 0), 0  # when the stage began, and what was done then; done now

    def __enter__(self) -> "PlanProgress":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def update(self, what: str, done: int, of: int) -> None:
        """Show that ``done`` of ``of`` items are done; ``what`` names the stage."""
        now = time.monotonic()
        if done < self._done:
            self._stage = now, done
        self._done, (began, first) = done, self._stage
        left = (of - done) * (now - began) / (done - first) if done > first else 0
        more = f"; about {units.duration(left)} left" if left >= 1 else ""
        self._bar.update(self._task, description=f"{what}{more}", completed=done, total=of)
        if not self._out.is_terminal and now - self._last_line > PLAIN_S:
            self._last_line = now
            self._out.print(f"{what}: {done} of {of}{more}")


def plan_answer(rows: Sequence[Row], cheapest: Row | None, measure: Sequence[Row]) -> str:
    """Recommend in a sentence what to rent or run: the cheapest of several machines, else the fastest configuration;
    where speeds are not known, the machine with the lowest price an hour, else the configuration with the largest
    batch."""
    fitting = sum(bool(row.batch) for row in rows)
    if not fitting:
        return f"Nothing fits: none of the {len(rows)} configurations fits with a batch of one."
    best = cheapest or (measure[0] if _have_rates(measure) else max(measure, key=lambda row: row.batch))
    if _have_rates(measure):
        kind = "the cheapest" if cheapest else "the fastest"
    else:
        kind = "the cheapest by the hour" if cheapest else "the one with the largest batch"
    config = best.candidate.config
    length = f" with {config.seq_len.tokens:,} tokens a sequence" if not config.is_command else ""
    need = f"{_in_use(best.best)} on the fullest GPU{length}" if best.best else ""
    unknown = units.not_known("which is fastest", (row.basis for row in measure))
    facts = [", ".join(filter(None, [need, how_sure(best.summary)])), *_speed_and_price(best), unknown]
    return f"{fitting} of {len(rows)} configurations fit; {kind} is {_line(best)}: {'; '.join(filter(None, facts))}."


def _speed_and_price(row: Row) -> list[str]:
    if not row.summary.get("tokens_per_second"):
        return [f"{units.usd(row.usd_per_hour)} an hour, speed not predicted"] if row.usd_per_hour else []
    price = "" if row.usd_per_hour is None else f" ({_price(row)} a million, {units.usd(row.usd_per_hour)} an hour)"
    return [f"{_rate(row, ' tokens/s')}{price}"]


def _in_use(estimate: Estimate) -> str:
    of = "" if estimate.free is None else f" of {units.about(estimate.used + estimate.free)}"
    return f"{units.about(estimate.used)}{of} GiB"


def _have_rates(rows: Sequence[Row]) -> bool:
    return all(row.rate for row in rows)


def show_rows(rows: Sequence[Row], out: Console) -> None:
    """Print the largest batch of each configuration, and the memory that it leaves free."""
    names = list(dict.fromkeys(name for row in rows for name in row.candidate.options))
    places = units.places(row.best.used for row in rows if row.best)
    cells = [
        (
            *(row.candidate.options.get(name, "-") for name in names),
            row.batch or "-",
            units.gib(row.best.used if row.best else None, places),
            units.gib(row.best.free if row.best else None, places),
            units.gib(row.best.host if row.best else None, places),
            _probability(row),
            _rate(row),
            _price(row),
            _beyond(row),
        )
        for row in rows
    ]
    of_batch = ("largest batch", "used GiB", "free GiB", "host GiB", "probability", "tokens/s", "$ a million tokens")
    title = "Largest micro batch that fits, predicted; memory of the fullest GPU"
    spare = ("host GiB", "free GiB", "one more", "probability", "$ a million tokens", "tokens/s")
    show_table(out, title, (*names, *of_batch, "one more"), cells, len(names), notes=1, common=names, spare=spare)


def show_measure(measure: Sequence[Row], shown: int, out: Console) -> None:
    """Print the configurations that are worth measuring."""
    if not measure:
        return
    why = "fastest first" if _have_rates(measure) else WHY_WORTH_MEASURING
    say(f"Measure next ({why}):", out)
    for row in measure[:shown]:
        say(_line(row), out, indent=2)
    if len(measure) > shown:
        out.print(f"  and {len(measure) - shown} more")
    first = measure[0]
    show_launch([*first.candidate.words, f"batch.micro={first.batch}"], "The first", out)


def show_launch(words: Sequence[str], what: str, out: Console) -> None:
    """Print the command that measures what a plan proposes."""
    say(f"{what} (mode=compose prints its DeepSpeed JSON, its TrainingArguments and the launcher's line):", out)
    show_command(["python", "launch.py", *map(shlex.quote, words)], out)


def changes_answer(base: Outcome, changes: Sequence[SingleChange]) -> str:
    """Write in a sentence whether a configuration fits, and which single change saves the most memory."""
    if isinstance(base, str):
        return f"Not predicted: {base}."
    first = f"{WORDS[base.verdict]}: it needs {_in_use(base)} on the fullest GPU"
    saving = [(change, change.saved) for change in changes if change.saved and change.saved > 0]
    if not saving:
        return f"{first}; no single change saves memory."
    best, saved = saving[0]
    then = f"{best.word} saves {units.about(saved)} GiB"
    if base.verdict == FITS or isinstance(best.outcome, str):
        return f"{first}; {then}, the most of all single changes."
    return f"{first}; {then}, and then the run {AFTER_A_CHANGE[best.outcome.verdict]}."


def show_changes(base: Outcome, changes: Sequence[SingleChange], out: Console) -> None:
    """Print the memory that a configuration needs, and the memory that each single change saves."""
    say(changes_answer(base, changes), out, "bold")
    if isinstance(base, str):
        return
    places = units.places([base.used])
    rows = [(each.word, ending(each.outcome), each.price, *_quantities(each, places)) for each in changes]
    columns = ["change", "then", "price", "needs GiB", "saves GiB", "host GiB"]
    show_table(out, "One change at a time, predicted", columns, rows, left=3, spare=("host GiB",))


def _quantities(change: SingleChange, places: int) -> tuple[str, ...]:
    outcome = change.outcome
    sizes = (None,) * 3 if isinstance(outcome, str) else (outcome.used, change.saved, outcome.host)
    return tuple(units.gib(size, places) for size in sizes)


def ending(outcome: Outcome) -> str:
    return safe(outcome) if isinstance(outcome, str) else outcome.verdict.replace("_", " ")


def _beyond(row: Row) -> str:
    """Write how a run with one sample more than the largest batch ends."""
    if not row.batch:
        return f"1: {ending(row.of_one)}"
    return "not tried" if row.next_up is None else f"{row.batch + 1}: {ending(row.next_up)}"


def _probability(row: Row) -> str:
    """Write the probability that the largest batch fits; a dash if too few similar configurations were measured."""
    return units.percent(row.summary["fit_probability"]) if is_calibrated(row.summary) else "-"


def _rate(row: Row, unit: str = "") -> str:
    rate = row.summary.get("tokens_per_second")
    return "-" if rate is None else units.known(f"{units.number(rate)}{unit}", row.basis, is_rate=True)


def _price(row: Row) -> str:
    price = row.usd_per_million_tokens
    return "-" if price is None else units.known(units.usd(price), row.basis)


def _line(row: Row) -> str:
    words = [f"{name}={option}" for name, option in row.candidate.options.items()]
    return " ".join([*words, f"batch.micro={row.batch}"])
