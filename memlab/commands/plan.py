"""``memlab plan WORD...``: before anything is rented, what fits - by prediction, over the axes that decide it."""

import argparse
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track
from rich.table import Table

from memlab.compose import compose_config
from memlab.machine import GIB
from memlab.plan import make_plan
from memlab.predict.limits import unpredictable
from memlab.predict.predict import FITS, predict

HELP = "before renting: what fits, by prediction, over zero_stage, offload, checkpointing, allocator and batch"

AXES = {
    "zero_stage": ("zero0", "zero1", "zero2", "zero3"),
    "offload": ("none", "optimizer", "all"),
    "checkpointing": ("none", "full"),
    "allocator": ("default", "expandable"),
}
"""What is walked, from what is fast to what is small, unless the command line says otherwise."""

LARGEST_BATCH = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = "as for launch.py: model=llama3_8b hardware=a100_80g_x8 seq_len.tokens=2048; group=a,b walks these options"
    parser.add_argument("words", nargs="+", metavar="WORD", help=help)


def run(arguments: argparse.Namespace) -> int:
    console = Console()
    combinations = supported(arguments.words)
    walked = track(combinations, description="predicting", console=console, transient=True)
    rows = [largest_batch(words) for words in walked]
    console.print(table(rows))
    fitting = [row for row in rows if row.batch and row.usd_per_hour is not None]
    if len({row.usd_per_hour for row in fitting}) > 1:
        cheapest = min(fitting, key=lambda row: (row.usd_per_hour, -row.batch))
        console.print(f"cheapest that fits: {' '.join(cheapest.words)} ({cheapest.usd_per_hour:.2f} USD/h)")
    return 0


@dataclass(frozen=True)
class Row:
    """One combination: the largest micro batch that fits (0: none), and what its fullest GPU is left with."""

    words: tuple[str, ...]  # those that differ from row to row
    batch: int
    headroom_gib: float | None
    verdict_of_one: str  # of a micro batch of one
    usd_per_hour: float | None


def supported(words: Sequence[str]) -> list[list[str]]:
    """The command lines of all combinations that mean something."""
    given = dict(word.partition("=")[::2] for word in words)
    axes = AXES | {key: tuple(value.split(",")) for key, value in given.items() if "," in value or key in AXES}
    fixed = [word for word in words if word.partition("=")[0] not in axes]
    lines = []
    for options in itertools.product(*axes.values()):
        line = [*fixed, *(f"{group}={option}" for group, option in zip(axes, options, strict=True))]
        if not unpredictable(compose_config([*line, "mode=predict"])[0]):
            lines.append(line)
    return lines


def largest_batch(line: Sequence[str]) -> Row:
    """Double until it does not fit, then halve the gap."""
    found = {}

    def fits(micro: int) -> bool:
        config, choices = compose_config([*line, "mode=predict", f"batch.micro={micro}"])
        found[micro] = predict(make_plan(config, choices))
        return found[micro].summary.get("verdict") == FITS

    low, high = 0, 1
    while high <= LARGEST_BATCH and fits(high):
        low, high = high, high * 2
    while high - low > 1 and low:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    best = found.get(low)
    headroom = min(rank["device_total_bytes"] - rank["device_used_bytes"] for rank in best.ranks) if best else None
    return Row(
        words=tuple(line[-_walked(line) :]),
        batch=low,
        headroom_gib=headroom / GIB if headroom is not None else None,
        verdict_of_one=found[1].summary.get("verdict", found[1].status),
        usd_per_hour=found[1].config["hardware"]["usd_per_hour"],
    )


def _walked(line: Sequence[str]) -> int:
    return sum(word.partition("=")[0] in (*AXES, "hardware") for word in line)


def table(rows: Iterable[Row]) -> Table:
    result = Table(title="Largest micro batch that fits, by prediction", title_justify="left")
    for name in ("configuration", "largest batch", "headroom, GiB", "batch of one"):
        result.add_column(name, justify="left" if name == "configuration" else "right")
    for row in rows:
        headroom = "-" if row.headroom_gib is None else f"{row.headroom_gib:.1f}"
        result.add_row(" ".join(row.words), str(row.batch or "-"), headroom, row.verdict_of_one.replace("_", " "))
    return result
