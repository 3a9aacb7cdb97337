"""Runs ``train.py`` as it is and with ever less memory, on a GPU: ``python measure.py predicted.csv measured.csv``.

``limit_bytes``: the smallest of the limits under which it trains; they are shares of the predicted reserved memory.
"""

import csv
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

SHARES = (0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.5)
SIDE_BY_SIDE = 6


def trained(model: str, mode: str, limit: float | None = None) -> list[int] | None:
    """Return the peaks of allocated and reserved bytes; ``None`` if it does not train."""
    options = (["search"] if mode == "search" else []) + ([] if limit is None else ["limit", str(limit / 2**30)])
    words = [sys.executable, str(Path(__file__).with_name("train.py")), model, *options]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    if run.returncode and "out of memory" not in run.stderr:
        print(model, options, run.stderr.strip().splitlines()[-1][:200], flush=True)
    return None if run.returncode else list(map(int, run.stdout.split()))


def main() -> None:
    predicted, measured = sys.argv[1:]
    with open(predicted) as file, open(measured, "w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["model", "mode", "allocated_bytes", "reserved_bytes", "limit_bytes"])
        for each in csv.DictReader(file):
            model, mode, reserved = each["model"], each["mode"], int(each["need_reserved_bytes"])
            peaks = trained(model, mode) or ["", ""]
            with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
                found = pool.map(trained, repeat(model), repeat(mode), (share * reserved for share in SHARES))
            fits = [round(share * reserved) for share, result in zip(SHARES, found, strict=True) if result]
            rows.writerow([model, mode, *peaks, min(fits, default="")])
            print(model, mode, peaks, [fits[0] / reserved if fits else None], flush=True)
            out.flush()


if __name__ == "__main__":
    main()
