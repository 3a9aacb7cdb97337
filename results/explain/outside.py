"""``python outside.py PREDICTED > outside.csv``: MiB outside the allocator, measured and predicted.

A row for each run of readings.csv: records.tgz has later runs, too, whose predictions took the sizes fitted to these.
PREDICTED: the folder that ``make.sh predict`` wrote. ``before``: by the predictions in records.tgz, which took one
figure for all runs of a number of GPUs. ``predicted``: with the sizes that are shipped, which are fitted to these runs.
``left_out``: with sizes that are fitted to the readings of the other runs alone. Each is the fullest rank's.
"""

import csv
import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

from memlab.analyse.explain.explained import traces_of
from memlab.core.sizes import MIB
from memlab.prediction.fit_outside import fit, read_ranks
from memlab.prediction.memory.outside import outside_parts
from memlab.runs.folder import RunFolder
from memlab.simulator.outside.parts import Size, outside_bytes, shipped

HERE = Path(__file__).parent
WITHOUT_FSDP = replace(shipped(), stream=Size(0, 0, 0))
"""Sizes that are used where the other runs show none: the stream of high priority, which ``fsdp2`` alone makes."""

COLUMNS = ("run", "gpus", "measured", "before", "predicted", "left_out")


def runs() -> list[str]:
    """Return the runs to whose readings the sizes are fitted."""
    with (HERE / "readings.csv").open(encoding="utf-8") as file:
        return sorted({row["run"] for row in csv.DictReader(file)})


def recorded() -> dict[str, dict[str, int]]:
    """Return measured or predicted -> run -> bytes."""
    found: dict[str, dict[str, int]] = {"measured": {}, "predicted": {}}
    with tarfile.open(HERE / "records.tgz") as archive:
        for member in archive:
            if member.isfile():
                source, run, _ = Path(member.name).parts
                ranks = json.load(archive.extractfile(member))["ranks"]
                outside = [rank["device_used_bytes"] - rank["peak_reserved_bytes"] for rank in ranks]
                found[source][run] = max(outside)
    return found


def main(predicted: Path) -> None:
    records = recorded()
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    for run in runs():
        folder = RunFolder(predicted / run)
        record = folder.read_record()
        traces = traces_of(folder, record).values()
        others = fit(read_ranks(HERE / "readings.csv", without=run), "", "", "", otherwise=WITHOUT_FSDP)
        predicted_outside, left_out = (
            max(outside_bytes(outside_parts(trace, sizes)) for trace in traces) for sizes in (shipped(), others)
        )
        figures = (records["measured"][run], records["predicted"][run], predicted_outside, left_out)
        out.writerow((run, record.config.hardware.gpus, *(round(nbytes / MIB) for nbytes in figures)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
