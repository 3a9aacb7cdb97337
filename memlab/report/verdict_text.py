"""First line of the answer: the verdict, the GPUs, the memory that decides, and the place of the peak; and memory that
grows from step to step."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from memlab.core.basis import MEASURED
from memlab.core.record import DOES_NOT_FIT, DOES_NOT_LAST, EDGE, FITS, HOST, LIVE_TENSORS, OUT_OF_MEMORY, Record
from memlab.core.sizes import GIB
from memlab.prediction.memory.fit_probability import FEW
from memlab.prediction.run_command import ITS_OUTPUT
from memlab.report import units
from memlab.simulator import allocator

WORDS = {FITS: "Fits", EDGE: "At the edge", DOES_NOT_FIT: "Does not fit", DOES_NOT_LAST: "Does not last"}

AFTER_A_CHANGE = {FITS: "fits", EDGE: "is at the edge", DOES_NOT_FIT: "still does not fit"}
NO_ANSWER = "No answer"

DIFFERENT = 0.01
"""Smallest difference of two ranks, or of need and peak, that is named, as a share."""

_BOARD = re.compile(r"\b(?:NVIDIA|GeForce|Tesla|SXM\d*|HBM\d\w*)\b|-")
"""Words of a GPU's name that tell no two GPUs apart."""


def verdict(record: Record) -> str:
    """Write the sentence that answers whether a run fits: with the GPUs, memory in GiB and the place of the peak."""
    if record.status not in ("ok", *OUT_OF_MEMORY):
        return f"{NO_ANSWER}: {_reason(record)}."
    parts = [_out_of_memory(record)] if record.status in OUT_OF_MEMORY else [_memory(record), _end(record)]
    return f"{_word(record)} on {machine(record)}: {'; '.join(filter(None, parts))}."


def machine(record: Record) -> str:
    """Write the number and the name of the GPUs: ``4 x A100 80GB``, ``2 CPU ranks``."""
    hardware = record.config.hardware
    known = "hardware" not in record.unknown_config
    number = max(hardware.world_size if known else 1, len(record.ranks))
    number -= sum(len(ranks) - 1 for _, ranks in sharing(record))
    if on_cpu(record) if record.ranks else hardware.device == "cpu":
        return units.counted(number, "CPU rank")
    name = next((rank["device_name"] for rank in record.ranks if rank["device_name"]), "") or hardware.gpu
    return f"{number} x {' '.join(_BOARD.sub(' ', name).split()) or 'GPU'}"


def sharing(record: Record) -> list[tuple[str, list[int]]]:
    """Return each GPU that several ranks of a command use, with these ranks."""
    found: dict[tuple[int, str | None, str], list[int]] = {}
    for rank in record.ranks if record.command and not on_cpu(record) else ():
        attached = (rank["attached"] or {}) if record.source == MEASURED else {}
        node = rank["rank"] // (attached.get("local_world_size") or record.config.hardware.gpus)
        visible = attached.get("environment", {}).get("CUDA_VISIBLE_DEVICES")  # a measured device is one of these
        found.setdefault((node, visible, rank["device"]), []).append(rank["rank"])
    return [(gpu, ranks) for (*_, gpu), ranks in found.items() if len(ranks) > 1]


def on_cpu(record: Record) -> bool:
    """Return whether no rank ran on a GPU, so that no memory of a GPU can be full."""
    return bool(record.ranks) and record.ranks[0]["memory_source"] in (HOST, LIVE_TENSORS)


def how_sure(summary: Mapping[str, Any]) -> str:
    """Write the probability of a predicted run's verdict; at the edge, the probability that the run fits.

    The text also gives the number of measured configurations of the same GPU and kind. If these are too few, the
    probability is called unknown. Empty if no probability was computed.
    """
    probability = summary.get("fit_probability")
    if probability is None:
        return ""
    if not is_calibrated(summary):
        lacking = "configuration" if summary.get("fit_probability_same_gpu") else "GPU"
        return f"probability unknown (not calibrated for this {lacking})"
    found = summary.get("verdict")
    percent = units.percent(1 - probability if found == DOES_NOT_FIT else probability)
    sure = "sure to fit" if found == EDGE else "sure"
    return f"{percent} {sure} ({summary['fit_probability_same_kind']} similar configurations were measured)"


def is_calibrated(summary: Mapping[str, Any]) -> bool:
    """Return whether enough configurations of the same GPU and kind were measured to show a probability."""
    return (summary.get("fit_probability_same_kind") or 0) >= FEW


