"""Page of model families: which are predicted, and which are not, with the reason."""

import re
from collections.abc import Mapping, Sequence

from memlab.core.record import MODEL_FLOPS, WORK
from memlab.report.units import gib
from tools.families.attempts import Attempt

VERSIONS = ("torch", "deepspeed", "transformers")
"""Packages whose versions decide the contents of the page."""

SHOWN = 200
"""Most characters of a reason."""


def document(attempts: Sequence[Attempt], words: Sequence[str], versions: Mapping[str, str], cpu_limit_s: int) -> str:
    """Write the page as Markdown."""
    predicted = [attempt for attempt in attempts if not attempt.reason]
    others = [attempt for attempt in attempts if attempt.reason]
    stated = ", ".join(f"{name} {versions[name]}" for name in VERSIONS)
    return "\n".join(
        [
            "# Model families",
            "",
            f"{len(predicted)} of the {len(attempts)} families that transformers' `AutoModelForCausalLM` knows are "
            f"predicted. `make families` writes this page; it was made with {stated}.",
            "",
            "Each family is one model: the defaults of its configuration class, with two layers, or as many as have "
            "every kind of layer that the defaults have, and other values where the defaults make no model. Weights "
            "are random. Optional packages (mamba-ssm, flash-linear-attention, ...) are not installed, so transformers "
            f"runs its own code for their kernels. All else is `{' '.join(words)}`. A family that has no `sdpa` is "
            f"tried with `attention=eager`. Each may take {cpu_limit_s} s of CPU time. That a family is here says that "
            "its prediction runs to the end; how right predictions are is in [accuracy.md](accuracy.md).",
            "",
            "## Predicted",
            "",
            "| family | class | attention | parameters | memory needed, GiB | step, s | unknown |",
            "|---|---|---|---:|---:|---:|---|",
            *(_row(attempt) for attempt in predicted),
            "",
            "## Not predicted",
            "",
            "What is predicted follows from shapes. Where a shape depends on values (`nonzero`, `split_with_sizes`, a "
            "random choice), only running the model can tell it. The other reasons are errors of transformers or "
            "torch.",
            "",
            "| family | class | attention | why |",
            "|---|---|---|---|",
            *(f"| {_names(attempt)} | {_cell(attempt.reason)} |" for attempt in others),
            "",
        ]
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
