"""Outcome of a launch: status and reason, from the files of its ranks, its exit code and its logs.

Out-of-memory is a result. The ranks' own reports come first; guesses from an exit code come last.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memlab.core.record import OUT_OF_MEMORY
from memlab.files.regular_file import read_end
from memlab.launch.process import Ended
from memlab.runs.folder import RunFolder
from memlab.system.deadman import control_group

NOT_ATTACHED = (
    "nothing was attached: no Python process of the command imported torch with memlab's meters, which come through "
    "PYTHONPATH. python -I, -E and -S ignore it, and containers and ssh may drop it: leave the option out, or pass "
    "PYTHONPATH on"
)
NO_STEP = "no optimizer step seen"
PORT_TAKEN = ("EADDRINUSE", "address already in use", "Address already in use")

Ranks = Sequence[Mapping[str, Any]]


def outcome(
    folder: RunFolder,
    ranks: Ranks,
    ended: Ended,
    host_ooms: int,
    world_size: int | None = None,
    has_loaded: bool = True,
) -> tuple[str, str | None]:
    """Return status and reason: those of the rank that failed first, since others often fail because of it.

    ``ranks``: the files of the ranks; that of a killed rank says ``interrupted``. ``host_ooms``: number of processes
    that the kernel ended because the host had no memory left. ``world_size``: number of ranks that memlab's own
    training has. Its launch is ok once all of them are, whatever the exit code of DeepSpeed's launcher. ``None``: the
    launch is of a command. Its ranks say how many they are, and it is ok if it also ended with exit code 0.
    ``has_loaded``: whether a process of the command loaded memlab's meters.
    """
    ranks = by_failure(ranks)
    silent = {rank["rank"] for rank in ranks if rank["status"] == "interrupted"}
    size = world_size or max((_facts(rank).get("world_size") or 1 for rank in ranks), default=0)
    missing = sorted({*range(size)} - {rank["rank"] for rank in ranks} | silent)
    if world_size and not missing and all(rank["status"] == "ok" for rank in ranks):
        return "ok", None
    for status in OUT_OF_MEMORY:
        if found := [rank for rank in ranks if rank["status"] == status]:
            return status, reason_of_rank(found[0])
    if host_ooms:
        return "host_oom", f"the kernel's out-of-memory killer ended {host_ooms} process(es) of this run"
    if ended.how == "interrupted":
        return "interrupted", f"stopped {ended.why} after {ended.seconds:.0f} s{_at(ranks)}"
    if ended.how == "timeout":
        stacks = f"; {_stacks(ended.stopped)}" if world_size else ""
        return "timeout", f"the command had not ended after {ended.seconds:.0f} s{_at(ranks)}{stacks}"
    if broken := [rank for rank in ranks if rank["status"] not in ("ok", "interrupted", "infra")]:
        return broken[0]["status"], reason_of_rank(broken[0])
    if ended.outlived_by_ranks:
        told = f"DeepSpeed's launcher was killed (its exit code was {ended.returncode})"
        return "failed", f"{told} while ranks {missing} were running"
    how = _exit(ended, folder, missing)
    if not ranks and not world_size:
        return "failed", "; ".join(filter(None, [how, NO_STEP if has_loaded else NOT_ATTACHED]))
    cut_off = [rank for rank in ranks if rank["status"] == "infra"]  # also what a rank sees of the death of another
    if silent or (missing and cut_off):
        others = reason_of_rank(cut_off[0]) if cut_off else how
        return "failed", f"ranks {missing} died without a word (killed?){_at(ranks)}; {others}"
    if cut_off:
        return "infra", reason_of_rank(cut_off[0])
    if world_size and _port_was_taken(folder):
        return "infra", "the port for the ranks was taken by another process"
    if missing:
        return "failed", "; ".join(filter(None, [f"no figures of ranks {missing}, of {size}", how]))
    return ("failed", how) if ended.returncode else ("ok", None)


def by_failure(ranks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort the files of ranks by the time at which each rank failed, then by number. Ranks that did not fail by
    themselves come last."""
    return sorted(ranks, key=lambda rank: (_facts(rank).get("failed_at") or math.inf, rank["rank"]))


def reason_of_rank(rank: Mapping[str, Any]) -> str:
    """Write why a rank failed: its number, its phase and step for an out-of-memory, the user's own line, the error."""
    oom, attached = rank.get("oom") or {}, _facts(rank)
    place = [f"in {oom['phase']}" if oom.get("phase") else "", f"step {oom['step']}" if oom.get("step") else ""]
    place.append(f"at {where}" if (where := oom.get("where") or attached.get("where")) else "")
    told = ", ".join(filter(None, place))
    return f"rank {rank['rank']}{f' {told}' if told else ''}: {rank['reason'] or 'no reason given'}"


def _facts(rank: Mapping[str, Any]) -> Mapping[str, Any]:
    return rank.get("attached") or {}


def _at(ranks: Ranks) -> str:
    """Write where the first rank was when it last wrote its file, if one was still running."""
    for rank in ranks:
        if at := _facts(rank).get("at"):
            parts = [at.get("phase"), f"step {at['step']}" if at.get("step") else "", at.get("where")]
            return f"; rank {rank['rank']} was last seen in {', '.join(filter(None, parts))}"
    return ""


def _stacks(stopped: Sequence[int]) -> str:
    if not stopped:
        return f"the Python stacks of all ranks are in {RunFolder.LOGS}/"
    return (
        f"ranks {list(stopped)} were stopped (SIGSTOP, or a debugger) and could not go on; "
        f"the Python stacks of the others are in {RunFolder.LOGS}/"
    )


def _exit(ended: Ended, folder: RunFolder, missing: Iterable[int]) -> str:
    """Write the exit code of a command that failed, and the last line of the first rank that is missing, or else its
    own; empty if it ended well."""
    if not (code := ended.returncode):
        return ""
    how = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
    for log in [*map(folder.rank_log, missing), folder.launcher_log]:
        if line := last_line(log):
            return f"the command {how}; the last line of {log.name}: {line}"
    return f"the command {how}"


def _port_was_taken(folder: RunFolder) -> bool:
    text = tail(folder.launcher_log, 200) + "".join(tail(log, 50) for log in folder.logs)
    return any(mark in text for mark in PORT_TAKEN)


def last_line(log: Path) -> str:
    """Return the last line of a log that holds a word, at most 300 letters; empty if none does."""
    lines = reversed(tail(log, 50).splitlines())
    return next((line.strip()[:300] for line in lines if re.search(r"\w", line)), "")


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a text file, at most 64 KiB; empty if there is no file."""
    return "".join(f"{line}\n" for line in read_end(path, 65536).splitlines()[-lines:])


def host_oom_kills() -> int:
    """Count the processes that the kernel has killed for memory in this process's control group (cgroup v2)."""
    try:
        events = (control_group() / "memory.events").read_text()
    except OSError:
        return 0
    match = re.search(r"^oom_kill (\d+)", events, re.MULTILINE)
    return int(match[1]) if match else 0
