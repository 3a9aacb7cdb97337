"""What memlab itself costs for each point of a sweep.

    python -m benchmarks.sweep_overhead [POINTS ...] [--isolation fresh]

The benchmark runs a sweep over two ZeRO stages and POINTS / 2 lengths, from the command line to the last record:
compose, plan, start, watch, record. All of this is memlab's own code. A script replaces DeepSpeed's launcher and its
ranks and writes the rank files at once. With ``--isolation fresh`` every point has its own launch: two processes, and
the time until memlab notices that they have ended. Otherwise up to 64 points share a launch, which is the default.

For comparison, Hydra's own launcher and sweeper (``hydra/launcher=basic``) run an empty function on the same words and
conf/. Every measurement is a separate process, including imports. CPU seconds are user + system, of this process and of
all processes that it started. If a cost grows linearly, the last columns stay constant.

Measured on 2 cores of a virtual machine (Intel Xeon, 2.5 GHz), Python 3.11.7, hydra-core 1.3.8, omegaconf 2.3.1. While
1,000 points were measured, the machine had other load (5 to 10), so the wall clocks of that row are upper bounds.

    points   memlab: wall s   CPU s   Hydra: wall s   CPU s   a point: memlab wall s  CPU s   of Hydra: wall  CPU
        10             1.98    1.96            4.08    4.08                    0.198  0.196             0.49 0.48
       100             7.11    7.02           35.91   35.90                    0.071  0.070             0.20 0.20
     1,000           134.73   63.15         1037.88  402.29                    0.135  0.063             0.13 0.16

With ``--isolation fresh``:

        10             3.19    2.74            4.42    4.40                    0.319  0.274             0.72 0.62
       100            18.38   13.53           36.66   36.63                    0.184  0.135             0.50 0.37

About 1.3 s of every row are a fixed cost: the start of Python and Hydra, and the first compositions.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from memlab.core.record import RankResult

ROOT = Path(__file__).resolve().parents[1]

MEMLAB = """
import sys
from memlab.cli import main as cli
from memlab.launch import job_launch

stub, rank, *sys.argv[1:] = sys.argv[1:]
job_launch.command = lambda plan, folders, gpu_ids, port: [sys.executable, "-S", "-c", stub, rank, *map(str, folders)]
cli.launch()
"""

RANKS = """
import json, pathlib, sys
values = json.loads(sys.argv[1])
for folder in sys.argv[2:]:
    for rank in (0, 1):
        path = pathlib.Path(folder, f"rank{rank}.json")
        path.with_suffix(".new").write_text(json.dumps({**values, "rank": rank}))
        path.with_suffix(".new").rename(path)
"""

HYDRA = """
import hydra
from memlab.cli.compose import CONFIG_NAME, register
from memlab.files.conf_files import conf_dir

register()
hydra.main(version_base="1.3", config_path=conf_dir(), config_name=CONFIG_NAME)(lambda config: None)()
"""


@dataclass
class Cost:
    """Wall-clock and CPU seconds of one process and of all processes that it started."""

    wall: float
    cpu: float


def words(points: int) -> list[str]:
    lengths = f"seq_len.tokens=range(1,{points // 2 + 1})"
    return ["-m", "hardware=cpu", "hardware.gpus=2", "name=overhead", "zero_stage=zero1,zero2", lengths]


def memlab_cost(points: int, isolation: str) -> Cost:
    rank = RankResult(0, "cpu", "CPU", "live_tensors", step_seconds=[0.1] * 10, warmup_seconds=[0.1] * 3)
    arguments = [RANKS, json.dumps(rank.to_json()), *words(points), f"sweep.isolation={isolation}"]
    return cost_of(MEMLAB, arguments, records=points)


def hydra_cost(points: int) -> Cost:
    return cost_of(HYDRA, [*words(points), "hydra/launcher=basic", "hydra/sweeper=basic"], records=0)


def cost_of(code: str, arguments: list[str], records: int) -> Cost:
    """Run Python code in an empty folder, and check that it leaves this number of records. Returns its cost."""
    with tempfile.TemporaryDirectory(prefix="memlab-overhead-") as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": f"{folder}/cache"}
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        assert len(list(Path(folder).glob("outputs/overhead/*/record.json"))) == records
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", nargs="*", type=int, default=[10, 100, 1000], help="even numbers")
    parser.add_argument("--isolation", choices=("shared", "fresh"), default="shared")
    arguments = parser.parse_args()
    print(
        "points   memlab: wall s   CPU s   Hydra: wall s   CPU s   a point: memlab wall s  CPU s   of Hydra: wall  CPU"
    )
    for points in sorted(arguments.points):
        own, hydra = memlab_cost(points, arguments.isolation), hydra_cost(points)
        print(
            f"{points:6,} {own.wall:16.2f} {own.cpu:7.2f} {hydra.wall:15.2f} {hydra.cpu:7.2f}"
            f"{own.wall / points:25.3f} {own.cpu / points:6.3f}"
            f"{own.wall / hydra.wall:17.2f} {own.cpu / hydra.cpu:4.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
