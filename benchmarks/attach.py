"""Cost of memlab's meters inside a command: scripts with and without them, alternating, each in a process of its own.

    python -m benchmarks.attach [--script raw_loop|trainer] [--size tiny|1b] [--pairs N] [--steps N] [--output FILE]

Each script (benchmarks/commands/) trains on texts of different lengths and writes down its own step times and torch's
own peaks; it does not know of memlab. The processes run bare (B) and metered (M) in the order BMMB, so that a drift of
the machine cancels out. Of each process the first steps (``--warmup``) are left out, and the others' median counts.

- Step time: between the ends of neighbouring steps, with the script's own CUDA events, or on a CPU its own clock.
- Peak memory on a GPU: what ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved`` tell the script at its end.
  So a difference would also show a meter that changes what the script reads. memlab's own figure in the rank's file has
  to be equal to it: the benchmark fails otherwise.
- Peak memory on a CPU: ``ru_maxrss``, which differs between any two processes by a few MiB.

Costs are the median over the pairs of neighbouring processes, with the quartiles (``--pairs``: at least 2).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.instrumentation import BARE, METERED, compare, kind_of, lines_of_costs
from memlab.attach.install import environment, install
from memlab.attach.options import Options
from memlab.files.json_file import read_json, write_json

SCRIPTS = Path(__file__).parent / "commands"


def main() -> None:
    parser = argparse.ArgumentParser(description="What memlab's meters cost inside a command.")
    parser.add_argument("--script", choices=["raw_loop", "trainer"], action="append", help="default: both")
    parser.add_argument("--size", choices=["tiny", "1b"], default="tiny")
    parser.add_argument("--pairs", type=int, default=4, help="processes of each kind, at least 2")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of a process")
    parser.add_argument("--warmup", type=int, default=10, help="steps that are left out")
    parser.add_argument("--output", type=Path, help="write all figures here, as JSON")
    arguments = parser.parse_args()
    figures = {}
    for script in arguments.script or ["raw_loop", "trainer"]:
        blocks = [
            run(script, kind_of(index), arguments.size, arguments.steps, arguments.warmup)
            for index in range(2 * arguments.pairs)
        ]
        costs = compare(blocks)
        print(report(script, arguments.size, blocks, costs), flush=True)
        figures[script] = {"costs": costs, "blocks": blocks}
    if arguments.output:
        write_json(arguments.output.resolve(), {"size": arguments.size, **figures})


def run(script: str, kind: str, size: str, steps: int, warmup: int) -> dict[str, Any]:
    """Run a script in a process of its own. Returns its figures without the warm-up."""
    with tempfile.TemporaryDirectory(prefix="memlab-attach-") as name:
        folder = Path(name)
        environ = dict(os.environ)
        if kind == METERED:
            install(folder, Options(folder=name, started_at=time.time()))
            environ = environment(environ, folder)
        output = folder / "figures.json"
        command = [sys.executable, str(SCRIPTS / f"{script}.py"), str(output), size, str(steps)]
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        figures = read_json(output)
        if kind == METERED:
            check(read_json(folder / "rank0.json"), figures, steps)
    return {"kind": kind, **figures, "step_seconds": figures["step_seconds"][warmup:]}


def check(rank: dict[str, Any], figures: dict[str, Any], steps: int) -> None:
    """Exit with a message if the rank's file does not tell what the script has read."""
    if rank["attached"]["meter_errors"] or rank["attached"]["steps"] != steps:
        sys.exit(f"{rank['attached']['steps']} of {steps} steps, errors: {rank['attached']['meter_errors']}")
    if rank["memory_source"] == "cuda_caching_allocator":
        mine = rank["peak_allocated_bytes"], rank["peak_reserved_bytes"]
        if mine != (figures["peak_bytes"], figures["peak_reserved_bytes"]):
            sys.exit(f"memlab's peaks are {mine}, the script's {figures['peak_bytes'], figures['peak_reserved_bytes']}")


def report(script: str, size: str, blocks: list[dict[str, Any]], costs: dict[str, dict[str, float]]) -> str:
    bare = [block for block in blocks if block["kind"] == BARE]
    seconds = [median(block["step_seconds"]) for block in bare]
    peak = median(block["peak_bytes"] for block in bare)
    on_gpu = bare[0]["peak_reserved_bytes"] is not None
    memory = "peak allocated" if on_gpu else "peak resident"
    lines = [
        f"{script} ({size}), 1 rank, {len(bare)} pairs of processes of {len(bare[0]['step_seconds'])} timed steps",
        f"bare step: {median(seconds):.5f} s (processes: {min(seconds):.5f} to {max(seconds):.5f}), "
        f"{memory} {peak / 2**20:,.1f} MiB",
        *lines_of_costs(costs, memory),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
