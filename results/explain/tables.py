"""Tables of the explained runs: python tables.py MEASURED PREDICTED OUT, from the repository's root.

MEASURED and PREDICTED are folders of run folders, with the names of runs.txt. Writes OUT/peaks.csv, a row for each rank
(``memlab table --explain``), and OUT/phases.csv, three rows for each phase of a rank: its start, peak and end. Prints
the table of results/explain/README.md: the fullest rank of each run, in MiB.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from memlab.analyse.collect import read_run
from memlab.analyse.explain import accounting
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.explained_run import explain
from memlab.analyse.explain.table import explained_table
from memlab.core.sizes import MIB
from memlab.runs.folder import RunFolder

NOT_IN_A_NAME = re.compile(r"\W+")
RUNS = Path(__file__).with_name("runs.txt")


def main() -> None:
    measured, predicted, out = map(Path, sys.argv[1:])
    peaks, phases = [], []
    for words in (line.split() for line in RUNS.read_text().splitlines() if line and line[0] != "#"):
        name, gpus = words[0], words[1].count(",") + 1
        if not (measured / name / RunFolder.RECORD).exists():
            continue
        found, problems = explained_table([read_run(measured / name)])
        assert not problems, problems
        peaks.append(found.drop(columns="path").assign(name=name))
        phases += [{"name": name, **row} for rank in explain(RunFolder(measured / name)).ranks for row in rows_of(rank)]
        print(row_of_docs(name, gpus, found, *(summary(folder / name) for folder in (measured, predicted))), flush=True)
    table = pd.concat(peaks)
    table.insert(0, "name", table.pop("name"))
    table.convert_dtypes().to_csv(out / "peaks.csv", index=False)
    pd.DataFrame(phases).convert_dtypes().to_csv(out / "phases.csv", index=False)


def rows_of(rank: Explained) -> Iterator[dict[str, Any]]:
    for run in rank.phases:
        for at, moment in (("start", run.start), ("peak", run.peak), ("end", run.end)):
            kinds = accounting.by_kind(moment.holdings).parts
            yield {
                "rank": rank.rank,
                "phase": run.part.phase,
                "at": at,
                "used_bytes": rank.used(moment).nbytes,
                "reserved_bytes": moment.reserved,
                "allocated_bytes": moment.allocated,
                "requested_bytes": moment.requested,
                "unexplained_bytes": rank.unexplained(moment),
                **{f"requested_{NOT_IN_A_NAME.sub('_', part.name)}_bytes": part.nbytes for part in kinds},
            }


def summary(folder: Path) -> dict[str, Any]:
    return RunFolder(folder).read_record().summary


def row_of_docs(name: str, gpus: int, ranks: pd.DataFrame, measured: dict[str, Any], predicted: dict[str, Any]) -> str:
    fullest = ranks.loc[ranks.requested_bytes.idxmax()]
    sizes = (f"{fullest[f'{part}_bytes'] / MIB:,.0f}" for part in ("used", "requested", "slack", "outside"))
    shares = (f"{100 * ranks[column].max():.2f} %" for column in ("unexplained", "unexplained_most"))
    peaks = ("peak_allocated_bytes", "peak_reserved_bytes")
    errors = (f"{100 * (predicted[peak]['max'] / measured[peak]['max'] - 1):+.2f} %" for peak in peaks)
    cells = (f"`{name}`", str(gpus), fullest.phase.replace("_", " "), *sizes, *shares, *errors)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
