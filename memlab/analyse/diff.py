"""Diff of two or more runs: configuration, environment, and the effect on memory, speed and cost, with warnings."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memlab.analyse.identity import changed_keys, differing_axes, environment_changes, of_repeats
from memlab.analyse.quantities import Difference, Quantity, differences, quantities_of
from memlab.analyse.run_view import RunView, is_command, value_at, why_not
from memlab.core.config import GROUPS, Config
from memlab.core.config_values import check_spelling, from_dict, to_dict, with_own_apart, with_own_names
from memlab.core.deepspeed_json import deepspeed_config
from memlab.core.errors import ConfigError, MemlabError
from memlab.core.plan import run_id, training_arguments
from memlab.core.schema import MISSING
from memlab.files.conf_files import parse_yaml
from memlab.files.disk import explained
from memlab.files.json_file import read_json
from memlab.runs.folder import RunFolder

PLANNED = "planned"
"""Status of a configuration that was read from a file and has not run."""


@dataclass(frozen=True)
class ChangedKey:
    """A group or dotted key with its value in each run; ``None`` where a run lacks the key."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class QuantityRow:
    """One quantity of all runs. ``differences`` are against the first run; ``None``: a run lacks it, or has a bound."""

    key: str
    quantities: tuple[Quantity | None, ...]
    differences: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Comparison:
    """Differences between runs. ``choices`` and ``values`` are options and dotted keys of the configuration.

    Show ``warnings`` first: they say what cannot be concluded.
    """

    runs: tuple[RunView, ...]
    warnings: tuple[str, ...]
    choices: tuple[ChangedKey, ...]
    values: tuple[ChangedKey, ...]
    deepspeed: tuple[ChangedKey, ...]
    training_args: tuple[ChangedKey, ...]
    environment: tuple[ChangedKey, ...]
    quantities: tuple[QuantityRow, ...]


def compare(runs: Sequence[RunView], by: str | None = None) -> Comparison:
    """Compare two or more runs with the first. ``by`` names the one axis that should differ."""
    if len(runs) < 2:
        raise MemlabError("A diff needs two runs or more.")
    options = [ChangedKey(group, tuple(run.choices.get(group) for run in runs)) for group in GROUPS]
    configs = [run.config for run in runs]
    confounds = axis_confounds(differing_axes(runs), by) + environment_confounds([runs])
    jsons, arguments = ([composed(run) for run in runs] for composed in (used_deepspeed_json, training_args))
    return Comparison(
        runs=tuple(runs),
        warnings=tuple(confounds + _protocols(runs) + _unknown(runs) + _not_ok(runs)),
        choices=tuple(change for change in options if len(set(change.values) - {None}) > 1),
        values=_changes(configs, [key for key in changed_keys(configs) if not of_repeats(key)]) + _other_words(runs),
        deepspeed=_changes(jsons, changed_keys(jsons)) if all(jsons) else (),
        training_args=_changes(arguments, changed_keys(arguments)) if all(arguments) else (),
        environment=tuple(ChangedKey(key, tuple(values)) for key, values in environment_changes(runs).items()),
        quantities=_quantity_rows(runs),
    )


def axis_confounds(axes: Sequence[str], by: str | None) -> list[str]:
    """Warn, in one sentence, if more than one axis differs, or other axes than ``by``."""
    if by is None:
        return [
            f"{len(axes)} axes differ ({', '.join(axes)}): their effects cannot be separated. "
            "Compare runs that differ in only one."
        ] * (len(axes) > 1)
    others = [axis for axis in axes if axis != by.partition(".")[0]]
    return [f"These also differ: {', '.join(others)}. The effect may not come from {by} alone."] * bool(others)


def environment_confounds(groups: Iterable[Sequence[RunView]]) -> list[str]:
    """Warn in one sentence of versions, drivers or machines that differ within a group; empty if none does."""
    found: dict[str, dict[str, None]] = {}
    for runs in groups:
        for key, values in environment_changes([run for run in runs if run.status != PLANNED]).items():
            found.setdefault(key, {}).update(dict.fromkeys(str(value) for value in values if value is not None))
    described = "; ".join(f"{key}: {' / '.join(values)}" for key, values in found.items())
    return [f"The environments differ ({described}): they may cause part of the difference."] if found else []


def used_deepspeed_json(run: RunView) -> dict[str, Any]:
    """Return the DeepSpeed JSON of a run: from its folder, else composed again from its configuration, else empty."""
    return _kept_or_composed(run, RunFolder.DEEPSPEED, deepspeed_config)


def training_args(run: RunView) -> dict[str, Any]:
    """Return the TrainingArguments of memlab's own training, found as the DeepSpeed JSON is; empty for a command."""
    return {} if is_command(run) else _kept_or_composed(run, RunFolder.TRAINING_ARGS, training_arguments)


