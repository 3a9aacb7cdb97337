"""What ``--all`` prints below the answer: every rank and phase, and all that is known of a run, such as what a
predicted command would have done outside of its sandbox."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from memlab.analyse.command_facts import other_words
from memlab.core.config_values import to_dict
from memlab.core.record import COMMAND_PHASES, FITS, PREDICTED, Record
from memlab.files.conf_files import overrides_of
from memlab.planner.changes import likely_remedies
from memlab.planner.search import Outcome, SingleChange
from memlab.prediction.memory.rank_results import Estimate
from memlab.report import units
from memlab.report.plan_text import show_changes
from memlab.report.remarks_text import assumed, deciding_values, retries
from memlab.report.screen import show_screen
from memlab.report.text import say, show_command, show_table
from memlab.report.verdict_text import how_sure, is_calibrated, place, ranges
from memlab.runs.folder import RunFolder
from memlab.system.sandbox import LANDLOCK, NAMESPACES, UNPROTECTED

RANK_QUANTITIES = {
    "allocated": "peak_allocated_bytes",
    "active": "peak_active_bytes",
    "reserved": "peak_reserved_bytes",
    "reserved without an empty cache": "cold_peak_reserved_bytes",
    "used": "device_used_bytes",
    "host": "host_peak_bytes",
}
PHASE_QUANTITIES = {
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "allocated at its end": "end_allocated_bytes",
    "host": "host_peak_bytes",
}
"""Column -> key of the record."""


def show_answer(record: Record, folder: RunFolder, out: Console, everything: bool = False) -> None:
    """Print the answer of a run on one screen. ``everything``: and all details below it."""
    show_screen(record, folder, out)
    if everything:
        out.print()
        say(f"{record.run_id}  {record.source}: {record.status}{f': {record.reason}' if record.reason else ''}", out)
        if record.ranks:
            _show_ranks(record, out)
            _show_phases(record, out)
            show_table(out, "Figures of the run", ["figure", "value"], _figures(record))
        for sentence in _sentences(record):
            say(sentence, out)
        show_predicted_changes(record, out)
        _show_remedies(record, out)


def show_predicted_changes(record: Record, out: Console) -> None:
    """Print the predicted changes of a command, if the record has any."""
    if not (changes := record.command.get("changes")):
        return
    if changes["tried"]:
        show_changes(_outcome(changes["base"]), [_change(one) for one in changes["tried"]], out)
    else:
        say("No single change is known for this command: it has none of the words that memlab can change.", out)
    if changes["not_tried"]:
        say(f"Not predicted, for lack of time: {', '.join(changes['not_tried'])}.", out)


def _change(values: Mapping[str, Any]) -> SingleChange:
    return SingleChange(values["change"], values["price"], _outcome(values), values["saved_bytes"])


def _outcome(values: Mapping[str, Any]) -> Outcome:
    needs = values["needs"]
    return values["reason"] if needs is None else Estimate(**needs, held={})


def _show_remedies(record: Record, out: Console) -> None:
    """Print the changes of memlab's own training that reduce a peak that does not fit, and how they are predicted."""
    if record.status == "ok" and record.summary.get("verdict", FITS) == FITS:
        return
    if found := likely_remedies(record):
        say("Changes that lower the peak most:", out)
        for change, nbytes in found:
            say(f"{change.told}: at most {units.about(nbytes)} GiB ({', '.join(change.reach)})", out, indent=2)
        say("This command predicts what each change saves:", out)
        show_command(["memlab", "plan", "--changes", *overrides_of(record.choices, to_dict(record.config))], out)


def _show_ranks(record: Record, out: Console) -> None:
    """Print a row for each rank; ranks with the same cells share a row."""
    places = units.places(rank[key] for rank in record.ranks for key in RANK_QUANTITIES.values())
    same: dict[tuple[str, ...], list[int]] = {}
    for rank in record.ranks:
        quantities = (units.gib(rank[key], places) for key in RANK_QUANTITIES.values())
        same.setdefault((rank["device_name"], *quantities), []).append(rank["rank"])
    rows = [(ranges(numbers), *cells) for cells, numbers in same.items()]
    sources = ", ".join(dict.fromkeys(rank["memory_source"].replace("_", " ") for rank in record.ranks))
    show_table(out, f"Peak memory by rank, GiB ({sources})", ["rank", "device", *RANK_QUANTITIES], rows, left=2)


def _show_phases(record: Record, out: Console) -> None:
    """Print a row for each phase that occurred, with the values of its highest rank; of a command also its place."""
    known = {phase: values for phase in COMMAND_PHASES if (values := _highest(record.ranks, phase))}
    places = units.places(values.get(key) for values in known.values() for key in PHASE_QUANTITIES.values())
    rows = [
        (
            phase.replace("_", " "),
            *(units.gib(values.get(key), places) for key in PHASE_QUANTITIES.values()),
            str(values.get("count") or "-"),
            "/".join((values.get("where") or "-").split("/")[-2:]),
        )
        for phase, values in known.items()
    ]
    columns, spare = ["phase", *PHASE_QUANTITIES, "times", "where"], ["allocated at its end", "times"]
    if rows:
        show_table(out, "Peak by phase, highest rank, GiB", columns, rows, notes=1, spare=spare)


