"""Sentences about what a predicted command would have done outside of its sandbox: files, connections, uploads."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlab.core.record import Record
from memlab.report import units
from memlab.system.sandbox import INTERCEPTION, NAMESPACES

PROTECTIONS = {
    NAMESPACES: "in kernel namespaces of its own: no file outside its run folder changed, and {network}.",
    INTERCEPTION: "with its calls of the C library intercepted, since this system gives no namespaces: by these calls "
    "no file outside its run folder changed, and for them {network}. What programs did by system calls of their own, "
    "as most Go programs do, is not known.",
}
"""What was kept from happening, as far as each protection can know."""

SHOWN = 3
"""Most folders, connections or uploads that a sentence names."""


def effects_sentences(record: Record) -> list[str]:
    """Write what the command's code was kept from, for a prediction of a command; nothing for any other run."""
    effects = (record.command or {}).get("effects")
    if not effects:
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
        names = _first([each["folder"] for each in largest if each["files"]])
        yield f"It would have {verb} {units.counted(files, 'file')}, {units.size(size)}, in {names}."


def _listed(title: str, each: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if each:
        names = [one["what"] + (f" ({one['times']:,} times)" if one["times"] > 1 else "") for one in each]
        yield f"{title}: {_first(names)}."


def _first(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more (record.json has all)" if more > 0 else "")