def ranges(numbers: Iterable[int]) -> str:
    """Write whole numbers with consecutive ones as a range: ``0-3, 7``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


def fullest(record: Record) -> Mapping[str, Any]:
    """Return the rank that takes the most memory."""
    key = taken_key(record)
    return max(record.ranks, key=lambda rank: rank[key] or 0)


def taken_key(record: Record) -> str:
    """Choose the quantity to compare with the limit: memory given out by the driver, or the next best that is known."""
    if on_cpu(record):
        return "host_peak_bytes"
    keys = ("device_used_bytes", "peak_reserved_bytes", "peak_active_bytes", "peak_allocated_bytes")
    return next((key for key in keys[_fraction(record) < 1 :] if _highest(record.ranks, key)), keys[-1])


def memory_limit(record: Record) -> float | None:
    """Return the bytes that a rank can have: device memory times the allocator's fraction; ``None`` if unknown."""
    total = _highest(record.ranks, "device_total_bytes") or (record.config.hardware.memory_gib or 0) * GIB
    return total * _fraction(record) or None


def needed(record: Record) -> float | None:
    """Return the bytes that the fullest rank needs on a GPU of any size, if they are not those that it takes."""
    growth = record.command.get("growth", {})
    if growth.get("agreed") and growth["out_of_memory_step"] is None and growth["need_bytes"] is not None:
        return growth["need_bytes"]
    workspaces = workspaces_of(record)
    return workspaces[0] if workspaces else record.summary.get("needed_bytes")


def workspaces_of(record: Record) -> list[float] | None:
    """Return the bytes of the GPU in use that a run needs, and those that it takes at most with the workspaces of its
    libraries; ``None`` where these are small."""
    ranges = record.command.get("ranges", ())
    used = next((each["device_used_bytes"] for each in ranges if each["choice"] == "workspaces"), None)
    return used if used and used[1] - used[0] > DIFFERENT * used[0] else None


def place(at: Mapping[str, Any], rank: Mapping[str, Any]) -> str:
    """Write ``backward, step 4, train.py:31``. ``at``: a peak or an out-of-memory of ``rank``."""
    step = f"step {at['step']}" if at.get("step") else ""
    phase = (at.get("phase") or ("" if step else "a part of the script without a phase")).replace("_", " ")
    line = at.get("where") or ""
    line = "" if is_of_a_library(line, rank) else PurePath(line).name
    return ", ".join(filter(None, (phase.removeprefix("first ") if step else phase, step, line)))


def is_of_a_library(where: str, rank: Mapping[str, Any]) -> bool:
    """Return whether a line is in the code of a package that the script uses, and not in the script's own folder."""
    facts = rank.get("attached") or {}
    packages = {*(facts.get("versions") or ()), "torch", "trl", "site-packages"}
    folder = PurePath((facts.get("script") or {}).get("path") or "script.py").parent
    path = PurePath(where)
    return bool(packages & set(path.parts[:-1])) and not (folder.name and path.is_relative_to(folder))


def why_unknown(record: Record, what: str) -> str | None:
    """Return why a value is not known, as the first rank with a reason says it. ``what``: key of ``unknown``."""
    return next((why for rank in record.ranks if (why := (rank.get("unknown") or {}).get(what))), None)


