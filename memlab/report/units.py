"""Numbers with their units, for people."""

from memlab.machine import GIB


def gib(size: float | None) -> str:
    """A size in GiB with three figures after the point; a dash where there is none."""
    return "-" if size is None else f"{size / GIB:,.3f}"


def number(value: float) -> str:
    """Four significant digits, and never an exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


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
    return f"{'-' if value < 0 else '+'}{figure(key, abs(value))}"


def percent(share: float | None) -> str:
    """A signed share in per cent; a dash where there is none."""
    return "-" if share is None else f"{100 * share:+.1f} %"


def duration(seconds: float) -> str:
    """Seconds as hours and minutes, with the seconds themselves below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def usd(amount: float | None) -> str:
    """To the cent; what is less than one to two digits."""
    if amount is None:
        return "-"
    return f"${amount:.2g}" if 0 < amount < 0.01 else f"${amount:,.2f}"


def name(key: str) -> str:
    """A record key as words: ``backward.peak_reserved_bytes`` -> ``backward: peak reserved``."""
    return key.replace(".", ": ").removesuffix("_bytes").replace("_", " ").replace("usd", "USD")
