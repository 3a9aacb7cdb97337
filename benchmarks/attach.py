"""Cost of memlab's meters inside a command: step times in one process, peaks in processes with and without the meters.

    python -m benchmarks.attach [--script raw_loop|trainer] [--size tiny|1b] [--pairs N] [--steps N] [--output FILE]

Each script (benchmarks/commands/) trains on texts of different lengths and writes down its own step times and torch's
own peaks. Each is run three times: once for the step times, and then bare (B) and metered (M) for the peaks.

- Step time: after a warm-up (``--warmup`` steps), one process alternates blocks of steps, in which the meters rest (B)
  or work (M), in the order BMMB, so that a drift of the machine cancels out. The time of a step lies between its end
  and that of the step before, on the script's own CUDA events, or on a CPU on its own clock. All blocks have the same
  batches. The first step of a block is left out: the host may be ahead of the device when the meters change. Resting
  meters are not away: each listener still costs its call and its first check (benchmarks/commands/blocks.py).
- Peak memory on a GPU: what ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved`` tell the script at its end.
  So a difference would also show a meter that changes what the script reads. memlab's own figure in the rank's file has
  to be equal to it: the benchmark fails otherwise. The bare process knows nothing of memlab.
- Peak memory on a CPU: ``ru_maxrss``, which differs between any two processes by a few MiB.

The cost in step time is the median over the pairs of neighbouring blocks (the seconds of all their timed steps), with
the quartiles and an interval that holds the true median with a probability of at least 95 %: between two order
statistics, since the number of pairs below the median is binomial (``--pairs``: at least 6). A step that is rarely
longer, as when the rank's file is written, hardly moves a median. So the cost of all metered blocks together, against
all bare ones, is given as well.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from math import comb
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from memlab.files.disk import write_output
from memlab.files.json_file import read_json, write_json
from memlab.meters.install import environment, install
from memlab.meters.options import MeterOptions

SCRIPTS = Path(__file__).parent / "commands"
BARE, METERED = "bare", "metered"
LEAST_PAIRS = 6
"""From fewer pairs, even the smallest and the largest share hold the median with a probability below 95 %."""


def main() -> None:
    parser = argparse.ArgumentParser(description="What memlab's meters cost inside a command.")
    parser.add_argument("--script", choices=["raw_loop", "trainer"], action="append", help="default: both")
    parser.add_argument("--size", choices=["tiny", "1b"], default="tiny")
    parser.add_argument("--pairs", type=int, default=20, help=f"blocks of each kind, at least {LEAST_PAIRS}")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of a block, at least 2")
    parser.add_argument("--warmup", type=int, default=20, help="steps before the blocks, and those of a peak")
    parser.add_argument("--output", type=Path, help="write all figures here, as JSON")
    arguments = parser.parse_args()
    if arguments.pairs < LEAST_PAIRS or arguments.steps < 2:
        parser.error(f"--pairs is at least {LEAST_PAIRS}, --steps at least 2")
    figures = {}
    for script in arguments.script or ["raw_loop", "trainer"]:
        blocks = alternate(script, arguments.size, arguments.warmup, arguments.steps, arguments.pairs)
        peaks = {kind: run(script, kind, arguments.size, arguments.warmup) for kind in (BARE, METERED)}
        costs = {"step_seconds": cost_of_steps(blocks), **costs_of_peaks(peaks)}
        print(report(script, arguments.size, blocks, peaks, costs), flush=True)
        figures[script] = {"costs": costs, "blocks": blocks, "peaks": peaks}
    if arguments.output:
        write_json(arguments.output, {"size": arguments.size, **figures}, write_output)


def alternate(script: str, size: str, warmup: int, steps: int, pairs: int) -> list[dict[str, Any]]:
    """Run a script in which the meters rest and work by turns. Returns the blocks without their first steps."""
    kinds = [METERED if index % 4 in (1, 2) else BARE for index in range(2 * pairs)]
    seconds = run(script, METERED, size, warmup, steps, kinds)["step_seconds"]
    begins = range(warmup, len(seconds), steps)
    return [
        {"kind": kind, "step_seconds": seconds[begin + 1 : begin + steps]}
        for kind, begin in zip(kinds, begins, strict=True)
    ]


def run(script: str, kind: str, size: str, warmup: int, steps: int = 1, kinds: list[str] | None = None) -> Any:
    """Run a script in a process of its own, bare or under the meters, with a block for each of ``kinds``."""
    kinds = kinds or []
    with tempfile.TemporaryDirectory(prefix="memlab-attach-") as name:
        folder = Path(name)
        environ = dict(os.environ)
        if kind == METERED:
            install(folder, MeterOptions(folder=name, started_at=time.time()))
            environ = environment(environ, folder)
        output = folder / "figures.json"
        command = [sys.executable, str(SCRIPTS / f"{script}.py"), str(output), size, str(warmup), str(steps), *kinds]
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        figures = read_json(output)
        if kind == METERED:
            check(read_json(folder / "rank0.json"), figures, warmup + steps * kinds.count(METERED))
    return figures


def check(rank: dict[str, Any], figures: dict[str, Any], steps: int) -> None:
    """Exit with a message if the meters saw other steps than the metered ones, or other peaks than the script."""
    if rank["attached"]["meter_errors"] or rank["attached"]["steps"] != steps:
        sys.exit(f"{rank['attached']['steps']} of {steps} steps, errors: {rank['attached']['meter_errors']}")
    if rank["memory_source"] == "cuda_caching_allocator":
        mine = rank["peak_allocated_bytes"], rank["peak_reserved_bytes"]
        if mine != (figures["peak_bytes"], figures["peak_reserved_bytes"]):
            sys.exit(f"memlab's peaks are {mine}, the script's {figures['peak_bytes'], figures['peak_reserved_bytes']}")


def cost_of_steps(blocks: list[dict[str, Any]]) -> dict[str, float]:
    """Compute the cost of the meters in step time, as shares of the bare time, from pairs of neighbouring blocks."""
    shares, totals = [], {BARE: 0.0, METERED: 0.0}
    for pair in zip(blocks[::2], blocks[1::2], strict=True):
        seconds = {block["kind"]: sum(block["step_seconds"]) for block in pair}
        shares.append(seconds[METERED] / seconds[BARE] - 1)
        totals = {kind: totals[kind] + seconds[kind] for kind in totals}
    lower, middle, upper = quantiles(shares, n=4)
    least, most = interval_of_median(shares)
    together = totals[METERED] / totals[BARE] - 1
    return {
        "lower": lower, "median": middle, "upper": upper, "least": least, "most": most, "together": together,
    }  # fmt: skip


def interval_of_median(values: list[float], probability: float = 0.95) -> tuple[float, float]:
    """Return the narrowest two order statistics, equally far from the ends, that hold the median of the population.

    The k-th smallest and k-th largest of n values miss it with the probability 2 P(B < k), B binomial (n, 1/2)
    (Conover, Practical Nonparametric Statistics, 3.2).
    """
    values, number = sorted(values), len(values)
    rank, missed = 0, 2 / 2**number
    while missed <= 1 - probability:
        rank += 1
        missed += 2 * comb(number, rank) / 2**number
    if rank == 0:
        raise ValueError(f"{number} values are too few for an interval of probability {probability}.")
    return values[rank - 1], values[-rank]


def costs_of_peaks(peaks: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Compute what the meters add to each peak, as a share of that of the bare process."""
    names = [name for name in ("peak_bytes", "peak_reserved_bytes") if peaks[BARE][name]]
    return {name: peaks[METERED][name] / peaks[BARE][name] - 1 for name in names}


