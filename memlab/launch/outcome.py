"""Outcome of a point: status and reason, from the rank files, exit code and logs of its launch.

Out-of-memory is a result. The ranks' own reports come first; guesses from an exit code come last.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memlab.core.record import OUT_OF_MEMORY
from memlab.files.regular_file import read_end
from memlab.launch.process import Ended
from memlab.runs.folder import RunFolder
from memlab.system.deadman import control_group

KILLED = {-9, 137, 247}  # SIGKILL, as reported by subprocess, a shell and DeepSpeed's launcher
CRASHED = {-11, 139, 245, -6, 134, 250}  # SIGSEGV and SIGABRT, likewise
PORT_TAKEN = ("EADDRINUSE", "address already in use", "Address already in use")
LAST_LINES = 50


def outcome(
    folder: RunFolder, ranks: Sequence[dict[str, Any]], world_size: int, ended: Ended, host_ooms: int
) -> tuple[str, str | None]:
    """Return status and reason of the point that was running when the launch ended.

    ``ranks``: the rank files that exist. ``host_ooms``: the number of processes that the kernel's out-of-memory killer
    ended.
    """
    failed = sorted((rank for rank in ranks if rank["status"] != "ok"), key=lambda rank: rank["rank"])
    missing = sorted(set(range(world_size)) - {rank["rank"] for rank in ranks})
    if not missing and not failed:
        return "ok", None
    if found := out_of_memory(failed, host_ooms):
        return found
    if ended.how == "interrupted":
        return interrupted(ended)
    if ended.how == "timeout":
        waiting = f"ranks {missing} had no result" if missing else "the ranks had failed"
        return "timeout", f"{waiting} after {ended.seconds:.0f} s; {_stacks(ended.stopped)}"
    return _failure(folder, failed, missing, ended)


def out_of_memory(ranks: Sequence[Mapping[str, Any]], host_ooms: int) -> tuple[str, str] | None:
    """Return status and reason if a rank ran out of memory, or the kernel ended processes for memory."""
    for status in OUT_OF_MEMORY:
        if found := [rank for rank in ranks if rank["status"] == status]:
            return status, reason_of(found[0])
    if host_ooms:
        return "host_oom", f"the kernel's out-of-memory killer ended {host_ooms} process(es) of this run"
    return None


def interrupted(ended: Ended) -> tuple[str, str]:
    """Return status and reason of a launch that memlab ended early."""
    return "interrupted", f"stopped {ended.why} after {ended.seconds:.0f} s"


def died(ranks: Sequence[int], at: str, others: str) -> tuple[str, str]:
    """Return status and reason where ranks left no result. ``at``: where they were; ``others``: what others report."""
    return "failed", f"ranks {list(ranks)} died without a word (killed?){at}; {others}"


def _stacks(stopped: Sequence[int]) -> str:
    if not stopped:
        return f"the Python stacks of all ranks are in {RunFolder.LOGS}/"
    return (
        f"ranks {list(stopped)} were stopped (SIGSTOP, or a debugger) and could not go on; "
        f"the Python stacks of the others are in {RunFolder.LOGS}/"
    )


def _failure(folder: RunFolder, failed: list[dict], missing: list[int], ended: Ended) -> tuple[str, str]:
    broken = [rank for rank in failed if rank["status"] == "failed"]
    if broken:
        return "failed", reason_of(broken[0])
    if ended.outlived_by_ranks:
        return "failed", (
            f"DeepSpeed's launcher was killed (its exit code was {ended.returncode}) while ranks {missing} were running"
        )
    if failed and missing:  # ranks without a file died first; the others report a lost connection
        return died(missing, "", reason_of(failed[0]))
    if failed:
        return "infra", reason_of(failed[0])
    text = tail(folder.launcher_log, 200) + "".join(tail(log, 50) for log in folder.logs)
    if any(mark in text for mark in PORT_TAKEN):
        return "infra", "the port for the ranks was taken by another process"
    if ended.returncode in KILLED:
        return "failed", f"a rank was killed by SIGKILL; no result from ranks {missing}"
    if ended.returncode in CRASHED:
        return "failed", f"a rank crashed (exit code {ended.returncode}); {_last_words(folder, missing)}"
    return "failed", f"DeepSpeed's launcher ended with exit code {ended.returncode}; {_last_words(folder, missing)}"


def reason_of(rank: Mapping[str, Any]) -> str:
    """Write why a rank failed: its number, its phase and step for an out-of-memory, the user's own line, the error."""
    oom, attached = rank.get("oom") or {}, rank.get("attached") or {}
    place = [f"in {oom['phase']}" if oom.get("phase") else "", f"step {oom['step']}" if oom.get("step") else ""]
    place.append(f"at {where}" if (where := oom.get("where") or attached.get("where")) else "")
    told = ", ".join(filter(None, place))
    return f"rank {rank['rank']}{f' {told}' if told else ''}: {rank['reason'] or 'no reason given'}"


def _last_words(folder: RunFolder, missing: list[int]) -> str:
    """Quote the last line with text in the log of the first missing rank, or else in the launcher's log."""
    for log in [*map(folder.rank_log, missing), folder.launcher_log]:
        if line := last_line(log):
            return f"the last line of {log.name}: {line}"
    return "the logs are empty"


def last_line(log: Path) -> str:
    """Return the last line of a log that holds a word, at most 300 letters; empty if none does."""
    lines = reversed(tail(log, LAST_LINES).splitlines())
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
