"""Outcome of a user's command: status and reason, from the files of its ranks, its exit code and its output."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memlab.launch.outcome import died, interrupted, last_line, out_of_memory, reason_of
from memlab.launch.process import Ended

NOT_ATTACHED = (
    "nothing was attached: no Python process of the command imported torch with memlab's meters, which come through "
    "PYTHONPATH. python -I, -E and -S ignore it, and containers and ssh may drop it: leave the option out, or pass "
    "PYTHONPATH on"
)
NO_STEP = "no optimizer step seen"


def outcome(
    ranks: Sequence[Mapping[str, Any]], ended: Ended, host_ooms: int, has_loaded: bool, log: Path
) -> tuple[str, str | None]:
    """Return status and reason: those of the rank that failed first, since others often fail because of it.

    ``ranks``: the files of the ranks. ``host_ooms``: processes that the kernel ended for memory. ``has_loaded``:
    whether a process loaded memlab's meters. ``log``: the output of the command.
    """
    ranks = by_failure(ranks)
    if found := out_of_memory(ranks, host_ooms):
        return found
    if ended.how == "interrupted":
        status, reason = interrupted(ended)
        return status, f"{reason}{_at(ranks)}"
    if ended.how == "timeout":
        return "timeout", f"the command had not ended after {ended.seconds:.0f} s{_at(ranks)}"
    if not ranks:
        return "failed", "; ".join(filter(None, [_exit(ended, log), NO_STEP if has_loaded else NOT_ATTACHED]))
    broken = [rank for rank in ranks if rank["status"] not in ("ok", "interrupted", "infra")]
    if broken:
        return broken[0]["status"], reason_of(broken[0])
    cut_off = [rank for rank in ranks if rank["status"] == "infra"]  # also what a rank sees of the death of another
    if silent := [rank["rank"] for rank in ranks if rank["status"] == "interrupted"]:
        return died(silent, _at(ranks), reason_of(cut_off[0]) if cut_off else _exit(ended, log))
    if cut_off:
        return "infra", reason_of(cut_off[0])
    world_size = max(rank["attached"].get("world_size") or 1 for rank in ranks)
    if missing := sorted(set(range(world_size)) - {rank["rank"] for rank in ranks}):
        return "failed", f"no figures of ranks {missing}, of {world_size}"
    if ended.returncode:
        return "failed", _exit(ended, log)
    return "ok", None


def by_failure(ranks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort the files of ranks by the time of their failure; ranks that did not fail by themselves come last."""
    return sorted(ranks, key=lambda rank: rank["attached"].get("failed_at") or math.inf)


def _at(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Write where the lowest rank was when it last wrote its file, if it was still running."""
    for rank in ranks:
        at = rank["attached"].get("at")
        if at:
            parts = [at.get("phase"), f"step {at['step']}" if at.get("step") else "", at.get("where")]
            return f"; rank {rank['rank']} was last seen in {', '.join(filter(None, parts))}"
    return ""


def _exit(ended: Ended, log: Path) -> str:
    """Write the exit code of a command that failed, and its last line; empty if it ended well."""
    if not (code := ended.returncode):
        return ""
    how = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
    line = last_line(log)
    return f"the command {how}" + (f"; its last line: {line}" if line else "")
