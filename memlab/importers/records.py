"""Records and run folders of runs that memlab did not start, from a table of any format."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memlab.core.config import Config
from memlab.core.errors import MemlabError, RecordError
from memlab.core.record import Record
from memlab.core.run_id import config_hash, run_id
from memlab.core.summary import slowest, summarise
from memlab.runs.decode import decode_record
from memlab.runs.folder import RunFolder


def imported_record(
    config: Config,
    choices: dict[str, str],
    environment: dict[str, Any],
    ranks: list[dict[str, Any]],
    status: str,
) -> Record:
    """Make a measured record whose ranks have the mean step time instead of the time of every step."""
    facts = json.dumps([config_hash(config), environment], sort_keys=True)
    steps = config.measure.steps
    return Record(
        run_id=run_id(config),
        source="measured",
        status=status,
        reason=None if status == "ok" else f"{status} in {environment['imported_from']}",
        config=config,
        choices=choices,
        fingerprint=hashlib.sha256(facts.encode()).hexdigest()[:16],
        environment=environment,
        ranks=ranks,
        steps={
            "warmup": config.measure.warmup,
            "measured": steps,
            "averaged_over": steps,
            "repeats": 1,
            "seconds": slowest(ranks, "step_seconds"),
        },
        summary=summarise(config, ranks, None),
    )


def write_records(records: Iterable[Record], output: Path) -> list[Path]:
    """Write a run folder in ``output`` for each record.

    Raises :class:`MemlabError` instead of replacing a run from another source, and :class:`RecordError`, before the
    folder is made, for a record that could not be read again.
    """
    written = []
    for record in records:
        decode_record(record.to_json(), f"{record.environment['imported_from']}, {record.run_id}")
        folder = RunFolder(output / record.run_id)
        if folder.path.exists() and _origin(folder) != record.environment["imported_from"]:
            raise MemlabError(f"{folder}: already there, from another source. Choose another --output.")
        folder.claim()
        folder.finish(record)
        written.append(folder.path)
    return written


def _origin(folder: RunFolder) -> str | None:
    try:
        return folder.read_record().environment.get("imported_from")
    except RecordError:
        return None
