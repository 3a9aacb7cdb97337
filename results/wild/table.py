"""Compare predictions of the list with measurements: python3 results/wild/table.py HALF PREDICTED, from the root.

HALF: A, B or C. PREDICTED: a folder that predict.sh wrote. The measurements are in results/wild/measured_HALF.tgz.
Prints markdown: a table, and counts.
"""

import csv
import json
import statistics
import sys
import tarfile
from pathlib import Path

HERE, GIB = Path(__file__).parent, 2**30
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")


def measured(half: str) -> dict[str, dict]:
    """Return the records of a half by the names of commands."""
    with tarfile.open(HERE / f"measured_{half}.tgz") as archive:
        files = [each for each in archive.getmembers() if Path(each.name).name == "record.json"]
        return {Path(each.name).parent.name: json.load(archive.extractfile(each)) for each in files}


def peaks(record: dict) -> list[int]:
    return [max((rank[key] or 0 for rank in record["ranks"]), default=0) for key in PEAKS]


def is_in_range(key: str, record: dict, truth: int) -> bool:
    """Whether a range of the prediction holds the measurement, where it has one."""
    ranges = [each[key] for each in record["command"].get("ranges", []) if key in each]
    return bool(ranges) and min(low for low, _ in ranges) <= truth <= max(high for _, high in ranges)


def main(half: str, folder: Path) -> None:
    truths = measured(half)
    seconds = {name: (int(code), int(took)) for name, code, took in csv.reader((folder / "seconds.csv").open())}
    rows = [row for row in csv.DictReader((HERE / "commands.csv").open()) if row["half"] == half]
    print("| command | kind | measured GiB: allocated, reserved | allocated | reserved | seconds |")
    print("|---|---|---|---|---|---|")
    answered: dict[str, list[bool]] = {}
    errors: list[list[float]] = [[], []]
    in_range: list[str] = []
    for row in rows:
        name, truth = row["name"], truths.get(row["name"])
        code, took = seconds.get(name, (-1, 0))
        kind = "other" if row["kind"] == "other" else "language, multimodal"
        file = folder / name / "record.json"
        record = json.loads(file.read_text()) if file.exists() else None
        has_answer = code in (0, 3) and record is not None and bool(record["ranks"])
        answered.setdefault(kind, []).append(has_answer)
        if truth is None:
            print(f"| {name} | {row['kind']} | not measured | | | {took} |")
            continue
        known = peaks(truth)
        told = f"| {name} | {row['kind']} | {known[0] / GIB:.3f}, {known[1] / GIB:.3f}"
        if not has_answer:
            print(f"{told} | no answer | | {took} |")
            continue
        found = []
        for number, (predicted, actual, key) in enumerate(zip(peaks(record), known, PEAKS, strict=True)):
            error = predicted / actual - 1
            errors[number].append(error)
            held = is_in_range(key, record, actual)
            in_range += [f"{name} {key}"] * held
            found.append(f"{error:+.2%}{' (in its range)' * held}")
        print(f"{told} | {found[0]} | {found[1]} | {took} |")
    print()
    for kind, each in answered.items():
        print(f"- {kind}: {sum(each)} of {len(each)} answered")
    for key, found, limit in zip(PEAKS, errors, (0.005, 0.03), strict=True):
        good = sum(abs(each) <= limit for each in found)
        held = sum(each.endswith(key) for each in in_range)
        worst = max(found, key=abs, default=0)
        median = statistics.median(map(abs, found)) if found else 0
        print(
            f"- {key}: {good} of {len(found)} within {limit:.1%}, median {median:.2%}, worst {worst:+.2%}; "
            f"{held} in a range of the prediction"
        )
    took = [each for _, each in seconds.values()]
    print(f"- seconds: median {statistics.median(took):.0f}, most {max(took)}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
