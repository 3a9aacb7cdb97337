"""``python tests/gpu/same_measurements.py BEFORE OUT [PART...]``: prove that a change moves no measurement, on a GPU.

BEFORE is a checkout of the code before the change. Both codes measure the same points in turn, on one GPU: before, now,
before, now, ... Of each point the status, the phases and their allocated peaks must be equal, to the byte; reserved
peaks may differ by RESERVED_BYTES. The median of a case's seconds may be higher by SLOWER. Each part takes less than
eight minutes: run them one after another where time on the GPU is short. OUT gets the run folders and cases.csv.
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
        "deepspeed": [
            "deepspeed",
            "--num_gpus",
            "1",
            str(NOW / "tests/scripts/deepspeed_loop.py"),
            "--stage",
            "2",
            *LOOP,
        ],
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


def differences(before: Record, now: Record) -> Iterator[str]:
    """Yield what a change has moved in a measured record."""
    if before.status != now.status:
        yield f"status was {before.status}, is {now.status} ({now.reason})"
        return
    if len(before.ranks) != len(now.ranks):
        yield f"{len(before.ranks)} ranks, now {len(now.ranks)}"
        return
    for old, new in zip(before.ranks, now.ranks, strict=True):
        if old["phases"].keys() != new["phases"].keys():
            yield f"phases were {[*old['phases']]}, are {[*new['phases']]}"
            continue
        pairs = [
            ("", old, new),
            *((f" of {name}", phase, new["phases"][name]) for name, phase in old["phases"].items()),
        ]
        for (where, was, is_), key in product(pairs, ("peak_allocated_bytes", "peak_reserved_bytes")):
            most = RESERVED_BYTES if "reserved" in key else 0
            if abs((was[key] or 0) - (is_[key] or 0)) > most:
                yield f"{key}{where} was {was[key]}, is {is_[key]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("before", type=Path, metavar="BEFORE", help="checkout of the code before the change")
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(OWN))
    parser.add_argument("--pairs", type=int, default=3, help="of measurements (default: %(default)s)")
    arguments = parser.parse_args()
    out, bad = arguments.out.resolve(), 0
    out.mkdir(parents=True)
    with (out / "cases.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["part", "case", "points", "seconds_before", "seconds_now", "ratio", "differences"])
        for part in arguments.parts or OWN:
            for case in {**OWN[part], **COMMANDS.get(part, {})}:
                seconds: dict[Path, list[float]] = {arguments.before.resolve(): [], NOW: []}
                found: list[dict[str, Record]] = []
                for pair, code in product(range(arguments.pairs), seconds):
                    records, each = measured(
                        code, part, case, out / part / case / f"{pair}{'now' if code == NOW else 'before'}"
                    )
                    seconds[code].append(each)
                    found.append(records)
                old, new = map(statistics.median, seconds.values())
                told = [] if found[0] and len({*map(frozenset, found)}) == 1 else ["not the same points"]
                for name in found[0] if not told else ():
                    first, *again = (each[name] for each in found[::2])
                    told += [f"{name}: {each}" for one in found[1::2] for each in differences(first, one[name])]
                    told += [f"{name}, before, twice: {each}" for one in again for each in differences(first, one)]
                told += [f"slower by {new / old - 1:.0%}"] if new > old * (1 + SLOWER) else []
                bad += bool(told)
                row = [part, case, len(found[0]), f"{old:.2f}", f"{new:.2f}", f"{new / old:.3f}", "; ".join(told[:5])]
                table.writerow(row)
                file.flush()
                print(*row, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
