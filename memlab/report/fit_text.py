"""Terminal output of fits, and of what fits by them."""

from collections.abc import Callable, Sequence

from rich.console import Console

from memlab.analyse.fit import Capacity, Fit, longest
from memlab.core.sizes import MIB
from memlab.report import units
from memlab.report.text import say, show_items
from memlab.system.terminal import safe


def equation(fit: Fit) -> str:
    """Write ``34.790 GiB + 6.900 MiB x tokens``, with the hinge if the line has one."""
    line = fit.line
    variable = "tokens" if line.hinge is None else f"max(0, tokens - {line.hinge:,.0f})"
    return f"{units.gib(line.intercept)} GiB + {line.slope / MIB:.3f} MiB x {variable}"


def flat_part(fit: Fit) -> str:
    """Write where the flat part ends; empty for a straight line."""
    line = fit.line
    if line.hinge is None or line.hinge_interval is None:
        return ""
    low, high = line.hinge_interval
    seen = fit.flat_until is not None and fit.flat_until > line.hinge / 2
    flat = "" if not seen else f"within 2 MiB of the first point up to {fit.flat_until:,.0f} tokens; "
    return f"{flat}hinge at {line.hinge:,.0f} tokens (95 %: {low:,.0f} to {high:,.0f})"


def _errors(fit: Fit) -> str:
    errors = (fit.median_error, fit.largest_error)
    return " / ".join(f"{100 * error:.1f} %" for error in errors if error is not None) or "-"


def show_fits(
    fits: Sequence[Fit], without: Sequence[tuple[str, str]], memory_gib: float | None, margin: float, out: Console
) -> None:
    """Print the equations with their quality, then what fits by each of them."""
    cells: dict[str, Callable[[Fit], object]] = {
        "configuration": lambda fit: fit.label,
        "equation": equation,
        "slope, 95 %": lambda fit: f"+- {fit.line.slope_interval / MIB:.3f}",
        "R2": lambda fit: f"{fit.line.r2:.4f}",
        "points": lambda fit: fit.line.n,
        "leave one out: median / largest": _errors,
        "flat part": flat_part,
    }
    quantity = units.name(fits[0].quantity) if fits else "memory"
    title = f"{quantity}, largest rank, over tokens of one forward (batch x sequence length)"
    spare = ("flat part", "leave one out: median / largest", "R2", "slope, 95 %", "points")
    if fits:
        show_items(out, title, fits, cells, notes=1, spare=spare)
    for fit in fits:
        memory = memory_gib or fit.memory_gib
        if memory:
            say(capacity_text(fit, longest(fit, memory, margin), memory, margin), out)
    for label, reason in without:
        say(f"no fit for {label}: {reason}", out)


def capacity_text(fit: Fit, capacity: Capacity, memory_gib: float, margin: float) -> str:
    """Write the capacity in a few sentences."""
    room = f"In {memory_gib:g} GiB with {units.percent(margin)} kept free, {safe(fit.label)}:"
    if capacity.tokens is None:
        return f"{room} nothing fits, not even one token."
    longest_each = ", ".join(f"{capacity.sequence(micro):,} tokens at batch {micro}" for micro in fit.batches[:3])
    at = fit.lengths[-1]
    largest = f"batch {capacity.batch(at)} at {at:,} tokens"
    parts = [f"{room} up to {capacity.tokens:,} tokens in one forward: {longest_each}; {largest}."]
    if capacity.limit == "oom":
        parts.append(f"The line allows more, but a run with {fit.oom_tokens:,} tokens ran out of memory.")
    if capacity.extrapolated:
        parts.append(f"This is by the line: the most that was tried is {max(fit.tokens):,} tokens.")
    if max(fit.tokens) > capacity.tokens:
        parts.append(
            f"A run with {max(fit.tokens):,} tokens fitted, with less memory free or after the allocator returned "
            "cached memory."
        )
    return " ".join(parts)
