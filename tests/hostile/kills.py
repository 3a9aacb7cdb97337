"""Kills processes of a sweep at a random moment, resumes the sweep, and looks at what is left.

``make faults``: the moment, the signal and the victims of a try are drawn from its number. Every try is kept in a file
of results, so that the same command goes on where it was; the summary goes into docs/reliability.md.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from leftovers import segments_left, segments_left_since

from memlab.core.record import Record
from memlab.runs.folder import RunFolder
from memlab.system.deadman import marked_by
from memlab.system.environment import package_versions

ROOT = Path(__file__).resolve().parents[2]
MARK = "MEMLAB_TEST_KILLS"  # every process of a sweep carries it

SWEEP = (
    *("-m", "hardware=cpu", "zero_stage=zero1", "seq_len.tokens=16,24,32,40,48,56", "measure=quick"),
    *("zero_stage.reduce_bucket_size=100000", "hydra.sweep.dir=sweep"),
)
"""Six points that share a launch of two ranks."""

POINTS = 6

VICTIMS = {
    "memlab": "launch.py",
    "deadman": "memlab/system/deadman.py",
    "runner": "deepspeed.launcher.runner",
    "launcher": "deepspeed.launcher.launch",
    "rank": "memlab.training",
}
"""Role -> what its command line alone holds, looked for in this order."""

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSEGV)

STARTING_S = 12.0
"""Kills before the first record come this long after the start at the latest."""
POINT_S = 0.5
"""Kills after a record come this long after it at the latest."""
ENDING_S = 300.0
"""How long a sweep may take, on a machine that does other things as well."""
SETTLING_S = 20.0
"""How long processes may take to end once nothing holds them."""


@dataclass(frozen=True)
class Kill:
    """Some processes and a signal, ``wait_s`` seconds after ``records`` points were recorded."""

    victims: tuple[str, ...]
    signal: int
    records: int
    wait_s: float


def drawn(number: int) -> Kill:
    """Every second one comes after the first record; one in five orphans the launch, half of the others hit several."""
    chance = random.Random(number)
    records = chance.randint(1, POINTS - 2) if number % 2 else 0
    wait_s = chance.uniform(0, POINT_S if records else STARTING_S)
    if chance.random() < 0.2:
        return Kill(("deadman", "memlab"), signal.SIGKILL, records, wait_s)
    roles = chance.sample(sorted(VICTIMS), chance.choice((1, 1, 1, 2, 3, 5)))
    return Kill(tuple(sorted(roles)), chance.choice(SIGNALS), records, wait_s)


@dataclass
class Try:
    """What was done and what came of it. ``problems`` is empty when nothing was left and nothing was lost."""

    number: int
    victims: tuple[str, ...]
    signal: str
    hit: dict[str, int] = field(default_factory=dict)  # role -> how many processes
    records: int = 0  # points on disk when the signal was sent
    outlived: int = 0  # processes that were alive when the killed sweep's memlab had ended
    exit_code: int | None = None  # of the killed sweep
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Sweep:
    """One start of the sweep in ``folder``."""

    def __init__(self, folder: Path, mark: str):
        self.folder, self.mark = folder, f"{folder}-{mark}"
        self.output = folder / f"{mark}.out"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "launch.py"), *SWEEP],
                env={**os.environ, MARK: self.mark},
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def alive(self) -> list[int]:
        return list(marked_by(MARK, self.mark))

    def processes(self) -> dict[str, list[int]]:
        """Role -> process ids."""
        found: dict[str, list[int]] = {role: [] for role in VICTIMS}
        for pid in self.alive():
            if role := next((role for role, part in VICTIMS.items() if part in _command_line(pid)), None):
                found[role].append(pid)
        return found

    def records(self) -> dict[str, Record]:
        """Run id -> record, of the points that are over."""
        files = (self.folder / "sweep").glob(f"*/{RunFolder.RECORD}")
        return {record.run_id: record for record in (RunFolder(file.parent).read_record() for file in files)}

    def recorded(self) -> int:
        return len(list((self.folder / "sweep").glob(f"*/{RunFolder.RECORD}")))

    def end(self) -> int | None:
        """The exit code of memlab; ``None`` if it had to be killed."""
        try:
            return self.process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def _until(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(met)


def strike(sweep: Sweep, kill: Kill, outcome: Try) -> None:
    """Send the signal to those of the victims that are there, at least one, unless the sweep ends before."""
    ended = lambda: sweep.process.poll() is not None  # noqa: E731
    _until(lambda: sweep.recorded() >= kill.records or ended(), ENDING_S)
    time.sleep(kill.wait_s)

    def hit() -> bool:
        for role, pids in sweep.processes().items():
            for pid in pids if role in kill.victims else ():
                os.kill(pid, kill.signal)
                outcome.hit[role] = outcome.hit.get(role, 0) + 1
        return bool(outcome.hit)

    _until(lambda: hit() or ended(), ENDING_S)
    outcome.records = sweep.recorded()


def undisturbed(folder: Path) -> dict[str, Record]:
    """The records of the sweep when nothing happens to it."""
    folder.mkdir()
    sweep = Sweep(folder, "undisturbed")
    code = sweep.end()
    assert code == 0, sweep.output.read_text()
    return sweep.records()


def attempt(number: int, folder: Path, wanted: dict[str, Record]) -> Try:
    """Kill, resume and look, in a new ``folder``. ``wanted``: the records of an undisturbed sweep."""
    began, kill, before = time.monotonic(), drawn(number), segments_left()
    outcome = Try(number, kill.victims, signal.Signals(kill.signal).name)
    folder.mkdir()
    first = Sweep(folder, "killed")
    strike(first, kill, outcome)
    outcome.exit_code = first.end()
    outcome.outlived = len(first.alive())
    kept = {name: record for name, record in first.records().items() if record.status == "ok"}
    second = Sweep(folder, "resumed")  # at once, beside whatever is left
    code = second.end()
    outcome.problems = [
        *_unlike(second.records(), wanted),
        *(f"{name} was measured again" for name in kept if second.records().get(name) != kept[name]),
        *_left(first, second, before),
    ]
    if outcome.exit_code is None:
        outcome.problems.append("the killed sweep did not end")
    if code != 0:
        outcome.problems.append(f"the resumed sweep ended with {code}: {second.output.read_text()[-500:]}")
    first.kill()
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def _unlike(found: dict[str, Record], wanted: dict[str, Record]) -> list[str]:
    """Points that are missing or not those of an undisturbed sweep; allocated memory may differ by 0.5 %."""
    problems = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    for name, record in found.items():
        if name not in wanted or record.status != wanted[name].status:
            problems.append(f"{name} is {record.status}: {record.reason}")
            continue
        peaks = [each.summary["peak_allocated_bytes"]["max"] for each in (record, wanted[name])]
        if abs(peaks[0] / peaks[1] - 1) > 0.005:
            problems.append(f"{name} has a peak of {peaks[0]:,} bytes, undisturbed {peaks[1]:,}")
    return problems


def _left(first: Sweep, second: Sweep, before: set[Path]) -> list[str]:
    """Processes, shared memory and temporary files of the two sweeps."""
    _until(lambda: not first.alive() and not second.alive(), SETTLING_S)
    problems = [f"alive: {_command_line(pid)[:200]}" for pid in [*first.alive(), *second.alive()]]
    problems += [f"shared memory: {path}" for path in segments_left_since(before)]
    folder = first.folder / "sweep"
    files = [*folder.rglob(".*.tmp"), *folder.rglob(RunFolder.LAUNCH)]
    return problems + [f"file: {path.relative_to(folder)}" for path in files]


# --- many tries


ABOUT = """## Kills

