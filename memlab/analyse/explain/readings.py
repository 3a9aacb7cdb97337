"""``python -m memlab.analyse.explain.readings RUN_FOLDER... > readings.csv``: the driver's figure in recorded runs.

A row for each reading of each rank. ``outside_bytes``: in use on the GPU, less what torch's allocator held. ``handle``:
whether torch made a cuBLAS handle since the reading before. ``predict.outside=readings.csv`` predicts with sizes that
are fitted to them.
"""

import csv
import sys
from pathlib import Path

from memlab.analyse.explain.outside import handles_made, outside_at
from memlab.analyse.explain.recorded_ranks import read_marks
from memlab.analyse.explain.snapshot import read_snapshot
from memlab.runs.folder import RunFolder


def main() -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("run", "rank", "ranks", "phase", "module", "call", "handle", "outside_bytes"))
    for folder in map(RunFolder, map(Path, sys.argv[1:])):
        ranks = folder.ranks_with_history()
        for rank in ranks:
            snapshot = read_snapshot(folder.snapshot_file(rank))
            made = handles_made(snapshot.entries)
            readings = read_marks(folder.memory_marks(rank)).told_of(snapshot.device)["readings"]
            for last, now in zip([None, *readings], readings, strict=False):
                handle = last is not None and any(last["until_us"] <= time <= now["time_us"] for time in made)
                what = (now["phase"] or "", now["module"], now["call"] or "", int(handle))
                out.writerow((folder.path.name, rank, len(ranks), *what, outside_at(now)))


if __name__ == "__main__":
    main()