def report(script: str, size: str, blocks: list[Any], peaks: dict[str, Any], costs: dict[str, Any]) -> str:
    bare = [median(block["step_seconds"]) for block in blocks if block["kind"] == BARE]
    cost = costs["step_seconds"]
    on_gpu = "peak_reserved_bytes" in costs
    memory = {"peak_bytes": "peak allocated" if on_gpu else "peak resident", "peak_reserved_bytes": "peak reserved"}
    return "\n".join(
        [
            f"{script} ({size}), 1 rank, {len(bare)} pairs of blocks of {len(blocks[0]['step_seconds'])} timed steps",
            f"  bare step: {median(bare):.5f} s (blocks: {min(bare):.5f} to {max(bare):.5f})",
            f"  the meters add to step time, median of the pairs: {cost['median']:+.3%} "
            f"(95 %: {cost['least']:+.3%} to {cost['most']:+.3%}; "
            f"quartiles: {cost['lower']:+.3%} to {cost['upper']:+.3%})",
            f"  all metered blocks against all bare ones: {cost['together']:+.3%}",
            *(
                f"  {memory[name]}, 1 pair of processes: {peaks[BARE][name] / 2**20:,.1f} MiB bare, "
                f"{peaks[METERED][name] / 2**20:,.1f} MiB metered ({costs[name]:+.3%})"
                for name in memory
                if name in costs
            ),
        ]
    )


if __name__ == "__main__":
    main()
