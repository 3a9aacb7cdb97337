"""Numbers with their units, for people."""

from collections.abc import Iterable
from math import floor, log10

from memlab.machine import GIB


def gib(size: float | None, places: int = 3) -> str:
    """A size in GiB with so many figures after the point; a dash where there is none."""
    return "-" if size is None else f"{size / GIB:,.{places}f}"


def places(sizes: Iterable[float | None]) -> int:
    """Figures after the point that sizes in GiB of one table need: four significant ones of the largest, at most three
    after the point."""
    largest = max((abs(size) for size in sizes if size is not None), default=0) / GIB
    return 3 if largest < 10 else 2 if largest < 100 else 1


def about(size: float) -> str:
    """A size in GiB within a sentence, to a tenth of a GiB or, of a small model's, to what shows it."""
    return gib(size, 3 if size < GIB / 10 else 2 if size < 10 * GIB else 1)


def seconds(value: float | None) -> str:
    """A time with three significant figures, in the unit that suits it; a dash where there is none."""
    if value is None:
        return "-"
    for unit, share in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.1 * share:
            return f"{_three(value / share)} {unit}"
    return f"{_three(value / 1e-6)} µs"


def _three(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def number(value: float, digits: int = 4) -> str:
    """So many significant digits, and all of a whole number's; never an exponent."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else _plain(value, digits)


def _plain(value: float, digits: int) -> str:
    text = f"{value:,.{digits}g}"
    return text if "e" not in text else f"{value:.{digits - 1 - floor(log10(abs(value)))}f}"


def tokens(count: int) -> str:
    return f"{count:,} token{'s' * (count != 1)}"


def figure(key: str, value: float | None) -> str:
    """The value of a record key with its unit, which the key's name tells."""
    if value is None:
        return "-"
    if key.endswith("_bytes"):
        return f"{gib(value)} GiB"
    if key.startswith("usd"):
        return f"${number(value)}"
    if "per_second" in key:
        return f"{number(value)}/s"
    return f"{number(value)} s" if "seconds" in key else number(value)


def change(key: str, value: float) -> str:
    """A difference of a record key, signed, with its unit."""
    return signed(value, figure(key, abs(value)))


def signed(value: float, size: str) -> str:
    """``size``, the size of ``value`` in words, behind its sign. What is shown as nothing has a plus."""
    return f"{'-' if value < 0 and any(digit in size for digit in '123456789') else '+'}{size}"


def percent(share: float | None) -> str:
    """A signed share in per cent, whole from 100 % on, ``+0.0 %`` for nothing; a dash where there is none."""
    if share is None:
        return "-"
    return f"{100 * share:+z.1f} %" if abs(share) < 1 else f"{100 * share:+,.0f} %"


def whole_percent(share: float) -> str:
    """A share in whole per cent, without a sign."""
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """Seconds as hours and minutes, with the seconds themselves below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def usd(amount: float | None) -> str:
    """To the cent; what is less than one to two digits."""
    if amount is None:
        return "-"
    return f"${_plain(amount, 2)}" if 0 < amount < 0.01 else f"${amount:,.2f}"


def name(key: str) -> str:
    """A record key as words: ``backward.peak_reserved_bytes`` -> ``backward: peak reserved``."""
    return key.replace(".", ": ").removesuffix("_bytes").replace("_", " ").replace("usd", "USD")
