"""Input of every figure: runs, their configurations by label, and the style of each configuration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memlab.analyse.identity import configurations, subject_of
from memlab.analyse.run_view import RunView, peak, value_at
from memlab.report import units
from memlab.report.palette import Style, styles


class NothingToDraw(Exception):
    """No run has the data that a figure shows; the message says which data are missing."""


@dataclass(frozen=True)
class Sheet:
    """The runs of one model on one kind of machine, called ``name``; ``alone`` if it is the report's only sheet.

    ``styles`` are shared by the whole report, so that a configuration looks the same on every sheet.
    """

    name: str
    alone: bool
    configurations: dict[str, list[RunView]]
    styles: dict[str, Style]

    @property
    def runs(self) -> list[RunView]:
        return [run for members in self.configurations.values() for run in members]

    @property
    def common(self) -> list[str]:
        """Words that all labels of the sheet share: the title has them once."""
        each = [label.split() for label in self.configurations]
        return [word for word in each[0] if all(word in words for words in each) and not word.startswith("model=")]

    def short(self, label: str) -> str:
        """Return the label without the words that all labels of this sheet share; empty for the only one."""
        return " ".join(word for word in label.split() if word not in self.common and not word.startswith("model="))

    def look(self, words: str) -> Style:
        """Return the style of the first configuration whose label has all these words.

        ``words`` may be a label of fewer axes; without a match, the first configuration's style is returned.
        """
        wanted = set(words.split())
        labels = [label for label in self.configurations if wanted <= set(label.split())] or list(self.configurations)
        return self.styles[labels[0]]

    @property
    def held(self) -> str:
        """Figure for memory in live tensors: allocated, or active if allocated was not measured."""
        key = "peak_allocated_bytes"
        return key if any(peak(run, key) is not None for run in self.runs) else "peak_active_bytes"

    @property
    def unknown_speed(self) -> str:
        """Why speeds are not known where they are only bounds, for a message; empty otherwise."""
        bases = (run.basis for run in self.runs if run.summary.get("step_seconds"))
        return units.not_known("; speed", bases)

    @property
    def memory_gib(self) -> float | None:
        """Memory of one GPU; ``None`` if it differs between runs."""
        found = {value_at(run.config, "hardware.memory_gib") for run in self.runs}
        return found.pop() if len(found) == 1 else None


def sheets(runs: Sequence[RunView]) -> Iterator[Sheet]:
    """Yield one sheet for each model and machine: memory of different models must not share an axis."""
    named = configurations(runs)
    looks = styles(named)
    families: dict[str, dict[str, list[RunView]]] = {}
    for label, members in named.items():
        families.setdefault(subject_of(members[0]), {})[label] = members
    for family, lines in families.items():
        yield Sheet(family, len(families) == 1, lines, looks)
