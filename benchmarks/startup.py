"""What a person waits for when nothing runs: help pages, the composed configuration, tab completion, one run's table.

    python -m benchmarks.startup [--rounds N]

Each round starts every command once, one after another, so that other load on the machine affects all commands alike.
The table has the median over the rounds: wall-clock seconds, CPU seconds (user + system), and CPU seconds as a multiple
of `python -c "import hydra"`, the minimum for a command that composes a configuration. The multiple depends less on the
machine than the seconds do.

Measured on 2 cores of a virtual machine (Intel Xeon), Python 3.11.7, hydra-core 1.3.8, load 1 to 3. The figures are
medians of 9 rounds. The columns "before" are medians of 5 rounds, from when launch.py imported everything that a run
needs and Hydra printed the help page.

    command                     wall s   CPU s  of import hydra   before: wall s   CPU s  of import hydra
    python -c pass               0.010   0.009             0.07            0.010   0.010             0.07
    python -c 'import hydra'     0.143   0.139             1.00            0.139   0.136             1.00
    launch.py --help             0.202   0.198             1.42            1.361   1.359             9.97
    launch.py --cfg job          0.445   0.441             3.16            0.670   0.694             5.09
    launch.py -sc query=bash     0.222   0.218             1.56            0.437   0.438             3.21
    memlab --help                0.029   0.029             0.21            0.030   0.030             0.22
    memlab diff --help           0.033   0.032             0.23            0.034   0.034             0.25
    memlab show RUN              0.126   0.125             0.90            0.126   0.125             0.92
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LAUNCH = [sys.executable, str(ROOT / "launch.py")]
MEMLAB = [sys.executable, "-c", "from memlab.cli.main import main; main()"]
RUN = str(next((ROOT / "results" / "llama3_8b_zero3_fresh_4xH200").glob("*-zero3-s2001-*")))

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import hydra'": [sys.executable, "-c", "import hydra"],
    "launch.py --help": [*LAUNCH, "--help"],
    "launch.py --cfg job": [*LAUNCH, "--cfg", "job"],
    "launch.py -sc query=bash": [*LAUNCH, "-sc", "query=bash"],
    "memlab --help": [*MEMLAB, "--help"],
    "memlab diff --help": [*MEMLAB, "diff", "--help"],
    "memlab show RUN": [*MEMLAB, "show", RUN],
}
REFERENCE = "python -c 'import hydra'"

COMPLETED = "python launch.py zero_stage="


@dataclass
class Cost:
    """Wall-clock and CPU seconds of one process."""

    wall: float
    cpu: float


def cost_of(command: list[str], folder: str) -> Cost:
    completion = {"COMP_LINE": COMPLETED, "COMP_POINT": str(len(COMPLETED))}
    environment = {**os.environ, **completion, "PYTHONPATH": str(ROOT)}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    costs: dict[str, list[Cost]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="memlab-startup-") as folder:
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                costs[name].append(cost_of(command, folder))
    reference = statistics.median(cost.cpu for cost in costs[REFERENCE])
    print(f"{'command':26} {'wall s':>7} {'CPU s':>7} {'of import hydra':>16}")
    for name, measured in costs.items():
        cpu = statistics.median(cost.cpu for cost in measured)
        print(f"{name:26} {statistics.median(cost.wall for cost in measured):7.3f} {cpu:7.3f} {cpu / reference:16.2f}")


if __name__ == "__main__":
    main()
