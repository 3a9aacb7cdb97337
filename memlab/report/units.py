"""Text of numbers with their units."""

from collections.abc import Iterable, Sequence
from math import floor, log10

from memlab.core.basis import CALIBRATED, EXACT, MEASURED, Basis, follows_from_step, is_rate
from memlab.core.sizes import GIB, KIB, MIB


def gib(size: float | None, places: int = 3) -> str:
    """Write a size in GiB with ``places`` decimals; a dash for ``None``."""
    return "-" if size is None else f"{size / GIB:,.{places}f}"


def places(sizes: Iterable[float | None]) -> int:
    """Choose the number of decimals for the sizes (in bytes) of one table in GiB.

    The largest size gets four significant digits, and no size more than three decimals.
    """
    largest = max((abs(size) for size in sizes if size is not None), default=0) / GIB
    return 3 if largest < 10 else 2 if largest < 100 else 1


def about(size: float) -> str:
    """Write a size in GiB for a sentence: one decimal, two below 10 GiB, three below 0.1 GiB."""
    return gib(size, 3 if size < GIB / 10 else 2 if size < 10 * GIB else 1)


def size(nbytes: float) -> str:
    """Write a size with its unit: the largest one of which it is at least a tenth, ``12.9 GiB`` or ``64.0 MiB``."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(value := nbytes / unit) >= 0.1:
            return f"{value:,.{1 if abs(value) >= 10 else 2}f} {name}"
    return f"{nbytes:.0f} bytes"


def signed_size(nbytes: float) -> str:
    """Write a difference of two sizes with its sign and unit."""
    return with_sign(nbytes, size(abs(nbytes)))


def seconds(value: float | None) -> str:
    """Write a time with three significant digits, in s, ms or µs; a dash for ``None``."""
    if value is None:
        return "-"
    for unit, share in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.1 * share:
            return f"{_three(value / share)} {unit}"
    return f"{_three(value / 1e-6)} µs"


def _three(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def number(value: float, digits: int = 4) -> str:
    """Write a number with ``digits`` significant digits; a larger one as a whole number. Never writes an exponent."""
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:,.{digits}g}"
    return text if "e" not in text else f"{value:.{digits - 1 - floor(log10(abs(value)))}f}"


def tokens(count: int) -> str:
    """Write a number of tokens: ``1 token``, ``2,048 tokens``."""
    return counted(count, "token")


def counted(count: int, name: str) -> str:
    """Write a number of things: ``1 sample``, ``2,048 samples``."""
    return f"{count:,} {name}{'s' * (count != 1)}"


def first_of(names: Sequence[str], most: int, where_others_are: str = "") -> str:
    """Write the first names of a list, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more{where_others_are}" if more > 0 else "")


def quantity(key: str, value: float | None, basis: Basis = EXACT) -> str:
    """Write the value of a record key with its unit, which follows from the key's name.

    ``basis``: of the record. It is written where the value follows from the step time: ``at least 0.40 s``,
    ``at most 5,120/s``.
    """
    if value is None:
        return "-"
    text = _quantity(key, value)
    return known(text, basis, is_rate(key)) if follows_from_step(key) else text


def known(text: str, basis: Basis, is_rate: bool = False) -> str:
    """Write how a time or a price is known, with its text: ``0.35 s``, ``0.35 s ± 23 %``, ``at least 0.40 s``.

    ``is_rate``: of a rate, a bound is ``at most 5,120/s``.
    """
    if basis.is_bound:
        return f"at {'most' if is_rate else 'least'} {text}"
    return f"{text} ± {percent(basis.error)}" if basis.error else text


def not_known(what: str, bases: Iterable[Basis]) -> str:
    """Write that ``what`` is not known where one of these is a bound, and why: ``speed: not known (several nodes)``.
    Empty where none is."""
    bounds = [basis.reason for basis in bases if basis.is_bound]
    reasons = ", ".join(dict.fromkeys(filter(None, bounds)))
    return f"{what}: not known{f' ({reasons})' if reasons else ''}" if bounds else ""


def _quantity(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return f"{gib(value)} GiB"
    if key.startswith("usd"):
        return f"${number(value)}"
    if "per_second" in key:
        return f"{number(value)}/s"
    return seconds(value) if "seconds" in key else number(value)


def signed_quantity(key: str, value: float) -> str:
    """Write a difference of a record key with its sign and unit."""
    return with_sign(value, quantity(key, abs(value)))


def with_sign(value: float, size: str) -> str:
    """Put the sign of ``value`` before ``size``, its text without a sign. A size shown as zero gets a plus."""
    return f"{'-' if value < 0 and any(digit in size for digit in '123456789') else '+'}{size}"


def signed_percent(share: float | None) -> str:
    """Write a share as a signed percentage, whole from 100 % on, ``+0.0 %`` for zero; a dash for ``None``."""
    if share is None:
        return "-"
    return f"{100 * share:+z.1f} %" if abs(share) < 1 else f"{100 * share:+,.0f} %"


def percent(share: float, places: int = 0) -> str:
    """Write a share as a percentage with ``places`` decimals."""
    return f"{100 * share:.{places}f} %"


def duration(value: float) -> str:
    """Write a time as hours and minutes, below an hour as minutes and seconds, below a minute as seconds, below a
    second with three significant digits."""
    if 0 < value < 1:
        return seconds(value)
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    return f"{hours} h {minutes:02} min"


def duration_of(value: float, basis: Basis) -> str:
    """Write the seconds of an epoch or a run: ``14 min 35 s``, ``11 to 18 min``, ``at least 17 min 04 s``."""
    low, high = basis.range(value)
    if basis.kind == MEASURED or high is None:
        return known(duration(value), basis)
    size, unit = next((each for each in ((3600, "h"), (60, "min")) if high >= 2 * each[0]), (1, "s"))
    return f"{_between(number(low / size, 2), number(high / size, 2))} {unit}"


def usd_of(amount: float, basis: Basis) -> str:
    """Write the dollars of an epoch or a run: ``$0.85``, ``$0.66 to $1.05``, ``at least $0.14``."""
    return _between(*map(usd, basis.range(amount))) if basis.kind == CALIBRATED else known(usd(amount), basis)


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def usd(amount: float | None) -> str:
    """Write dollars to the cent, and with two significant digits at least; a dash for ``None``."""
    if amount is None:
        return "-"
    return f"${amount:,.{max(2, 1 - floor(log10(amount))) if amount else 2}f}"


def name(key: str) -> str:
    """Write a record key as words: ``backward.peak_reserved_bytes`` -> ``backward: peak reserved``."""
    words = key.replace(".", ": ").removesuffix("_bytes").replace("_seconds", "_time")
    return words.replace("_", " ").replace("usd", "USD")
