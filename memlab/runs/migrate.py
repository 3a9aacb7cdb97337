"""Migration of records that an older memlab wrote, and of records whose configuration is partly unknown."""

from dataclasses import asdict
from typing import Any

from memlab.core.config_fields import MISSING
from memlab.core.record import RankResult
from memlab.core.run_id import LATER_GROUPS
from memlab.core.schema import required

_RANK_KEYS = frozenset(asdict(RankResult(rank=0, device="", device_name="", memory_source="")))
_RANK_DEFAULTS = {
    name: value
    for name, value in asdict(RankResult(rank=0, device="", device_name="", memory_source="")).items()
    if name not in (*required(RankResult), "runtime")
}


def migrate(values: dict[str, Any]) -> dict[str, Any]:
    """Return the plain values of a record as this memlab writes them. Bad values stay, for the check to refuse.

    - ``before_in_launch`` is ``None`` (not known) in records from before it was written; so is ``command``, and no key
      of the configuration is unknown.
    - Groups that a configuration lacks, because they did not exist, have the option that they stand for.
    - A value ``???`` is unknown (an imported table may not name the model): the key is left out.
    - Batch and length that a command on one GPU did not tell are those that its steps show.
    - Figures that a rank lacks, because no memlab measured them, get the defaults of :class:`RankResult`. Keys that are
      no figures are dropped.
    """
    migrated = {"before_in_launch": None, "unknown_config": [], "command": None, **values}
    config, choices, ranks, unknown = (migrated.get(key) for key in ("config", "choices", "ranks", "unknown_config"))
    if isinstance(config, dict):
        migrated["config"] = {name: _without_unknown(group) for name, group in config.items()}
        if isinstance(choices, dict) and isinstance(unknown, list):
            later = [group for group in LATER_GROUPS if group not in config and group not in unknown]
            migrated["choices"] = {group: LATER_GROUPS[group] for group in later} | choices
    if isinstance(ranks, list):
        migrated["ranks"] = [whole_rank(rank) for rank in ranks]
        if len(ranks) == 1 and isinstance(migrated.get("steps"), dict) and _are_names(unknown):
            migrated |= _with_shape(migrated)
    return migrated


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
    return _RANK_DEFAULTS | {key: value for key, value in rank.items() if key in _RANK_KEYS}
