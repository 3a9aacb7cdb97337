"""Decoding of plans and records: the plain values of a JSON file, checked once, become types."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from memlab.core.config import Config, from_dict
from memlab.core.errors import ConfigError, RecordError
from memlab.core.plan import Plan
from memlab.core.record import SCHEMA_VERSION, RankResult, Record
from memlab.core.run_id import SHAPE
from memlab.core.schema import SchemaError, check_of, shown
from memlab.runs.migrate import migrate


def decode_plan(values: Any, where: str) -> Plan:
    """Check plain values and make a plan of them. Raises :class:`RecordError`, which names ``where`` and the key."""
    try:
        check_of(Plan)(values)
        known = {f.name: values[f.name] for f in fields(Plan) if f.name in values}
        return Plan(**{**known, "config": from_dict(values["config"], "config.")})
    except (SchemaError, ConfigError) as error:
        raise RecordError(f"{where}: damaged plan: {error}") from error


def decode_rank(values: Any) -> dict[str, Any]:
    """Check the plain values of a rank's file. Raises :class:`SchemaError` for anything but a :class:`RankResult`."""
    check_of(RankResult)(values)
    return values


def decode_record(values: Any, where: str) -> Record:
    """Check plain values and make a record of them. Every value then has the type that :class:`Record` declares.

    Values that an older memlab wrote are migrated. Raises :class:`RecordError`, which names ``where``, the key and the
    expected value, for anything but a record of this schema version.
    """
    if not isinstance(values, dict):
        raise RecordError(f"{where}: not a record (a JSON object is expected)")
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecordError(f"{where}: schema version {shown(version)}; this memlab reads version {SCHEMA_VERSION}")
    values = migrate(values)
    names = [f.name for f in fields(Record)]
    if missing := [name for name in names if name not in values]:
        raise RecordError(f"{where}: incomplete record, without {', '.join(missing)}")
    try:
        check_of(Record)(values)
        return Record(
            **{name: values[name] for name in names} | {"config": _config(values["config"], values["unknown_config"])}
        )
    except (SchemaError, ConfigError) as error:
        raise RecordError(f"{where}: damaged record: {error}") from error


def _config(values: dict[str, Any], unknown: Sequence[str]) -> Config:
    """Decode a configuration. Keys that it lacks get their defaults; those of the shape only if ``unknown``."""
    config = from_dict(values, "config.")
    for key in SHAPE:
        group, _, name = key.partition(".")
        if name not in values.get(group, ()) and not {key, group} & set(unknown):
            raise SchemaError("is missing.").within(f"config.{key}")
    return config
