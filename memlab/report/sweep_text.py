"""Terminal output of a sweep: the preview before it with its quote, its progress, the summary after it, and the table
and the page in its folder."""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from memlab.core.basis import BOUND, CALIBRATED, Basis
from memlab.core.errors import reason_of
from memlab.core.grouping import grouped
from memlab.core.noise import NOISY
from memlab.core.record import DOES_NOT_FIT, DOES_NOT_LAST, EDGE, FITS, WITHOUT_RESULT, Record
from memlab.core.sizes import GIB
from memlab.files.disk import replacing, write_whole
from memlab.planner.quote import LAUNCH_S, Quote, QuotedPoint, Range
from memlab.report import units
from memlab.report.text import say, show_table
from memlab.runs.folder import SweepFolder
from memlab.runs.job import Job, JobResult, Schedule, SearchResult, SweepObserver, usd_per_hour
from memlab.system.machine import used_bytes
from memlab.system.terminal import safe

STYLES = {"ok": "green", "gpu_oom": "yellow", "host_oom": "yellow", "unsupported": "dim"}

NEWS = ("measured", "predicted", "implied")
"""Outcomes of a job that was to run."""


def _launches(count: int) -> str:
    return f"{count:,} launch{'es' * (count != 1)}"


# --- before -----------------------------------------------------------------------------------------------------------


def show_preview(found: Schedule, root: Path, console: Console, quote: Quote | None = None) -> None:
    """Print each point's state (done, unsupported, to predict, or its launch), and the quote of those to run."""
    rows = [(each.job, "-", f"done: {each.record.status}" if each.record else each.how) for each in found.known]
    launches = found.to_measure
    to_predict = [job for jobs in found.launches for job in jobs if job.config.mode == "predict"]
    rows += [(job, "-", "to predict") for job in to_predict]
    verdicts = {str(point.job.folder): f": {verdict(point)}" for point in quote.points} if quote else {}
    for number, jobs in enumerate(launches, 1):
        rows += [(job, str(number), f"to run{verdicts.get(str(job.folder), '')}") for job in jobs]
    names = {"point": [job.plan.run_id for job, *_ in rows]}
    folders = [os.path.relpath(job.folder.path, root) for job, *_ in rows]
    if not all(folder.startswith(tuple(names["point"])) for folder in folders):  # the user named them
        names["folder"] = folders
    cells = [(*name, *state) for name, (_, *state) in zip(zip(*names.values(), strict=True), rows, strict=True)]
    show_table(console, f"Sweep into {root} (nothing is started)", (*names, "launch", "state"), cells, notes=1)
    for reason, number in Counter(result.reason for result in found.known if result.reason).items():
        say(f"Unsupported: {units.counted(number, 'point')} ({reason.rstrip('.')}).", console)
    count = sum(map(len, launches))
    work = [f"{len(to_predict)} to predict, without cost"] if to_predict else []
    work += [f"{count} to run in {_launches(len(launches))}"] if count or not to_predict else []
    console.print(f"{', '.join(work)}, {len(found.known)} known without running", highlight=False)
    if quote:
        show_quote(quote, console)
    elif count:
        console.print("sweep.guide=quote predicts which fit, and the hours and dollars", highlight=False)


VERDICTS = {FITS: "fits", EDGE: "at the edge", DOES_NOT_FIT: "cannot fit", DOES_NOT_LAST: "cannot last"}


def verdict(point: QuotedPoint) -> str:
    """Write whether a point fits: ``fits``, ``at the edge``, ``cannot fit``, ``not predicted``."""
    return VERDICTS.get(point.summary.get("verdict", ""), "not predicted")


def show_quote(quote: Quote, out: Console) -> None:
    """Print how many points fit, the hours and dollars of the sweep, and what these rest on."""
    verdicts = Counter(verdict(point).replace("fits", "fit") for point in quote.points)
    say(f"Quote: {', '.join(f'{count:,} {word}' for word, count in verdicts.most_common())}.", out)
    if not all(point.missing for point in quote.points):
        price = "an unknown price (hardware.usd_per_gpu_hour)" if quote.usd is None else _known(units.usd_of, quote.usd)
        hours = _known(units.duration_of, quote.seconds)
        say(
            f"{hours[:1].upper()}{hours[1:]} and {price}, for {_launches(quote.launches)} one after another.",
            out,
            "bold",
        )
    for sentence in _rests_on(quote):
        say(sentence, out)