def _highest(ranks: Sequence[Mapping[str, Any]], phase: str) -> Mapping[str, Any]:
    """Return a phase of the rank on which it is highest: on the device, or on the host without one."""
    each = [{**rank["phases"], **(rank["attached"] or {}).get("phases", {})}.get(phase) or {} for rank in ranks]
    return max(each, key=lambda facts: (facts.get("peak_allocated_bytes") or 0, facts.get("host_peak_bytes") or 0))


def _figures(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each figure of the whole run, then the wall-clock time of its parts.

    A prediction computes one step, so the spread, the minimum and the maximum of its step times are left out. The step
    times of ``timing`` are left out, too: the summary has them, and says how they are known.
    """
    of_several = ("step_seconds_spread", "step_seconds_min", "step_seconds_max")
    unknown: tuple[str, ...] = of_several if record.source == PREDICTED else ()
    unknown += () if is_calibrated(record.summary) else ("fit_probability",)
    for key, value in record.summary.items():
        if isinstance(value, int | float) and not key.startswith(unknown):
            yield units.name(key), units.quantity(key, value, record.basis)
    for key, value in record.timing.items():
        if isinstance(value, int | float) and not key.startswith("step_s"):
            yield units.name(f"{key.removesuffix('_s')}_seconds"), units.seconds(value)


def _sentences(record: Record) -> Iterator[str]:
    """Yield every sentence about a run: memory, what was assumed, and what is not known."""
    yield from _peak(record)
    yield from filter(None, (how_sure(record.summary), record.basis.reason))
    yield from assumed(record)
    yield from retries(record)
    yield from record.steps.get("doubts", [])
    for each in record.command.get("disagreements", []):
        yield f"{each['key']}: composed was {each['composed']}, but the script used {each['found']}."
    yield from _found_words(record)
    reasons = {name: why for rank in record.ranks for name, why in rank.get("unknown", {}).items()}
    yield from (f"Not known: {units.name(name)} ({why})" for name, why in reasons.items())
    yield from _all_assumed(record)
    yield from effects_sentences(record)


def _peak(record: Record) -> Iterator[str]:
    """Name the step and the batch of the highest peak of all ranks."""
    peaks = [(peak["bytes"], rank, peak) for rank in record.ranks if (peak := (rank["attached"] or {}).get("peak"))]
    if peaks:
        nbytes, rank, peak = max(peaks, key=lambda each: each[0])
        known = {name: size for name in ("sample", "token") if (size := peak.get(f"{name}s")) is not None}
        batch = [units.counted(size, name) for name, size in known.items()]
        of = f" ({', '.join(batch)})" if batch else ""
        yield f"The peak, {units.about(nbytes)} GiB, is in {place(peak, rank)}, on rank {rank['rank']}{of}."


def _found_words(record: Record) -> Iterator[str]:
    """Write what a command used that no option describes, and which options could not be found out."""
    words = other_words(record)
    if words:
        yield f"Found, but without a word in conf/: {'; '.join(f'{group}: {used}' for group, used in words.items())}."
    unknown = [key for key in record.unknown_config if key not in words and not key.startswith("measure.")]
    if record.command and unknown:
        yield f"Not found out: {', '.join(unknown)}."


def _all_assumed(record: Record) -> Iterator[str]:
    """Write which values were assumed, those that decided a branch first; of the others only how many there are."""
    deciding = deciding_values(record)
    if deciding:
        yield "These values are not known, were assumed, and decided which way the script went:"
        yield from (f"{value}." for value in deciding)
    if others := len(record.command.get("assumed", {})) - len(deciding):
        yield f"At {units.counted(others, 'place')} it read values that are not known, without a condition on them."


PROTECTIONS = {
    NAMESPACES: "in kernel namespaces of its own: no file outside its run folder changed, and {network}.",
    LANDLOCK: "behind Landlock, since this system gives no namespaces: no file outside its run folder and "
    "/dev/shm changed, and {network}.",
    UNPROTECTED: "without a wall, since this system gives neither namespaces nor Landlock: what programs changed or "
    "sent by system calls of their own, as most Go programs do, is not known.",
}
"""What was kept from happening, as far as each protection can know."""

SHOWN, IN_RECORD = 3, " (record.json has all)"
"""Most folders, connections or uploads that a sentence names."""


def effects_sentences(record: Record) -> list[str]:
    """Write what the command's code was kept from, for a prediction of a command; nothing for any other run."""
    if not (effects := record.command.get("effects")):
        return []
    network = "the network was open" if effects["network"] else "the network was closed"
    return [
        f"The command ran {PROTECTIONS[effects['protection']].format(network=network)}",
        *_files("written", effects["written"]),
        *_files("deleted", effects["deleted"]),
        *_listed("Refused", effects["refused"]),
        *_listed("Answered without the Hugging Face Hub", effects["answered"]),
    ]


def _files(verb: str, folders: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Write the number and size of files, and the folders with most bytes. A folder alone is none."""
    files, size = (sum(each[key] for each in folders) for key in ("files", "bytes"))
    if files:
        largest = sorted(folders, key=lambda each: (-each["bytes"], -each["files"], each["folder"]))
        names = units.first_of([each["folder"] for each in largest if each["files"]], SHOWN, IN_RECORD)
        yield f"It would have {verb} {units.counted(files, 'file')}, {units.size(size)}, in {names}."


def _listed(title: str, each: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if each:
        names = [one["what"] + (f" ({one['times']:,} times)" if one["times"] > 1 else "") for one in each]
        yield f"{title}: {units.first_of(names, SHOWN, IN_RECORD)}."
