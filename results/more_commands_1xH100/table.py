"""Write the peaks of run folders as CSV: ``python3 table.py OUT``, predicted or measured by predict_and_measure.sh."""

import csv
import json
import sys
from pathlib import Path

COLUMNS = ("command", "status", "peak_allocated_bytes", "peak_reserved_bytes")


def main() -> None:
    table = csv.writer(sys.stdout)
    table.writerow(COLUMNS)
    for file in sorted(Path(sys.argv[1]).glob("*/record.json")):
        (rank,) = json.loads(file.read_text())["ranks"]
        table.writerow([file.parent.name, *(rank[name] for name in COLUMNS[1:])])


if __name__ == "__main__":
    main()
