"""Page of model families (page.md): which are predicted, and which are not, with the reason."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from memlab.core.record import MODEL_FLOPS, WORK
from memlab.report.units import gib
from tools.families.attempts import Attempt

VERSIONS = ("torch", "deepspeed", "transformers")
"""Packages whose versions decide the contents of the page."""

SHOWN = 200
"""Most characters of a reason."""


def document(attempts: Sequence[Attempt], words: Sequence[str], versions: Mapping[str, str], cpu_limit_s: int) -> str:
    """Write the page as Markdown: the text of page.md, with values in place of their names in braces."""
    predicted = [attempt for attempt in attempts if not attempt.reason]
    others = [attempt for attempt in attempts if attempt.reason]
    template = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    return template.format(
        predicted=len(predicted),
        attempts=len(attempts),
        versions=", ".join(f"{name} {versions[name]}" for name in VERSIONS),
        words=" ".join(words),
        limit=cpu_limit_s,
        rows="".join(f"{_row(attempt)}\n" for attempt in predicted),
        reasons="".join(f"| {_names(attempt)} | {_cell(attempt.reason)} |\n" for attempt in others),
    )


def _row(attempt: Attempt) -> str:
    step = f"{attempt.step_s:.3g}" if attempt.step_s is not None else "unknown"
    names = {MODEL_FLOPS: "model FLOPs", WORK: "work of a step"}
    unknown = "; ".join(f"{names[quantity]}: {_cell(why)}" for quantity, why in attempt.unknown.items())
    return f"| {_names(attempt)} | {attempt.parameters:,} | {gib(attempt.used)} | {step} | {unknown} |"


def _names(attempt: Attempt) -> str:
    family = attempt.family
    return f"{family.name} | {family.model} | {family.attention}"


def _cell(text: str) -> str:
    """Make one line that fits a Markdown table and names no folder of this machine."""
    line = re.sub(r"(?<![\w.])/[^\s'\":]*/site-packages/", "", " ".join(text.split())).replace("|", "\\|")
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."
