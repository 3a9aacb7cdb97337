"""``python tests/shadow/same_attribution.py MEASURED PREDICTED [NAME ...]``: compare what holds memory in measured runs
and in their predictions.

MEASURED and PREDICTED hold run folders of the same names, as results/explain/make.sh makes them. Of each run the
fullest rank is compared at the peak of its recorded steps; then at the peak and at the end of every phase, all these
moments together. Bytes are alike if both runs attribute them to the same kind, then also to the same module, then also
to the same line. The shares are of the requested bytes of the run that requested more.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memlab.analyse.explain.accounting import line_of, module_of, with_same_lines
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.explained_run import explain
from memlab.core.sizes import MIB
from memlab.prediction.memory.ledger import Holding
from memlab.runs.folder import RunFolder
from memlab.simulator.trace.trace_format import Site

Key = Callable[[Site], tuple[str, ...]]

LEVELS: tuple[Key, ...] = (
    lambda site: (site.kind,),
    lambda site: (site.kind, module_of(site)),
    lambda site: (site.kind, module_of(site), line_of(site)),
)
"""By kind; by kind and module; by kind, module and line."""


@dataclass(frozen=True)
class SameMoment:
    """The same moment of a measured run and of its prediction. ``name``: phase, and peak or end."""

    name: str
    measured: Sequence[Holding]
    predicted: Sequence[Holding]

    @property
    def requested(self) -> int:
        return max(sum(held.nbytes for held in side) for side in (self.measured, self.predicted))

    def alike(self, key: Key) -> int:
        """Return the bytes that both sides attribute alike."""
        measured, predicted = self._sums(key)
        return (measured & predicted).total()

    def differences(self, key: Key) -> list[tuple[tuple[str, ...], int, int]]:
        """Return key, measured and predicted bytes where they differ by 1 MiB or more, the largest difference first."""
        measured, predicted = self._sums(key)
        rows = [(name, measured[name], predicted[name]) for name in measured | predicted]
        return sorted((row for row in rows if abs(row[1] - row[2]) >= MIB), key=lambda row: -abs(row[1] - row[2]))

    def _sums(self, key: Key) -> tuple[Counter, Counter]:
        found = (Counter(), Counter())
        for sums, side in zip(found, with_same_lines(self.measured, self.predicted), strict=True):
            for held in side:
                sums[key(held.site)] += held.nbytes
        return found


def same_moments(measured: Explained, predicted: Explained) -> tuple[SameMoment, list[SameMoment]]:
    """Return the peak of the measured run, and the peaks and ends of the phases that both runs have."""
    runs = {run.part.phase: run for run in predicted.phases}
    found: dict[str, SameMoment] = {}
    for run in measured.phases:
        if other := runs.get(run.part.phase):
            peak, end = f"peak of {run.part.phase}", f"end of {run.part.phase}"
            found[peak] = SameMoment(peak, run.peak.holdings, other.peak.holdings)
            found[end] = SameMoment(end, run.end.holdings, other.end.holdings)
    return found[f"peak of {measured.at.phase}"], list(found.values())


def share_alike(moments: Sequence[SameMoment], key: Key) -> float:
    """Return the share of the requested bytes of all moments that both sides attribute alike."""
    return sum(moment.alike(key) for moment in moments) / sum(moment.requested for moment in moments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("measured", type=Path, metavar="MEASURED")
    parser.add_argument("predicted", type=Path, metavar="PREDICTED")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these runs")
    parser.add_argument("--differences", type=int, default=0, metavar="N", help="also the N largest of each moment")
    arguments = parser.parse_args()
    print("| run | MiB at the peak | kind | module | line | kind, all phases | module, all phases | line, all phases |")
    print("|---" * 8 + "|", flush=True)
    for name in arguments.names or sorted(path.parent.name for path in arguments.measured.glob("*/record.json")):
        if not (arguments.predicted / name).is_dir():
            continue
        peak, phases = same_moments(
            *(explain(RunFolder(folder / name)).shown for folder in (arguments.measured, arguments.predicted))
        )
        shares = [share_alike(moments, key) for moments in ([peak], phases) for key in LEVELS]
        cells = (f"`{name}`", f"{peak.requested / MIB:,.0f}", *(f"{100 * share:.2f} %" for share in shares))
        print("|", " | ".join(cells), "|", flush=True)
        for line in differences(phases, arguments.differences):
            print(line)
    return 0


def differences(moments: Sequence[SameMoment], most: int) -> Iterator[str]:
    for moment in moments:
        for key in LEVELS:
            for names, measured, predicted in moment.differences(key)[:most]:
                yield f"    {moment.name}: {' / '.join(names)}: {measured / MIB:,.2f} -> {predicted / MIB:,.2f} MiB"


if __name__ == "__main__":
    sys.exit(main())
