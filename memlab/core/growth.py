"""Memory that grows from step to step, carried to the end of the run: does the run last?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from memlab.core.record import DOES_NOT_LAST, Record
from memlab.core.record_schema import GrowthOfRun, Keeper


def with_growth(record: Record) -> Record:
    """Add the growth that the ranks of a command have seen, of the rank whose memory ends first, and what follows.

    The verdict follows only where a variable was found that keeps more with each step. A run that is out of memory
    already has its verdict, and the growth where the request that failed would have had room without it.
    """
    grown = [_carried(rank, facts) for rank in record.ranks if (facts := (rank.get("attached") or {}).get("growth"))]
    if record.status == "gpu_oom":
        return _with_the_cause(record, grown)
    if record.status not in ("ok", "timeout") or not grown:
        return record
    first = min(grown, key=lambda each: (not each["agreed"], each["out_of_memory_step"] or float("inf")))
    lasts = not first["agreed"] or first["out_of_memory_step"] is None
    verdict = {} if lasts else {"verdict": DOES_NOT_LAST}
    return replace(record, summary={**record.summary, **verdict}).with_command(growth=first)


def _with_the_cause(record: Record, grown: Sequence[GrowthOfRun]) -> Record:
    """Add the growth that took the memory of a run that is out of memory."""
    ranks = {rank["rank"]: rank for rank in record.ranks}
    for each in grown:
        rank = ranks[each["rank"]]
        failure, used, total = rank["oom"] or {}, rank["device_used_bytes"], rank["device_total_bytes"]
        requested, room = failure.get("requested_bytes"), max(total - used, 0) if used and total else 0
        step = failure.get("step") or each["last_step"] + 1  # simulated steps go on behind the failed one
        if each["agreed"] and requested and each["bytes_per_step"] * (step - 1) >= requested - room:
            return record.with_command(growth={**each, "out_of_memory_step": step})
    return record


def _carried(rank: Mapping[str, Any], facts: Mapping[str, Any]) -> GrowthOfRun:
    """Carry the growth of a rank to its end. ``facts``: see memlab/meters/__init__.py, ``growth``."""
    kept_by, last, each = facts["kept_by"], facts["last_step"], facts["bytes_per_step"]
    keeper = None if kept_by is None else cast(Keeper, {key: kept_by[key] for key in Keeper.__annotations__})
    used, total = rank.get("device_used_bytes"), rank.get("device_total_bytes")
    ends = [facts["end_step"], None if kept_by is None else kept_by["full_at_step"]]
    end = min((step for step in ends if step is not None), default=None)
    runs_out = None if not used or not total else last + max(total - used, 0) // each + 1
    return {
        "rank": rank["rank"],
        "bytes_per_step": each,
        "steps_seen": facts["steps_seen"],
        "last_step": last,
        "kept_by": keeper,
        "agreed": kept_by is not None and not kept_by["is_emptied"],
        "end_step": facts["end_step"],
        "out_of_memory_step": runs_out if runs_out is not None and (end is None or runs_out <= end) else None,
        "need_bytes": None if end is None or not used else used + each * max(end - last, 0),
    }
