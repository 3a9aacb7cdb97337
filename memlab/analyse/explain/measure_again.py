"""The command that records what ``explain`` needs."""

import shlex

from memlab.core.record import Record


def measure_again(record: Record, option: str, word: str) -> str:
    """Say how to measure a run again. ``option``: of ``memlab measure``; ``word``: for memlab's own training."""
    if record.command is None:
        return f"Measure again with {word}, or explain a prediction of it."
    return f"Measure again: memlab measure {option} -- {shlex.join(record.command['words'])}"
