"""Both ends of what a command's memory depends on and nobody knows: lengths of generations, tokens of an expert."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memlab.core.record import Record
from memlab.planner.command_record import TracedCommand
from memlab.predict.trace.shadow_process import ShadowError

RANGED = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")

Predict = Callable[[str, Path], Record]
"""(choice, folder) -> the record of the command, predicted with the choice made the other way round."""


def ranges(record: Record, simulated: TracedCommand, predict: Predict, folder: Path) -> list[dict[str, Any]]:
    """Predict the command once more for each choice that steered it, the other way round.

    Returns for each choice: ``choice`` (GENERATION, ROUTING), and for each key of ``RANGED`` [lowest, highest] of both
    predictions, each on its highest rank; ``failure`` where the other prediction failed.
    """
    choices = sorted({choice for trace in simulated.traces.values() for choice in trace.choices})
    return [_range(choice, record, predict, folder / f"other_end_{choice}") for choice in choices]


def _range(choice: str, ordinary: Record, predict: Predict, folder: Path) -> dict[str, Any]:
    try:
        other = predict(choice, folder)
    except ShadowError as error:
        return {"choice": choice, "failure": str(error)}
    return {"choice": choice, **{key: sorted((_highest(ordinary, key), _highest(other, key))) for key in RANGED}}


def _highest(record: Record, key: str) -> int:
    return max(rank[key] or 0 for rank in record.ranks)
