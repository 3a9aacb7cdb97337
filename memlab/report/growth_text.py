"""Memory that grows from step to step, in words: when it ends, and what keeps it."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from memlab.report import units


def when_memory_ends(growth: Mapping[str, Any]) -> str:
    """Write ``out of memory near step 290 of 400``. ``growth``: of ``Record.command``, with an out-of-memory."""
    of = "" if growth["end_step"] is None else f" of {growth['end_step']:,}"
    return f"out of memory near step {growth['out_of_memory_step']:,}{of}"


def growth_sentence(growth: Mapping[str, Any]) -> str:
    """Write how much memory grows in a step, which line keeps it, and what to do. ``growth``: of ``Record.command``."""
    more, kept_by = f"{units.size(growth['bytes_per_step'])} more a step", growth["kept_by"]
    if kept_by is None:
        return f"{more}: memory grew over {growth['steps_seen']} steps, and no variable was found that keeps it."
    line = f"{PurePath(kept_by['where']).name} keeps" if kept_by["where"] else "the script keeps"
    if growth["out_of_memory_step"] is None and growth["need_bytes"] is not None:
        until = f"{kept_by['bound']} of them" if kept_by["bound"] else f"step {growth['end_step']:,}"
        need = units.about(growth["need_bytes"])
        return f"{more}, until {until}: {line} tensors in `{kept_by['name']}`; {need} GiB are needed then."
    copy = "a detached copy on the CPU, .detach().cpu()" if kept_by["keeps_graph"] else "a copy on the CPU, .cpu()"
    instead = "each number, .item()" if kept_by.get("is_scalar") else f"{copy}, or only what is needed"
    return f"{more}: {line} tensors of each step in `{kept_by['name']}`; keep {instead}."
