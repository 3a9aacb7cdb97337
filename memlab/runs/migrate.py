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
    return migrated


def _without_unknown(group: Any) -> Any:
    return {key: value for key, value in group.items() if value != MISSING} if isinstance(group, dict) else group


def whole_rank(rank: Any) -> Any:
    """Return the values of a rank with defaults for the figures that it lacks, without keys that are no figures."""
    if not isinstance(rank, dict):
        return rank
    return _RANK_DEFAULTS | {key: value for key, value in rank.items() if key in _RANK_KEYS}
