"""``python tests/gpu/same_measurements.py BEFORE OUT [PART...]``: prove that a change moves no measurement, on a GPU.

BEFORE is a checkout of the code before the change. That code and today's measure each point in turn, on one GPU.
Status, phases and allocated peaks of a point must be equal, to the byte. Reserved peaks may differ by RESERVED_BYTES.
The median time of today's code may be longer by SLOWER. A part can be run alone: one pair of the part ``launch`` took
four minutes on an H100. OUT receives the run folders and cases.csv.
"""

import argparse
import csv
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from memlab.core.record import Record
from memlab.runs.folder import RunFolder

RESERVED_BYTES, SLOWER = 2 << 20, 0.05

NOW = Path(__file__).resolve().parents[2]

SMALL = ("model=smollm2_135m", "seq_len.tokens=512")
LARGE = ("model=qwen25_05b", "seq_len.tokens=1024")
LOOP = ["--hidden=1024", "--layers=8", "--heads=16", "--length=512", "--batch=4", "--steps=4"]

OWN = {
    "stages": {f"zero{stage}": (*SMALL, f"zero_stage=zero{stage}") for stage in range(4)},
    "adapters": {
        "lora": (*LARGE, "zero_stage=zero2", "adapter=lora"),
        "qlora": (*LARGE, "zero_stage=zero2", "adapter=qlora"),
        "liger": (*LARGE, "zero_stage=zero2", "kernels=liger"),
    },
    "others": {
        "offload": (*LARGE, "zero_stage=zero2", "offload=optimizer"),
        "checkpointing": (*LARGE, "zero_stage=zero3", "checkpointing=full", "allocator=expandable"),
        "oom": (*LARGE, "zero_stage=zero1", "batch.micro=1024"),
    },
    "launch": {
        "shared": ("model=qwen25_05b", "zero_stage=zero2", "seq_len.tokens=256,512,1024,2048", "batch.micro=1,2")
    },
}
"""Part -> case -> overrides of a sweep: 18 points."""

COMMANDS = {
    "launch": {
        "plain": ["python3", str(NOW / "tests/scripts/plain.py"), *LOOP],
        "deepspeed": ["deepspeed", "--num_gpus=1", str(NOW / "tests/scripts/deepspeed_loop.py"), "--stage=2", *LOOP],
    }
}


def words_of(part: str, case: str, folder: Path) -> list[str]:
    """Return the words that measure a case. They run in the folder of the code."""
    if command := COMMANDS.get(part, {}).get(case):
        return ["-m", "memlab", "measure", "--output", str(folder / "run"), "--", *command]
    sweep = ["hardware=auto", "hardware.gpus=1", "measure=quick", f"hydra.sweep.dir={folder}"]
    return ["launch.py", "-m", *sweep, *OWN[part][case]]


def measured(code: Path, part: str, case: str, folder: Path) -> tuple[dict[str, Record], float]:
    """Measure a case. Returns its records by the names of run folders, and the seconds a point."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")])}
    folder.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with folder.with_suffix(".log").open("w") as log:
        words = [sys.executable, *words_of(part, case, folder)]
        subprocess.run(words, cwd=code, env=environ, stdout=log, stderr=subprocess.STDOUT, check=False)
    seconds = time.monotonic() - began
    found = {path.parent.name: RunFolder(path.parent).read_record() for path in folder.glob(f"*/{RunFolder.RECORD}")}
    return found, seconds / max(len(found), 1)


def differences(first: Record, other: Record) -> Iterator[str]:
    """Yield what differs in two measured records of a point."""
    if (first.status, len(first.ranks)) != (other.status, len(other.ranks)):
        yield f"{first.status} on {len(first.ranks)} ranks, {other.status} on {len(other.ranks)} ({other.reason})"
        return
    for old, new in zip(first.ranks, other.ranks, strict=True):
        if old["phases"].keys() != new["phases"].keys():
            yield f"phases {[*old['phases']]}, {[*new['phases']]}"
            continue
        parts = {"": (old, new)} | {f" of {name}": (old["phases"][name], new["phases"][name]) for name in old["phases"]}
        for (where, (was, is_)), key in product(parts.items(), ("peak_allocated_bytes", "peak_reserved_bytes")):
            most = RESERVED_BYTES if "reserved" in key else 0
            if abs((was[key] or 0) - (is_[key] or 0)) > most:
                yield f"{key}{where} {was[key]}, {is_[key]}"


def compared(before: Path, part: str, case: str, folder: Path, pairs: int) -> tuple[int, list[float], list[str]]:
    """Measure a case in turn with both codes. Every second pair begins with today's code: the first run of a pair may
    find a colder machine. Returns its points, the median seconds a point of both codes, and what differs from the first
    measurement: another one of the code before differs by noise."""
    codes = {"before": before, "now": NOW}
    found: dict[str, list[tuple[dict[str, Record], float]]] = {name: [] for name in codes}
    for pair in range(pairs):
        for name in reversed(codes) if pair % 2 else codes:
            found[name].append(measured(codes[name], part, case, folder / f"{pair}{name}"))
    first, seconds = found["before"][0][0], [statistics.median(each for _, each in some) for some in found.values()]
    told = [] if first else ["no point was measured"]
    for name, records in ((name, records) for name, some in found.items() for records, _ in some):
        if records.keys() != first.keys():
            told.append(f"{name}: other points")
            continue
        told += [f"{name}, {point}: {each}" for point in first for each in differences(first[point], records[point])]
    if seconds[1] > seconds[0] * (1 + SLOWER):
        told.append(f"slower by {seconds[1] / seconds[0] - 1:.0%}")
    return len(first), seconds, told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("before", type=Path, metavar="BEFORE", help="checkout of the code before the change")
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(OWN)} (default: all)")
    parser.add_argument("--pairs", type=int, default=3, help="measurements with each code (default: %(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - OWN.keys():
        parser.error(f"no such part: {', '.join(unknown)}; choose from {', '.join(OWN)}")
    out, bad = arguments.out.resolve(), 0
    out.mkdir(parents=True)
    with (out / "cases.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["part", "case", "points", "seconds_before", "seconds_now", "differences"])
        for part in arguments.parts or OWN:
            for case in OWN[part] | COMMANDS.get(part, {}):
                points, seconds, told = compared(
                    arguments.before.resolve(), part, case, out / part / case, arguments.pairs
                )
                bad += bool(told)
                row = [part, case, points, *(f"{each:.2f}" for each in seconds), "; ".join(told[:5])]
                table.writerow(row)
                file.flush()
                print(*row, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
