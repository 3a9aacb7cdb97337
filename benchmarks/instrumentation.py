"""What memlab's instrumentation costs: the same training loop with and without it, in turns, in one process.

    python -m benchmarks.instrumentation [--pairs N] [--output FILE] [OVERRIDES...]

One rank trains the composed configuration (default: ``model=tiny``) in one ``Trainer.train()`` of one engine. Its steps
come in blocks, without the meters and with them, in the order of ABBA so that a drift cancels out. Both kinds begin
alike: unused memory is given back, peaks begin anew, and the warm-up steps (``measure.warmup``) are not timed.

A *metered* block is what ``memlab run`` does: the engine's forward, backward and step count their memory by phase, each
step is marked on the device's clock, the driver is asked for used memory, losses are kept. A *bare* block does none of
this. What is compared:

- step time: from the begin of one step to the begin of the next, on the device's clock (CUDA events; on a CPU the
  process's clock), read by this benchmark in both kinds alike, so that it holds everything that happens between two
  steps. Beside it stands the host's time inside the meters, an upper bound of what they can add to a step: it is free
  of the noise of a whole step.
- peak memory on a GPU: torch's peak allocated and reserved over the whole block, warm-up included: the largest of
  memlab's peaks by phase against one that nobody reset in between.
- peak memory on a CPU: the highest resident set of the timed steps. memlab's meter of live tensors is paused in them,
  as in every run, so its time is in neither figure: it is paid in the warm-up.

Costs are told as the median over the pairs of neighbouring blocks, with the quartiles. On a machine that others use,
set OMP_NUM_THREADS=1 and take more pairs: the noise of a CPU is far above the cost.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from memlab.compose import compose_config
from memlab.launch.command import free_port
from memlab.launch.environment import describe_environment, rank_environment, sweep_stale_locks
from memlab.machine import detect
from memlab.plan import Plan, make_plan
from memlab.record import RunFolder, read_json, write_json

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
        figures = {"costs": costs, "blocks": blocks, "config": plan.config, "environment": environment}
        write_json(arguments.output.resolve(), figures)


def run_rank(plan: Plan, folder: Path, num_blocks: int) -> list[dict[str, Any]]:
    """What each block took, measured in one rank: a process of its own, with the environment of a real run's."""
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
    """bare, metered, metered, bare, and again."""
    return METERED if index % 4 in (1, 2) else BARE


def compare(blocks: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For each figure what the meters add, as a share of the bare block beside it: the quartiles over the pairs."""
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
    memory = "peak allocated" if plan.config["hardware"]["device"] == "cuda" else "peak resident"
    names = {"step_seconds": "step time", "peak_bytes": memory, "peak_reserved_bytes": "peak reserved"}
    lines = [
        f"{plan.run_id}, 1 rank, {len(bare)} pairs of blocks of {len(bare[0]['step_seconds'])} timed steps",
        f"bare step: {median(steps):.5f} s (blocks: {min(steps):.5f} to {max(steps):.5f}), "
        f"{memory} {median(block['peak_bytes'] for block in bare) / 2**20:,.1f} MiB",
        "what the meters add, median of the pairs (quartiles):",
        *(
            f"  {names[figure]:<15} {cost['median']:+.3%}  ({cost['lower']:+.3%} to {cost['upper']:+.3%})"
            for figure, cost in costs.items()
        ),
        f"the host's time inside the meters: {inside * 1e3:.3f} ms a step, {inside / median(steps):.3%} of a bare one",
    ]
    return "\n".join(lines)


def _median(values: float | list[float] | None) -> float | None:
    return median(values) if isinstance(values, list) else values


if __name__ == "__main__":
    main()