def peak_of(rank: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return step, phase and line of a rank's peak; of memlab's own training the phase alone. Empty if unknown."""
    found = (rank.get("attached") or {}).get("peak")
    if found:
        return found
    peaks = {name: phase.get("peak_allocated_bytes") or 0 for name, phase in rank["phases"].items()}
    return {"phase": max(peaks, key=peaks.__getitem__)} if peaks else {}


def _word(record: Record) -> str:
    found = record.summary.get("verdict")
    if record.status in OUT_OF_MEMORY:
        return WORDS[EDGE if found == EDGE else DOES_NOT_FIT]
    if on_cpu(record) and found != DOES_NOT_LAST:
        return "Trained"
    is_unknown = record.source != MEASURED and not memory_limit(record)
    return NO_ANSWER if is_unknown else WORDS[found or FITS]


def _reason(record: Record) -> str:
    # The first line alone: the last one names the log.
    return (record.reason or "no reason given").splitlines()[0].partition(ITS_OUTPUT)[0].rstrip(".;: ")


def _memory(record: Record) -> str:
    if not record.ranks:
        return "no values"
    if on_cpu(record):
        tensors = _highest(record.ranks, "peak_allocated_bytes")
        resident = f"{_taken(record)} resident"
        return resident if tensors is None else f"{units.about(tensors)} GiB of tensors, {resident}"
    if record.summary.get("verdict") == DOES_NOT_LAST:
        return f"{_taken(record)} now"
    need = needed(record)
    if need is not None:
        return f"needs {_of_limit(units.about(need), record)}"
    return f"{_taken(record)}{_by_the_allocator(record, record.ranks)}"


def _by_the_allocator(record: Record, ranks: Sequence[Mapping[str, Any]]) -> str:
    """Write `` (reserved 20.2)``: the memory of the table that comes closest to the memory taken."""
    kind = "allocated" if _fraction(record) < 1 else "reserved"
    inside = _highest(ranks, f"peak_{kind}_bytes")
    return f" ({kind} {units.about(inside)})" if inside else ""


def _taken(record: Record) -> str:
    """Write ``46.5 of 79.2 GiB``; of ranks that differ, those of the fullest and of the emptiest."""
    key = taken_key(record)
    known = {rank["rank"]: rank[key] for rank in record.ranks if rank[key] is not None}
    if not known:
        return "memory not known"
    most, least = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
    text = _of_limit(units.about(known[most]), record)
    if known[most] - known[least] < DIFFERENT * known[most]:
        return text
    return f"{text} on {_named(record, [most])}, {units.about(known[least])} on {_named(record, [least])}"


def _named(record: Record, numbers: Sequence[int]) -> str:
    """Name ranks by their numbers: ``ranks 0-3``, or the GPUs of one process: ``cuda:0, cuda:1``."""
    ranks = [rank for rank in record.ranks if rank["rank"] in numbers]
    if all((rank.get("attached") or {}).get("is_gpu_of_process") for rank in ranks):
        return ", ".join(rank["device"] for rank in ranks)
    return f"rank{'s' * (len(numbers) > 1)} {ranges(numbers)}"


def _of_limit(size: str, record: Record) -> str:
    limit = None if on_cpu(record) else memory_limit(record)
    allowed = " that the allocator may take" if limit and _fraction(record) < 1 else ""
    return f"{size}{f' of {units.about(limit)}' if limit else ''} GiB{allowed}"


def _end(record: Record) -> str:
    """Write where the peak is, or where memory ends."""
    if record.summary.get("verdict") == DOES_NOT_LAST:
        return when_memory_ends(record.command["growth"])
    if not record.ranks:
        return ""
    rank = fullest(record)
    at = peak_of(rank)
    return f"the peak is in {place(at, rank)}" if at else ""


def _out_of_memory(record: Record) -> str:
    failed = [rank for rank in record.ranks if rank["status"] == "gpu_oom"]
    if record.status != "gpu_oom" or not failed:  # of the host, implied by another point, or imported
        return f"{'out of host memory: ' if record.status == 'host_oom' else ''}{_reason(record)}"
    at, need = failed[0]["oom"] or {}, needed(record)
    numbers = [rank["rank"] for rank in failed]
    some = f" on {_named(record, numbers)}" if len(record.ranks) > len(numbers) else ""
    likely = "likely " if record.summary.get("verdict") == EDGE else ""
    where = f" in {place(at, failed[0])}" if at.get("phase") or at.get("step") else ""
    if need is not None:
        size = _of_limit(units.about(need), record)
    else:
        taken, more = _highest(failed, taken_key(record)), at.get("requested_bytes")
        size = f"{_of_limit(units.about(taken), record)} taken{_by_the_allocator(record, failed)}" if taken else ""
        size += f", {units.about(more)} GiB more requested" if size and more else ""
    return "; ".join(filter(None, (size, f"{likely}out of memory{some}{where}")))


def _fraction(record: Record) -> float:
    """Return the share of the device's memory that the allocator may take; all of it if its settings are not known."""
    if "allocator" in record.unknown_config:  # a script that failed before its first step
        return 1.0
    return allocator.parse(record.config.allocator.conf).memory_fraction


def _highest(ranks: Sequence[Mapping[str, Any]], key: str) -> int | None:
    return max((rank[key] for rank in ranks if rank.get(key)), default=None)


def when_memory_ends(growth: Mapping[str, Any]) -> str:
    """Write ``out of memory near step 290 of 400``. ``growth``: of ``Record.command``, with an out-of-memory."""
    of = "" if growth["end_step"] is None else f" of {growth['end_step']:,}"
    return f"out of memory near step {growth['out_of_memory_step']:,}{of}"


def growth_sentence(growth: Mapping[str, Any]) -> str:
    """Write how much memory grows in a step, which line keeps it, and what to do. ``growth``: of ``Record.command``."""
    more, kept_by = f"{units.size(growth['bytes_per_step'])} more a step", growth["kept_by"]
    seen = f"{more}: memory grew over {units.counted(growth['steps_seen'], 'step')}"
    if kept_by is None:
        return f"{seen}, and no variable was found that keeps it."
    line = f"{PurePath(kept_by['where']).name} keeps" if kept_by["where"] else "the script keeps"
    if not growth["agreed"]:
        return f"{seen}; {line} tensors in `{kept_by['name']}`, which the script also empties."
    if growth["out_of_memory_step"] is None and growth["need_bytes"] is not None:
        end = f"step {growth['end_step']:,}" if growth["end_step"] else "the end"
        until = f"{kept_by['bound']} of them" if kept_by["bound"] else end
        need = units.about(growth["need_bytes"])
        return f"{more}, until {until}: {line} tensors in `{kept_by['name']}`; {need} GiB are needed then."
    detach = ".detach()" if kept_by["keeps_graph"] else ""
    copies = f"a copy on the CPU, {detach}.cpu(), or of the needed part alone, {detach}.clone()"
    instead = "each number, .item()" if kept_by["is_scalar"] else copies
    return f"{more}: {line} tensors of each step in `{kept_by['name']}`; keep {instead}."
