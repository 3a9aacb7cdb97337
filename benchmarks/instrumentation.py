"""Cost of memlab's instrumentation: one training loop with and without the meters, alternating, in one process.

    python -m benchmarks.instrumentation [--pairs N] [--output FILE] [OVERRIDES...]

One rank trains the composed configuration (default: ``model=tiny``) in one ``Trainer.train()`` of one engine. The steps
are split into blocks, bare (without the meters) and metered, in the order ABBA, so that a drift cancels out. All blocks
begin in the same way: the allocator's cache is emptied, peaks are reset, and the warm-up steps (``measure.warmup``) are
not timed.

A *metered* block works like ``memlab run``: memory is counted for each phase (the engine's forward, backward and step),
events mark each step on the device, the driver is queried for used memory, and losses are kept. A *bare* block does
none of this. The benchmark compares:

- Step time: from the begin of one step to the begin of the next, so it includes everything between two steps. The
  benchmark itself reads it in both kinds of blocks, with CUDA events, or on a CPU with the clock of the process. It
  also reports the host's time inside the meters, an upper bound of what the meters add to a step: this time is free of
  the noise of a whole step.
- Peak memory on a GPU: torch's peak allocated and reserved over the whole block, including the warm-up. In a metered
  block this is the largest of memlab's peaks by phase; in a bare block, a peak without resets in between.
- Peak memory on a CPU: the highest resident set of the timed steps. memlab's meter of live tensors is paused in the
  timed steps, as in every run. So its cost, which falls into the warm-up, is in no figure.

Costs are the median over the pairs of neighbouring blocks, with the quartiles. On a machine with other load, set
OMP_NUM_THREADS=1 and use more pairs: the noise of a CPU is far larger than the cost.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from memlab.cli.compose import compose_config
from memlab.core.plan import Plan, make_plan
from memlab.files.disk import write_output
from memlab.files.json_file import read_json, write_json
from memlab.launch.command import free_port
from memlab.runs.folder import RunFolder
from memlab.system.environment import describe_environment, rank_environment, sweep_stale_locks
from memlab.system.machine import detect

DEFAULTS = ["hardware.gpus=1", "measure.warmup=3", "measure.steps=12"]
RESULT = "blocks.json"
BARE, METERED = "bare", "metered"


def main() -> None:
    parser = argparse.ArgumentParser(description="What memlab's instrumentation costs.")
    parser.add_argument("overrides", nargs="*", help="the words of a run")
    parser.add_argument("--pairs", type=int, default=16, help="blocks of each kind, at least 2")
    parser.add_argument("--output", type=Path, help="write all figures here, as JSON")
    arguments = parser.parse_args()
    plan = make_plan(*compose_config([*DEFAULTS, *arguments.overrides]))
    with tempfile.TemporaryDirectory(prefix="memlab-instrumentation-") as folder:
        blocks = run_rank(plan, Path(folder), 2 * arguments.pairs)
    costs = compare(blocks)
    print(report(plan, blocks, costs))
    if arguments.output:
        environment = describe_environment(plan, detect())
        figures = {"costs": costs, "blocks": blocks, "config": plan.to_json()["config"], "environment": environment}
        write_json(arguments.output, figures, write_output)


def run_rank(plan: Plan, folder: Path, num_blocks: int) -> list[dict[str, Any]]:
    """Measure the blocks in one rank: a separate process with the environment of a real run. Returns their figures."""
    sweep_stale_locks()
    blocks = [RunFolder(folder / f"{index:03d}-{kind_of(index)}") for index in range(num_blocks)]
    for block in blocks:
        block.start(plan, command=[])
    port = str(free_port())
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**rank_environment(plan, detect()), **alone, "MEMLAB_STARTED_AT": "0"}
    command = [sys.executable, "-m", "benchmarks.instrumentation_rank", str(folder / RESULT), *map(str, blocks)]
    done = subprocess.run(command, env=environment)
    if done.returncode != 0:
        logs = [block.rank_log(0).read_text() for block in blocks if block.rank_log(0).exists()]
        sys.exit(f"{''.join(logs[-1:])}\nThe rank ended with exit code {done.returncode}.")
    return read_json(folder / RESULT)


def kind_of(index: int) -> str:
    """Return the kind of a block, in the order bare, metered, metered, bare, bare, ..."""
    return METERED if index % 4 in (1, 2) else BARE


def compare(blocks: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Compute the cost of the meters for each figure, as a share of the bare block: the quartiles over the pairs."""
    costs = {}
    for figure in ("step_seconds", "peak_bytes", "peak_reserved_bytes"):
        shares = []
        for pair in zip(blocks[::2], blocks[1::2], strict=True):
            values = {block["kind"]: _median(block[figure]) for block in pair}
            if values[BARE]:
                shares.append(values[METERED] / values[BARE] - 1)
        if shares:
            costs[figure] = dict(zip(("lower", "median", "upper"), quantiles(shares, n=4), strict=True))
    return costs


def report(plan: Plan, blocks: list[dict[str, Any]], costs: dict[str, dict[str, float]]) -> str:
    bare, metered = ([block for block in blocks if block["kind"] == kind] for kind in (BARE, METERED))
    steps = [median(block["step_seconds"]) for block in bare]
    inside = median(block["meter_seconds_per_step"] for block in metered)
    memory = "peak allocated" if plan.config.hardware.device == "cuda" else "peak resident"
    lines = [
        f"{plan.run_id}, 1 rank, {len(bare)} pairs of blocks of {len(bare[0]['step_seconds'])} timed steps",
        f"bare step: {median(steps):.5f} s (blocks: {min(steps):.5f} to {max(steps):.5f}), "
        f"{memory} {median(block['peak_bytes'] for block in bare) / 2**20:,.1f} MiB",
        *lines_of_costs(costs, memory),
        f"the host's time inside the meters: {inside * 1e3:.3f} ms a step, {inside / median(steps):.3%} of a bare one",
    ]
    return "\n".join(lines)


def lines_of_costs(costs: dict[str, dict[str, float]], memory: str) -> list[str]:
    """Say what the meters add. ``memory``: what ``peak_bytes`` is a peak of."""
    names = {"step_seconds": "step time", "peak_bytes": memory, "peak_reserved_bytes": "peak reserved"}
    return [
        "what the meters add, median of the pairs (quartiles):",
        *(
            f"  {names[figure]:<15} {cost['median']:+.3%}  ({cost['lower']:+.3%} to {cost['upper']:+.3%})"
            for figure, cost in costs.items()
        ),
    ]


def _median(values: float | list[float] | None) -> float | None:
    return median(values) if isinstance(values, list) else values


if __name__ == "__main__":
    main()