def _known(write: Callable[[float, Basis], str], value: Range) -> str:
    low, high = value
    if high is None:
        return write(low, Basis(BOUND))
    middle = (low + high) / 2
    return write(middle, Basis(CALIBRATED, (high - low) / 2 / middle if middle else 0.0))


def _rests_on(quote: Quote) -> Iterator[str]:
    """Yield how the times of steps and of launches are known, and what is not counted."""
    timed = [point for point in quote.points if point.fits and not point.missing]
    for basis, count in Counter(point.basis for point in timed).items():
        reason = f" ({basis.reason})" if basis.reason else ""
        known = "a lower bound" if basis.is_bound else f"calibrated, ± {units.percent(basis.error or 0.0)}"
        yield f"Step time of {units.counted(count, 'point')}: {known}{reason}."
    if any(point.launch_seconds == LAUNCH_S for point in timed):
        yield f"Beside its points a launch takes {LAUNCH_S[0]:.0f} to {LAUNCH_S[1]:.0f} s, as measured on H200s."
    if any(point.job.config.is_command for point in quote.points):
        yield "Not counted: how long a command takes to start."
    for reason, count in Counter(point.missing for point in quote.points if point.missing).items():
        yield f"Not counted: {units.counted(count, 'point')} ({reason})."


# --- while it runs ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def progress(console: Console) -> Iterator["Progress"]:
    """Show a live display on a terminal, plain lines elsewhere."""
    shown = Progress(console)
    live = Live(shown, console=console, refresh_per_second=2, transient=True)
    with live if console.is_terminal else contextlib.nullcontext():
        yield shown


