"""Pandas frame of explained runs: where the memory of each rank was at its peak. A test freezes the columns."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from memlab.analyse.explain import accounting
from memlab.analyse.explain.accounting import Share
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.explained_run import explain
from memlab.analyse.run_view import RunView
from memlab.analyse.table import long_table
from memlab.prediction.memory.ledger import Moment
from memlab.runs.folder import RunFolder

_NOT_IN_A_NAME = re.compile(r"\W+")


def explained_table(runs: Sequence[RunView]) -> tuple[pd.DataFrame, list[str]]:
    """Make a frame with one row per rank whose history is known: recorded on a GPU, or predicted.

    Columns: ``run_id``, ``path``, ``source``, ``rank``; of the peak of allocated memory ``phase``, ``step``,
    ``used_bytes``, its parts ``reserved_bytes``, ``outside_bytes`` and ``unexplained_bytes``, and the parts of reserved
    memory ``requested_bytes`` and ``slack_bytes``; ``unexplained``: the share of the memory in use, at the peak, and
    ``unexplained_most``: the greatest there and at the end of each phase; then in bytes
    ``requested_`` and each kind of requested memory, and ``outside_`` and each part outside the allocator.

    Also returns a line for each run and each rank that has no row, which says why.
    """
    return long_table(runs, _rows)


def _rows(folder: RunFolder, problems: list[str]) -> Iterator[dict[str, Any]]:
    explained = explain(folder)
    problems += explained.problems
    return map(_row, explained.ranks)


def _row(rank: Explained) -> dict[str, Any]:
    outside = rank.device.outside(rank.peak.event)
    moments = [rank.peak, *(run.end for run in rank.phases)]
    return {
        "source": rank.source,
        "rank": rank.rank,
        "phase": rank.at.phase,
        "step": rank.at.step,
        "used_bytes": rank.used(rank.peak).nbytes,
        "reserved_bytes": rank.peak.reserved,
        "outside_bytes": sum(share.nbytes for share in outside),
        "unexplained_bytes": rank.unexplained(rank.peak),
        "requested_bytes": rank.peak.requested,
        "slack_bytes": rank.peak.slack.total,
        "unexplained": _share_unexplained(rank, rank.peak),
        "unexplained_most": max(_share_unexplained(rank, moment) for moment in moments),
        **_columns("requested", accounting.by_kind(rank.peak.holdings).parts),
        **_columns("outside", outside),
    }


def _share_unexplained(rank: Explained, moment: Moment) -> float:
    used = rank.used(moment).nbytes
    return rank.unexplained(moment) / used if used else 0.0


def _columns(whole: str, parts: Sequence[Share]) -> dict[str, int]:
    return {f"{whole}_{_NOT_IN_A_NAME.sub('_', part.name)}_bytes": part.nbytes for part in parts}
