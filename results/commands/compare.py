"""Compare the run folders of make.sh with torch's own counters of the same processes: CSV on standard output.

``python compare.py OUT``: one row for each rank, in bytes; a figure that either side lacks is empty.
"""

import csv
import json
import sys
from pathlib import Path

FIGURES = {
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_active_bytes": "active_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "num_alloc_retries": "num_alloc_retries",
}


def main() -> None:
    out = Path(sys.argv[1])
    table = csv.writer(sys.stdout)
    table.writerow(["command", "status", "rank", "figure", "memlab", "torch", "difference"])
    for record_file in sorted(out.glob("*/record.json")):
        name = record_file.parent.name
        record = json.loads(record_file.read_text())
        counted = {}
        for file in (out / "own_counters" / name).glob("*.json"):
            counters = json.loads(file.read_text())
            counted[int(counters["rank"])] = counters
        for rank in record["ranks"]:
            for figure, counter in FIGURES.items():
                ours, theirs = rank.get(figure), counted.get(rank["rank"], {}).get(counter)
                difference = ours - theirs if None not in (ours, theirs) else None
                table.writerow([name, record["status"], rank["rank"], figure, ours, theirs, difference])


if __name__ == "__main__":
    main()