def _kept_or_composed(run: RunView, name: str, compose: Callable[[Config], dict[str, Any]]) -> dict[str, Any]:
    file = RunFolder(run.path).path / name
    if run.status != PLANNED and file.is_file() and not file.is_symlink():
        kept = read_json(file)
        return kept if isinstance(kept, dict) else {}
    try:
        return compose(from_dict(with_own_apart(run.config)))
    except ConfigError:  # written by a release with other keys
        return {}


def planned_run(file: Path) -> RunView:
    """Read a plan, a record or a composed configuration (JSON or YAML) as a run without quantities."""
    values = _read_values(file)
    if "run_id" in values:
        config, choices = from_dict(values.get("config", {})), values.get("choices", {})
    else:
        config, choices = from_dict(with_own_apart(values)), {}
        check_spelling(config.own)
    return RunView(
        path=str(file),
        run_id=run_id(config),
        source="measured" if config.mode == "measure" else "predicted",
        status=PLANNED,
        reason=None,
        fingerprint="",
        isolation="",
        config=with_own_names(to_dict(config)),
        choices=choices,
    )


def _read_values(file: Path) -> dict[str, Any]:
    from yaml import YAMLError

    if file.suffix == ".json":
        values = read_json(file.resolve())
    else:
        with explained(MemlabError, file):
            text = file.read_text(encoding="utf-8")
        try:
            values = parse_yaml(text)
        except (ValueError, RecursionError, YAMLError) as error:
            raise MemlabError(
                f"{file}: unreadable ({str(error).splitlines()[0]}). Give a YAML or JSON file."
            ) from error
    if not isinstance(values, dict):
        raise MemlabError(
            f"{file}: not a configuration. Give a plan, a record, or a composed configuration: groups with keys."
        )
    if "${" in json.dumps(values, default=str):
        raise MemlabError(f"{file}: holds ${{...}}. Write the file with: python launch.py ... --cfg job --resolve")
    return values


def _protocols(runs: Sequence[RunView]) -> list[str]:
    """Warn if only some of the runs began to measure with an emptied cache."""
    cold = [run.run_id for run in runs if value_at(run.config, "measure.protocol") == "cold"]
    if len(cold) in (0, len(runs)):
        return []
    return [
        f"{', '.join(cold)}: peaks from process start, as in a plain training (protocol cold); of the others, peaks of "
        "the training steps, before which the allocator's cache was emptied."
    ]


def _unknown(runs: Sequence[RunView]) -> list[str]:
    """Name what was not found out about a command's configuration: it may differ too."""
    found = []
    for run in runs:
        groups = {name: part for name, part in run.config.items() if isinstance(part, dict) and name != "measure"}
        keys = {name: [key for key, value in part.items() if value == MISSING] for name, part in groups.items()}
        missing = [name for name, part in groups.items() if part and len(keys[name]) == len(part)]
        missing += [f"{name}.{key}" for name in groups if name not in missing for key in keys[name]]
        missing = [name for name in missing if name not in run.other_words]
        if missing:
            found.append(f"Not known of {run.run_id}, so perhaps different too: {', '.join(missing)}.")
    return found


def _not_ok(runs: Sequence[RunView]) -> list[str]:
    return [
        f"{run.run_id} ended as {run.status} ({run.reason or 'no reason given'}): its values are partial or absent."
        if run.ending == run.status
        else f"{run.run_id} {why_not(run)}."
        for run in runs
        if run.ending not in ("ok", PLANNED)
    ] + [f"{run.run_id} is incomplete: {'; '.join(run.incomplete)}." for run in runs if run.incomplete]


def _changes(dictionaries: Sequence[dict[str, Any]], keys: Sequence[str]) -> tuple[ChangedKey, ...]:
    return tuple(ChangedKey(key, tuple(value_at(values, key) for values in dictionaries)) for key in keys)


def _other_words(runs: Sequence[RunView]) -> tuple[ChangedKey, ...]:
    """Return the groups for which conf/ has no word in some runs, and that differ; elsewhere, the option."""
    groups = dict.fromkeys(group for run in runs for group in run.other_words)
    found = (
        ChangedKey(group, tuple(run.other_words.get(group, run.choices.get(group)) for run in runs))
        for group in groups
        if not of_repeats(group)
    )
    return tuple(change for change in found if len(set(change.values)) > 1)


def _quantity_rows(runs: Sequence[RunView]) -> tuple[QuantityRow, ...]:
    base, *others = quantities = [quantities_of(run) for run in runs]
    compared = [differences(base, other) for other in others]
    return tuple(
        QuantityRow(key, tuple(each.get(key) for each in quantities), tuple(each.get(key) for each in compared))
        for key in dict.fromkeys(key for each in quantities for key in each)
    )
