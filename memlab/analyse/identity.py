"""What makes two runs the same experiment, and along which axes they differ."""

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from memlab.analyse.run import Run, flatten, value_at
from memlab.config import GROUPS
from memlab.errors import MemlabError, nearest
from memlab.plan import NOT_MEASURED, SHAPE

REPEATS = (*NOT_MEASURED, "measure.repeat", "seed")
"""Groups and keys in which repeats of one experiment may differ."""

TOKENS, MICRO = SHAPE
"""Where a point lies within its configuration: sequence length and micro batch."""

MODE = "mode"
"""The axis between predictions and measurements."""

NO_CAUSE = ("git_sha", "git_dirty", "hostname_hash", "imported_from", "variables", "memlab", "cpu_count", "predictor")
"""Keys of the environment that say where a figure comes from, not what could change it."""


def of_repeats(key: str) -> bool:
    """Whether repeats of one experiment may differ in this dotted key."""
    return key in REPEATS or key.partition(".")[0] in REPEATS


def tokens_of(run: Run) -> int:
    """Tokens of one forward pass on one GPU: micro batch times sequence length. Memory is close to linear in it."""
    return value_at(run.config, MICRO) * value_at(run.config, TOKENS)


def point_of(run: Run) -> tuple[int, int]:
    """Micro batch and sequence length."""
    return value_at(run.config, MICRO), value_at(run.config, TOKENS)


def subject_of(run: Run) -> str:
    """The model and the machine: ``llama3_8b on 4 x NVIDIA H200``. Memory of two subjects has no place on one axis."""
    model = run.choices.get("model") or value_at(run.config, "model.path")
    gpus, gpu = value_at(run.config, "hardware.gpus"), value_at(run.config, "hardware.gpu")
    return f"{model} on {gpus} x {gpu or value_at(run.config, 'hardware.device')}"


def families(runs: Sequence[Run], without: Iterable[str] = SHAPE) -> list[list[Run]]:
    """The runs by configuration; those together differ in nothing but ``without`` (groups or dotted keys) and repeats.

    ``without`` :data:`MODE`, a prediction and the measurement of the same experiment are together.
    """
    removed = {*without, *REPEATS}
    names = dict.fromkeys([*GROUPS, *(key for run in runs for key in run.config)])
    compared = [name for name in names if name not in removed]
    texts: dict[tuple[str, int], str] = {}

    def text(name: str, part: Any) -> str:
        """The part as text, made once for all runs that share it."""
        place = (name, id(part))
        if place not in texts:
            texts[place] = _text_without(name, part, removed)
        return texts[place]

    found: dict[tuple[str | None, ...], list[Run]] = {}
    for run in runs:
        key = (None if MODE in removed else run.source, *(text(name, run.config.get(name)) for name in compared))
        found.setdefault(key, []).append(run)
    return list(found.values())


def _text_without(name: str, part: Any, removed: Container[str]) -> str:
    """One entry of a configuration, without the dotted keys in ``removed``."""
    if isinstance(part, dict):
        part = {key: value for key, value in part.items() if f"{name}.{key}" not in removed}
    return json.dumps(part, sort_keys=True)


def configurations(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each configuration, whatever their point: label -> runs. Labels name what tells them apart."""
    found = families(list(runs))
    return dict(zip(labels([members[0] for members in found]), found, strict=True))


def labels(firsts: Sequence[Run]) -> list[str]:
    """A name for each configuration: the command-line words of the groups in which they differ.

    A number follows where the options alone do not tell two of them apart.
    """
    named = [group for group in GROUPS if group not in ("seq_len", "batch", *REPEATS)]
    shown = [group for group in named if len({run.choices.get(group) for run in firsts}) > 1]
    shown = shown or ["model", "zero_stage", "offload"]
    sources = {run.source for run in firsts}
    names: list[str] = []
    for run in firsts:
        words = [f"{group}={run.choices[group]}" for group in shown if group in run.choices]
        words += [run.source] if len(sources) > 1 else []
        names.append(" ".join(words) or run.run_id)
    return numbered(names)


def numbered(names: Iterable[str]) -> list[str]:
    """The names, each with a number from its second occurrence on."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name} #{seen[name]}" if seen[name] > 1 else name)
    return unique


def changed_keys(dictionaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dotted keys whose values are not the same in all of these nested dictionaries, in the order of the keys."""
    changed: list[str] = []
    for name in dict.fromkeys(key for values in dictionaries for key in values):
        parts = {id(part): part for part in (values.get(name) for values in dictionaries)}  # runs share equal parts
        flat = [flatten(part, f"{name}.") if isinstance(part, dict) else {name: part} for part in parts.values()]
        keys = dict.fromkeys(key for part in flat for key in part)
        changed += [key for key in keys if any(part.get(key) != flat[0].get(key) for part in flat)]
    return changed


def differing_axes(runs: Sequence[Run]) -> list[str]:
    """The groups (and single values) in which these runs differ; repeats do not count."""
    keys = [key for key in changed_keys([run.config for run in runs]) if not of_repeats(key)]
    return list(dict.fromkeys(key.partition(".")[0] for key in keys))


def environment_changes(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Versions, driver and the like that differ between the runs that state them: key -> the value of each run.

    A run that does not state a value (a prediction has no driver, a run without liger no triton) contradicts none.
    """
    values = [causes(run.environment) for run in runs]
    found = {key: [each.get(key) for each in values] for key in dict.fromkeys(key for each in values for key in each)}
    return {key: told for key, told in found.items() if len({str(value) for value in told if value is not None}) > 1}


def causes(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What an environment states that could change a figure. Of the machine's GPUs their kinds, however many it has:
    how many a run used is in its configuration."""
    stated = {key: value for key, value in environment.items() if key not in NO_CAUSE and value not in (None, [], "")}
    if isinstance(gpus := stated.get("gpus"), list):
        stated["gpus"] = ", ".join(sorted(set(map(str, gpus))))
    return stated


def select(runs: Iterable[Run], conditions: Iterable[str]) -> list[Run]:
    """The runs that meet every ``KEY=VALUE``; a key is a group (its option), ``status``, ``source`` or dotted."""
    chosen = list(runs)
    for condition in conditions:
        key, equals, wanted = condition.partition("=")
        if not equals:
            raise MemlabError(f"--where {condition}: expected KEY=VALUE")
        known = {*GROUPS, "status", "source", *(k for run in chosen[:1] for k in flatten(run.config))}
        if key not in known:
            raise MemlabError(f"--where {condition}: no such key. {nearest(key, known)}")
        chosen = [run for run in chosen if str(_named(run, key)) == wanted]
    return chosen


def _named(run: Run, key: str) -> Any:
    if key in ("status", "source"):
        return getattr(run, key)
    return run.choices.get(key) if key in GROUPS else value_at(run.config, key)
