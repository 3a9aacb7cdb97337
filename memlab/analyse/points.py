"""Points of runs: micro batch and sequence length, which fits, charts and advice need."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from memlab.analyse.identity import MICRO, has_point
from memlab.analyse.run_view import RunView, is_command, value_at


@dataclass
class Points:
    """Runs that have a point. ``in_samples``: those of them whose batches hold no tokens, such as images; a sample
    counts as one token. ``without``: runs whose batch or length is not known."""

    runs: list[RunView] = field(default_factory=list)
    in_samples: list[RunView] = field(default_factory=list)
    without: list[RunView] = field(default_factory=list)


def points_of(runs: Iterable[RunView]) -> Points:
    """Sort runs by what is known of their batches."""
    found = Points()
    for run in runs:
        if has_point(run):
            found.runs.append(run)
        elif _holds_no_tokens(run):
            found.runs.append(_in_samples(run))
            found.in_samples.append(run)
        else:
            found.without.append(run)
    return found


def _holds_no_tokens(run: RunView) -> bool:
    """Whether a command's batches said their samples, and no tokens."""
    samples, tokens = (run.summary.get(f"{unit}_per_second") for unit in ("samples", "tokens"))
    return is_command(run) and value_at(run.config, MICRO) is not None and bool(samples) and tokens is None


def _in_samples(run: RunView) -> RunView:
    rate, gpus = run.summary["samples_per_second"], value_at(run.config, "hardware.gpus") or 1
    rates = {"tokens_per_second": rate, "tokens_per_second_per_gpu": rate / gpus}
    return replace(run, config={**run.config, "seq_len": {"tokens": 1}}, summary={**run.summary, **rates})