A sweep of six points (one launch, two CPU ranks) is killed at a random moment and resumed at once. The signal and the
processes that it hits (memlab, its deadman, DeepSpeed's runner and launcher, the ranks; often several of them at once)
are drawn from the number of the try. A try is good when the resumed sweep ends with the table of an undisturbed one
(allocated memory within 0.5 %), measures no finished point again, and leaves no process, no shared memory and no
temporary file. `make faults` does it again.
"""


def summary(tries: Sequence[Try]) -> str:
    """The section of docs/reliability.md."""
    good = sum(not one.problems for one in tries)
    after = sum(one.records > 0 for one in tries)
    both = [one for one in tries if {"memlab", "deadman"} <= one.hit.keys() and one.signal == "SIGKILL"]
    versions = ", ".join(f"{name} {package_versions()[name]}" for name in ("torch", "deepspeed"))
    outlived = sum(one.outlived > 0 for one in tries)
    lines = [
        ABOUT,
        f"**{good} of {len(tries)} tries were good.** {after} were killed after the first record; in {len(both)}",
        f"SIGKILL hit memlab and its deadman at once; in {outlived} processes outlived memlab.",
        f"({time.strftime('%Y-%m-%d')}, {versions}, {len(os.sched_getaffinity(0))} cores)",
        "",
        "| signal | tries | good |",
        "|---|---|---|",
    ]
    for name, count in sorted(Counter(one.signal for one in tries).items()):
        lines.append(f"| {name} | {count} | {sum(not t.problems for t in tries if t.signal == name)} |")
    lines += ["", "| hit | tries | good |", "|---|---|---|"]
    for role in VICTIMS:
        hit = [one for one in tries if role in one.hit]
        lines.append(f"| {role} | {len(hit)} | {sum(not one.problems for one in hit)} |")
    lines += [f"\nTry {one.number}: {'; '.join(one.problems)}." for one in tries if one.problems]
    return "\n".join(lines) + "\n"


def put_section(page: Path, section: str) -> None:
    """Replace the section of the same heading, or add it at the end."""
    text = page.read_text() if page.exists() else "# Reliability\n"
    heading = section.splitlines()[0]
    rest = re.sub(rf"^{re.escape(heading)}\n.*?(?=^## |\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
    page.write_text(f"{rest.rstrip()}\n\n{section}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=100, metavar="N")
    parser.add_argument("--results", type=Path, default=ROOT / "outputs" / "kills.jsonl", metavar="FILE")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "reliability.md", metavar="FILE")
    arguments = parser.parse_args()
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    done = arguments.results.read_text().splitlines() if arguments.results.exists() else []
    tries = {one.number: one for one in (Try(**json.loads(line)) for line in done)}
    with tempfile.TemporaryDirectory(prefix="memlab-kills-") as place:
        left = [number for number in range(arguments.tries) if number not in tries]
        wanted = undisturbed(Path(place) / "undisturbed") if left else {}
        for number in left:
            one = tries[number] = attempt(number, Path(place) / str(number), wanted)
            with arguments.results.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
            print(f"{number}: {one.signal} to {one.hit}, {one.records} records, {one.problems or 'good'}", flush=True)
    chosen = [tries[number] for number in sorted(tries)]
    put_section(arguments.page, summary(chosen))
    print(summary(chosen))
    sys.exit(any(one.problems for one in chosen))


if __name__ == "__main__":
    main()
