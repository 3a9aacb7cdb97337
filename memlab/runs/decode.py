"""Decoding of plans and records: the plain values of a JSON file, checked once, become types.

Records that an older memlab wrote, and records whose configuration is partly unknown, are migrated first.
"""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from memlab.core.config import Config, from_dict
from memlab.core.config_fields import MISSING
from memlab.core.errors import ConfigError, RecordError
from memlab.core.plan import LATER_GROUPS, SHAPE, Plan
from memlab.core.record import SCHEMA_VERSION, RankResult, Record
from memlab.core.schema import SchemaError, check_of, required, shown

_RANK = asdict(RankResult(rank=0, device="", device_name="", memory_source=""))
_RANK_DEFAULTS = {name: value for name, value in _RANK.items() if name not in (*required(RankResult), "runtime")}


RENAMED = {"hardware.usd_per_hour": "hardware.usd_per_gpu_hour"}
"""Keys of the configuration in older records -> their names now."""


def migrate(values: dict[str, Any]) -> dict[str, Any]:
    """Return the plain values of a record as this memlab writes them. Bad values stay, for the check to refuse.

    - ``before_in_launch`` is ``None`` (not known) in records from before it was written; so is ``command``, and no key
      of the configuration is unknown.
    - ``hardware.usd_per_hour``, the price of a node, is divided by its GPUs: ``hardware.usd_per_gpu_hour``.
    - Groups that a configuration lacks, because they did not exist, have the option that they stand for.
    - A value ``???`` is unknown (an imported table may not name the model): the key is left out.
    - Batch and length that a command on one GPU did not tell are those that its steps show.
    - Figures that a rank lacks, because no memlab measured them, get the defaults of :class:`RankResult`. Keys that are
      no figures are dropped.
    """
    migrated = {"before_in_launch": None, "unknown_config": [], "command": None, **values}
    if _are_names(migrated["unknown_config"]):
        migrated["unknown_config"] = [RENAMED.get(key, key) for key in migrated["unknown_config"]]
    config, choices, ranks, unknown = (migrated.get(key) for key in ("config", "choices", "ranks", "unknown_config"))
    if isinstance(config, dict):
        config = {name: _without_unknown(group) for name, group in config.items()}
        migrated["config"] = {**config, **_with_price_of_gpu(config)}
        if isinstance(choices, dict) and isinstance(unknown, list):
            later = [group for group in LATER_GROUPS if group not in config and group not in unknown]
            migrated["choices"] = {group: LATER_GROUPS[group] for group in later} | choices
    if isinstance(ranks, list):
        migrated["ranks"] = [whole_rank(rank) for rank in ranks]
        if len(ranks) == 1 and isinstance(migrated.get("steps"), dict) and _are_names(unknown):
            migrated |= _with_shape(migrated)
    return migrated


def _with_price_of_gpu(config: dict[str, Any]) -> dict[str, Any]:
    """Return the group ``hardware`` of a configuration that has the price of a node; else nothing."""
    hardware = config.get("hardware")
    if not isinstance(hardware, dict) or "usd_per_hour" not in hardware:
        return {}
    price, gpus = hardware["usd_per_hour"], hardware.get("gpus", 1)
    known = isinstance(price, int | float) and isinstance(gpus, int) and gpus > 0
    rest = {key: value for key, value in hardware.items() if key != "usd_per_hour"}
    return {"hardware": {**rest, "usd_per_gpu_hour": price / gpus if known else price}}


def _with_shape(values: dict[str, Any]) -> dict[str, Any]:
    """Return configuration and unknown keys of a command on one GPU whose steps told tokens and samples alone.

    In a step of one micro batch, that batch has the samples of the step, all padded to the same length: packed samples
    are one, whatever batch DeepSpeed's configuration names. Where the samples of a step have as many tokens as the
    longest, none is padded.
    """
    rows = values["steps"].get("rows")
    if not isinstance(rows, list) or not isinstance(values["config"], dict) or not all(map(_is_old_row, rows)):
        return {}
    alone = [row for row in rows if row.get("micro_batches") == 1]
    found = {"batch.micro": [row["samples"] for row in rows] if alone == rows else []}
    found["seq_len.tokens"] = [
        row["tokens"] // row["samples"]
        for row in rows
        if row.get("tokens") and (row in alone or row["tokens"] == row["samples"] * (row.get("longest_sample") or 0))
    ]
    config, unknown = dict(values["config"]), list(values["unknown_config"])
    for key, numbers in found.items():
        group, _, name = key.partition(".")
        lacking = {key, group} & set(unknown)
        if len(numbers) != len(rows) or not rows or not isinstance(config.get(group, {}), dict):
            continue
        if group not in lacking or group == "seq_len":  # a group of one key is unknown by its own name
            config[group] = {**config.get(group, {}), name: max(numbers)}
            unknown = [each for each in unknown if each not in lacking]
    return {"config": config, "unknown_config": unknown}


_OLD_ROW = ("micro_batches", "samples", "tokens", "longest_sample")
"""What a row tells of its batches since the first version."""


def _are_names(unknown: Any) -> bool:
    return isinstance(unknown, list) and all(isinstance(each, str) for each in unknown)


def _is_old_row(row: Any) -> bool:
    """Whether a step's row lacks the largest micro batch and the padded length, and tells its samples."""
    if not isinstance(row, dict) or row.get("largest_micro_batch") or row.get("padded_length"):
        return False
    known = [row[key] for key in _OLD_ROW if row.get(key) is not None]
    return bool(row.get("samples")) and all(type(each) is int and each > 0 for each in known)


def _without_unknown(group: Any) -> Any:
    return {key: value for key, value in group.items() if value != MISSING} if isinstance(group, dict) else group


def whole_rank(rank: Any) -> Any:
    """Return the values of a rank with defaults for the figures that it lacks, without keys that are no figures."""
    if not isinstance(rank, dict):
        return rank
    return _RANK_DEFAULTS | {key: value for key, value in rank.items() if key in _RANK}


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
