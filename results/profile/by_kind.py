"""Table of profiled steps beside their predictions, by kind of work, as CSV: python by_kind.py MEASURED PREDICTED."""

import csv
import sys
from pathlib import Path

from memlab.analyse.explain.time_by_kind import KindTime, compare
from memlab.runs.folder import RunFolder

COLUMNS = ("name", "kind", "profiled_seconds", "profiled_launches", "predicted_seconds", "predicted_launches")


def main() -> None:
    measured, predicted = (Path(folder) for folder in sys.argv[1:])
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    for folder in sorted(path.parent for path in measured.glob("*/rank0.operators.json")):
        found = compare(RunFolder(folder), RunFolder(predicted / folder.name))
        steps = found.profiled, found.predicted
        for kind in dict.fromkeys([*steps[0].kinds, *steps[1].kinds]):
            times = [step.kinds.get(kind, KindTime(0.0, 0)) for step in steps]
            out.writerow([folder.name, kind, *(value for time in times for value in (time.seconds, time.count))])
        out.writerow([folder.name, "device busy", steps[0].busy_seconds, "", steps[1].busy_seconds, ""])
        out.writerow([folder.name, "step with the profiler", steps[0].step_seconds, "", "", ""])
        out.writerow([folder.name, "step", found.usual_seconds, "", steps[1].step_seconds, ""])


if __name__ == "__main__":
    main()
