"""Outcome of a user's command: status and reason, from the files of its ranks, its exit code and its output."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memlab.launch.outcome import tail
from memlab.launch.process import Ended

NOT_ATTACHED = (
    "nothing was attached: no Python process of the command imported torch with memlab's meters, which come through "
    "PYTHONPATH. python -I, -E and -S ignore it, and containers and ssh may drop it: leave the option out, or pass "
    "PYTHONPATH on"
)
NO_STEP = "no optimizer step seen"

OUT_OF_MEMORY = ("gpu_oom", "host_oom")


def outcome(
    ranks: Sequence[Mapping[str, Any]], ended: Ended, host_ooms: int, has_loaded: bool, log: Path
) -> tuple[str, str | None]:
    """Return status and reason.

    ``ranks``: the files of the ranks. ``host_ooms``: processes that the kernel ended for memory. ``has_loaded``:
    whether a process loaded memlab's meters. ``log``: the output of the command.
    """
    for status in OUT_OF_MEMORY:
        if found := [rank for rank in ranks if rank["status"] == status]:
            return status, reason_of(found[0])
    if host_ooms:
        return "host_oom", f"the kernel's out-of-memory killer ended {host_ooms} process(es) of this run"
    if ended.how == "interrupted":
        return "interrupted", f"stopped {ended.why} after {ended.seconds:.0f} s{_at(ranks)}"
    if ended.how == "timeout":
        return "timeout", f"the command had not ended after {ended.seconds:.0f} s{_at(ranks)}"
    if not ranks:
        return "failed", "; ".join(filter(None, [_exit(ended, log), NO_STEP if has_loaded else NOT_ATTACHED]))
    broken = [rank for rank in ranks if rank["status"] not in ("ok", "interrupted", "infra")]
    if broken:
        return broken[0]["status"], reason_of(broken[0])
    cut_off = [rank for rank in ranks if rank["status"] == "infra"]  # also what a rank sees of the death of another
    if silent := [rank["rank"] for rank in ranks if rank["status"] == "interrupted"]:
        told = reason_of(cut_off[0]) if cut_off else _exit(ended, log)
        return "failed", f"ranks {silent} died without a word (killed?){_at(ranks)}; {told}"
    if cut_off:
        return "infra", reason_of(cut_off[0])
    world_size = max(rank["attached"].get("world_size") or 1 for rank in ranks)
    if missing := sorted(set(range(world_size)) - {rank["rank"] for rank in ranks}):
        return "failed", f"no figures of ranks {missing}, of {world_size}"
    if ended.returncode:
        return "failed", _exit(ended, log)
    return "ok", None


def reason_of(rank: Mapping[str, Any]) -> str:
    oom, attached = rank.get("oom") or {}, rank["attached"]
    place = [f"in {oom['phase']}" if oom.get("phase") else "", f"step {oom['step']}" if oom.get("step") else ""]
    place.append(f"at {where}" if (where := oom.get("where") or attached.get("where")) else "")
    told = ", ".join(filter(None, place))
    return f"rank {rank['rank']}{f' {told}' if told else ''}: {rank['reason'] or 'no reason given'}"


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
    if not ended.returncode:
        return ""
    how = (
        f"ended with exit code {ended.returncode}"
        if ended.returncode > 0
        else f"was killed by signal {-ended.returncode}"
    )
    lines = [line.strip() for line in re.split(r"[\r\n]+", tail(log, 50)) if re.search(r"\w", line)]
    return f"the command {how}" + (f"; its last line: {lines[-1][:300]}" if lines else "")