class Progress(SweepObserver):
    """Progress of a sweep for a person. The live display draws it in its own thread."""

    def __init__(self, console: Console):
        self.console = console
        self.began_at = time.monotonic()
        self.total = 0
        self.ended = 0  # jobs of the total that ended
        self.ran = 0  # ended jobs that were measured or predicted: used to estimate the time of a job
        self.is_search = False  # a search: the number of sizes that it will try is unknown
        self.usd_per_hour = 0.0
        self.running: dict[str, list[Job]] = {}  # GPUs -> the jobs of the launch that are not finished
        self._drawing = threading.Lock()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_at

    def began(self, to_run: Sequence[Sequence[Job]], known: Sequence[JobResult]) -> None:
        count = sum(map(len, to_run))
        self.total += count
        self.is_search |= any(job.config.sweep.search != "none" for jobs in to_run for job in jobs)
        self.usd_per_hour = self.usd_per_hour or usd_per_hour(job for jobs in to_run for job in jobs)
        work = f"{units.counted(count, 'point')} to run in {_launches(len(to_run))}"
        self.console.print(f"{work}; {len(known)} known without running", highlight=False)

    def waiting(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def launched(self, jobs: Sequence[Job], gpu_ids: Sequence[str]) -> None:
        with self._drawing:
            self.running[",".join(gpu_ids) or "cpu"] = list(jobs)

    def finished(self, result: JobResult) -> None:
        with self._drawing:
            self.ended += result.how in NEWS
            self.ran += result.how in ("measured", "predicted")
            for where, jobs in self.running.items():
                self.running[where] = [job for job in jobs if job is not result.job]
            self.running = {where: jobs for where, jobs in self.running.items() if jobs}
        if result.record and result.how != "done":
            self.console.print(self._line(result.job, result.record), highlight=False, soft_wrap=True)

    def _line(self, job: Job, record: Record) -> Text:
        parts: list[str | tuple[str, str]] = [
            self._count(),
            (record.status, STYLES.get(record.status, "red")),
            safe(job.plan.run_id),
        ]
        peak = record.summary.get("peak_reserved_bytes")
        if peak and record.status == "ok":
            parts.append(f"{units.gib(peak['max'])} GiB reserved")
        if "step_seconds" in record.summary:
            parts.append(f"{units.quantity('step_seconds', record.summary['step_seconds'], record.basis)} a step")
        if record.reason:
            parts.append(safe(record.reason.splitlines()[0][:160]))
        return Text("  ").join(Text.assemble(part) for part in parts)

    def _count(self) -> str:
        return str(self.ended) if self.is_search else f"{self.ended}/{self.total}"

    def __rich__(self) -> Table:
        with self._drawing:
            running = dict(self.running)
        grid = Table.grid(padding=(0, 2))
        grid.add_row(Text(self._count(), "bold"), f"{self.seconds / 60:.1f} min", self._eta(), self._money())
        for where, jobs in running.items():
            memory = ", ".join(f"{used / GIB:.1f}" for used in used_bytes(where.split(","))) if where != "cpu" else ""
            grid.add_row(
                f"GPU {where}" if where != "cpu" else "CPU", jobs[0].plan.run_id, f"{memory} GiB" * bool(memory)
            )
        return grid

    def _eta(self) -> str:
        """Estimate the time that is left from the mean time of a finished job, start-up included.

        The first job of a shared launch waits for the start-up, so the first estimates are too high.
        """
        left = self.total - self.ended
        if not self.ran or left <= 0 or self.is_search:
            return ""
        return f"about {self.seconds / self.ran * left / 60:.1f} min left"

    def _money(self) -> str:
        return f"${self.seconds / 3600 * self.usd_per_hour:.2f} so far" if self.usd_per_hour else ""


# --- after ------------------------------------------------------------------------------------------------------------


def show_searches(searches: Iterable[SearchResult], console: Console) -> None:
    """Print the sizes that each search tried, and its answer."""
    for found in searches:
        kind = {"batch": "micro batch", "seq_len": "sequence length"}[found.job.config.sweep.search]
        rows = [_search_row(found, size, record) for size, record in sorted(found.tried.items())]
        columns = ("status", kind, "reserved GiB", "retries", "step", "samples/s", "tokens/s", "note")
        show_table(console, f"{found.job.plan.run_id}: {kind}", columns, rows, notes=1)
        console.print(_answer(found, kind), markup=True, highlight=False)


def _search_row(found: SearchResult, size: int, record: Record) -> list[str]:
    summary = record.summary
    peak = summary.get("peak_reserved_bytes", {}).get("max")
    rates = [summary.get(key) for key in ("samples_per_second", "tokens_per_second")]
    speed = [units.seconds(summary.get("step_seconds"))]
    speed += ["-" if rate is None else units.number(rate) for rate in rates]
    note = "fits but thrashes" if found.thrashes(size) else ""
    return [record.status, str(size), units.gib(peak), str(summary.get("num_alloc_retries", "-")), *speed, note]


def _answer(found: SearchResult, kind: str) -> str:
    if found.gave_up:
        return f"[red]no answer[/]: {escape(safe(found.gave_up))}"
    if found.best is None or found.confirmation is None:
        return "[yellow]nothing fits[/]" if found.tried and not found.fits else "[yellow]not finished[/]"
    if found.confirmation.source == "predicted":
        beyond = "" if found.fails is None else f"; {found.fails}: {_ending(found.tried[found.fails])}"
        return f"largest {kind} that fits: [bold]{found.best}[/], predicted{beyond}"
    fitting = [size for size, record in found.tried.items() if record.status == "ok"]
    fastest = max(fitting, key=found.rate)
    confirmed = found.confirmation.summary
    line = (
        f"largest {kind} that trains: [bold]{found.best}[/], confirmed over {len(found.confirmation.steps['seconds'])} "
        f"steps{_at_rate(confirmed)}"
    )
    if fastest != found.best and found.rate(fastest):
        line += f"; fastest: {fastest}{_at_rate(found.tried[fastest].summary)}"
    return line


def _at_rate(summary: Mapping[str, Any]) -> str:
    """Write the speed in tokens; in samples where the batches hold no tokens; empty where neither is known."""
    for unit in ("tokens", "samples"):
        if rate := summary.get(f"{unit}_per_second"):
            return f" at {units.number(rate)} {unit}/s"
    return ""


def _ending(record: Record) -> str:
    return "at the edge" if record.status == "ok" else "does not fit"


def show_repeats(results: Sequence[JobResult], console: Console) -> None:
    """Print median and spread of each experiment that was measured more than once."""
    summaries = ((result.job, result.record.summary) for result in results if result.record)
    timed = ((job, summary) for job, summary in summaries if "step_seconds" in summary)
    repeated = [group for group in grouped(timed, lambda each: each[0].subject_key).values() if len(group) > 1]
    if not repeated:
        return
    rows = []
    for group in repeated:
        seconds = [summary["step_seconds"] for _, summary in group]
        reserved = [summary["peak_reserved_bytes"]["max"] for _, summary in group]
        row = [
            group[0][0].plan.run_id,
            len(group),
            units.seconds(median(seconds)),
            units.percent(_relative_spread(seconds), 1),
            units.gib(median(reserved)),
            units.percent(_relative_spread(reserved), 1),
            "noisy" if _relative_spread(seconds) > NOISY else "",
        ]
        rows.append(row)
    columns = ("experiment", "times", "step", "spread of steps", "reserved GiB", "spread of reserved", "note")
    show_table(console, "Repeats: median, and the spread from lowest to highest", columns, rows, notes=1)


def _relative_spread(values: Sequence[float]) -> float:
    """Return the distance from the lowest to the highest value, as a share of the median."""
    return (max(values) - min(values)) / median(values)


def show_summary(results: Sequence[JobResult], root: Path, seconds: float, console: Console) -> None:
    """Print how the points ended, their time and cost, and the folder of the runs."""
    statuses = Counter(result.record.status if result.record else "not reached" for result in results)
    reached = (result for result in results if not result.record or result.record.status not in WITHOUT_RESULT)
    ways = Counter(result.how for result in reached)
    counts = ", ".join(f"{count} {name}" for name, count in statuses.most_common())
    console.print(f"{units.counted(len(results), 'point')}: {counts}", highlight=False)
    measured = ways["measured"]
    details = [f"{ways[how]} {how}" for how in ("measured", "predicted", "implied", "done", "not reached") if ways[how]]
    line = f"  {', '.join(details)}; {seconds:.0f} s"
    rate = next((result.job.config.hardware.total_usd_per_hour for result in results), None)
    if measured:
        line += f", {seconds / measured:.1f} s a measured point"
        if rate is not None:
            line += f", ${seconds / 3600 * rate:.2f} in all, ${seconds / 3600 * rate / measured:.3f} a measured point"
    console.print(line, highlight=False)
    for result in results:
        if result.record and result.record.status in ("timeout", "failed", "infra"):
            console.print(f"  {result.record.status}: {result.job.folder}", highlight=False, soft_wrap=True)
    console.print(f"run folders: {root}", highlight=False, markup=False, soft_wrap=True)


def leave_table_and_page(root: Path, console: Console) -> None:
    """Print the table of all runs in the folder of a sweep, write it and the page, and print their paths.

    The sweep is over and its records are on the disk, so an error prints one line and raises nothing.
    """
    folder = SweepFolder(root)
    try:
        lines = [f"{kind}: {root / name}" for kind, name in _write(folder, console).items()]
    except KeyboardInterrupt:
        lines = [f"No table and no page: interrupted. memlab report {root} makes the page."]
    except Exception as error:
        lines = [f"No table and no page: {reason_of(error).splitlines()[0]}"]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _write(folder: SweepFolder, console: Console) -> dict[str, str]:
    """Print and write the table of the runs, and write the page of those with a known batch and length.

    Returns kind -> file name.
    """
    from memlab.analyse.collect import collect  # here: a sweep must not wait half a second for pandas
    from memlab.analyse.identity import points_of
    from memlab.analyse.table import points_table
    from memlab.report.page import write_page
    from memlab.report.points_text import show_points
    from memlab.report.table_files import write_table

    found, written = collect([folder.path]), {}
    if found.runs:
        show_points(found.runs, console)
        folder.claim_around_runs()
        write_table(points_table(found.runs), folder.path / folder.TABLE, "csv", replacing)
        written["table"] = folder.TABLE
    if points := points_of(found.runs).runs:
        write_page(points, found.skipped, folder.path.name, folder.path / folder.PAGE, write_whole)
        written["page"] = folder.PAGE
    return written
