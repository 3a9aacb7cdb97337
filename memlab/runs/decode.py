"""Decoding of plans and records: the plain values of a JSON file, checked once, become types.

Records that an older memlab wrote, and records whose configuration is partly unknown, are migrated first.
"""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from memlab.core.config import MISSING, Config
from memlab.core.config_values import from_dict
from memlab.core.errors import ConfigError, RecordError
from memlab.core.plan import LATER_GROUPS, SHAPE, Plan
from memlab.core.record import SCHEMA_VERSION, RankResult, Record
from memlab.core.schema import SchemaError, check_of, required, shown

_RANK = asdict(RankResult(rank=0, device="", device_name="", memory_source=""))
_RANK_DEFAULTS = {name: value for name, value in _RANK.items() if name not in (*required(RankResult), "runtime")}


def migrate(values: dict[str, Any]) -> dict[str, Any]:
    """Return the plain values of a record as this memlab writes them. Bad values stay, for the check to refuse.

    - In records of version 0.1.0, ``command`` is ``None``, and no key of the configuration is unknown.
    - ``hardware.usd_per_hour``, the price of a node, is divided by its GPUs: ``hardware.usd_per_gpu_hour``.
    - Groups that a configuration lacks, because they did not exist, have the option that they stand for.
    - A value ``???`` is unknown (an imported table may not name the model): the key is left out.
    - Figures that a rank lacks, because no memlab measured them, get the defaults of :class:`RankResult`. Keys that are
      no figures are dropped.
    """
    migrated = {"unknown_config": [], "command": None, **values}
    config, choices, ranks, unknown = (migrated.get(key) for key in ("config", "choices", "ranks", "unknown_config"))
    if isinstance(config, dict):
        known = {name: _without_unknown(group) for name, group in config.items()}
        if "hardware" in known:
            known["hardware"] = _with_price_of_gpu(known["hardware"])
        migrated["config"] = known
        if isinstance(choices, dict) and isinstance(unknown, list):
            later = [group for group in LATER_GROUPS if group not in config and group not in unknown]
            migrated["choices"] = {group: LATER_GROUPS[group] for group in later} | choices
    if isinstance(ranks, list):
        migrated["ranks"] = [whole_rank(rank) for rank in ranks]
    return migrated


def _without_unknown(group: Any) -> Any:
    return {key: value for key, value in group.items() if value != MISSING} if isinstance(group, dict) else group


def _with_price_of_gpu(hardware: Any) -> Any:
    """Return the values of the group ``hardware`` with the price of a GPU in place of the price of a node."""
    if not isinstance(hardware, dict) or "usd_per_hour" not in hardware:
        return hardware
    values = dict(hardware)
    price, gpus = values.pop("usd_per_hour"), values.get("gpus", 1)
    divides = isinstance(price, int | float) and isinstance(gpus, int) and gpus > 0
    return {**values, "usd_per_gpu_hour": price / gpus if divides else price}


def whole_rank(rank: Any) -> Any:
    """Return the values of a rank with defaults for the figures that it lacks, without keys that are no figures."""
    return _RANK_DEFAULTS | {key: rank[key] for key in rank if key in _RANK} if isinstance(rank, dict) else rank


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
    if (version := values.get("schema_version")) != SCHEMA_VERSION:
        raise RecordError(f"{where}: schema version {shown(version)}; this memlab reads version {SCHEMA_VERSION}")
    values = migrate(values)
    names = [f.name for f in fields(Record)]
    if missing := [name for name in names if name not in values]:
        raise RecordError(f"{where}: incomplete record, without {', '.join(missing)}")
    try:
        check_of(Record)(values)
        config, command = _config(values["config"], values["unknown_config"]), values["command"] or {}
        return Record(**{name: values[name] for name in names} | {"config": config, "command": command})
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
