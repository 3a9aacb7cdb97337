"""Terminal output of the quote of a sweep."""

from collections import Counter
from collections.abc import Callable, Iterator

from rich.console import Console

from memlab.core.basis import BOUND, CALIBRATED, Basis
from memlab.core.record import DOES_NOT_FIT, DOES_NOT_LAST, EDGE, FITS
from memlab.planner.quote import LAUNCH_S, Quote, QuotedPoint, Range
from memlab.report import units
from memlab.report.text import say

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
        count = f"{quote.launches:,} launch{'es' * (quote.launches != 1)}"
        time = _known(units.duration_of, quote.seconds)
        say(f"{time[:1].upper()}{time[1:]} and {price}, for {count} one after another.", out, "bold")
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
        known = "a lower bound" if basis.is_bound else f"calibrated, ± {units.percent(basis.error)}"
        yield f"Step time of {units.counted(count, 'point')}: {known}{reason}."
    if not all(point.job.is_command for point in timed):
        yield f"Beside its points a launch takes {LAUNCH_S[0]:.0f} to {LAUNCH_S[1]:.0f} s, as measured on H200s."
    if any(point.job.is_command for point in quote.points):
        yield "Not counted: how long a command takes to start."
    for reason, count in Counter(point.missing for point in quote.points if point.missing).items():
        yield f"Not counted: {units.counted(count, 'point')} ({reason})."
