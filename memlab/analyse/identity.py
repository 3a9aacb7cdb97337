"""Identity of runs: which runs are the same experiment, along which axes runs differ, and at which point they are."""

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any

from memlab.analyse.run_view import RunView, flatten, is_command, value_at
from memlab.core.config import GROUPS, MISSING, Measure
from memlab.core.errors import MemlabError, nearest
from memlab.core.grouping import grouped
from memlab.core.plan import NOT_MEASURED, SHAPE

REPEATS = (*NOT_MEASURED, "measure.repeat", "seed")
"""Groups and keys in which repeats of one experiment may differ."""

HOW_MEASURED = (
    *(f"measure.{key.name}" for key in fields(Measure) if key.name != "protocol"),
    "hardware.usd_per_gpu_hour",
)
"""Keys that say how, and at which price, a point is measured. Its memory and its step time do not depend on them."""

TOKENS, MICRO = SHAPE
"""Dotted keys of a point within its configuration: sequence length and micro batch."""

COMMAND = "training.command"
"""Key of the words of a command. What they set is in the other keys."""

OWN = "own."
"""Stands before a key of the user's own whose name a column of a table has already."""

MODE = "mode"
"""Name of the axis whose options are predicted and measured."""

NO_CAUSE = ("git_sha", "git_dirty", "hostname_hash", "imported_from", "variables", "memlab", "cpu_count", "predictor")
"""Environment keys that say where a quantity comes from but cannot change the quantity."""


def of_repeats(key: str) -> bool:
    """Return whether repeats of one experiment may differ in this dotted key."""
    return key in REPEATS or key.partition(".")[0] in REPEATS


def tokens_of(run: RunView) -> int:
    """Return the tokens of one forward pass on one GPU: micro batch x sequence length. Memory is about linear in it."""
    return value_at(run.config, MICRO) * value_at(run.config, TOKENS)


def point_of(run: RunView) -> tuple[int, int]:
    """Return the micro batch and the sequence length."""
    return value_at(run.config, MICRO), value_at(run.config, TOKENS)


def has_point(run: RunView) -> bool:
    """Whether micro batch and sequence length are known; of a command they may not be."""
    return None not in point_of(run)


def what_varies(runs: Sequence[RunView]) -> list[str]:
    """List the groups whose option varies, and the dotted keys that vary within one option; without the point itself,
    and without the keys in which repeats may differ."""
    groups = varied_groups(runs)
    return groups + [key for key in varied_keys(runs) if key.partition(".")[0] not in groups and key != MODE]


def varied_keys(runs: Sequence[RunView]) -> list[str]:
    """List the dotted keys that vary, without the point, the keys in which repeats may differ, and the steps that were
    seen of commands."""
    left_out = (*SHAPE, "measure.steps") if any(map(is_command, runs)) else SHAPE
    keys = changed_keys([run.config for run in runs])
    return [key for key in keys if key not in left_out and not of_repeats(key)]


def axis_value(run: RunView, axis: str) -> Any:
    """Return the option of a group, or the value of a dotted key; ``None`` if it is not known."""
    return run.choices.get(axis) if axis in GROUPS else value_at(run.config, axis)


def subject_of(run: RunView) -> str:
    """Name the model and the machine: ``llama3_8b on 4 x NVIDIA H200``. Two subjects never share an axis of memory."""
    option = run.choices.get("model")
    model = value_at(run.config, "model.path") if option in (None, "hf") else option  # hf: any model of the Hub
    gpus, gpu = value_at(run.config, "hardware.gpus"), value_at(run.config, "hardware.gpu")
    return f"{model or 'unknown model'} on {gpus} x {gpu or value_at(run.config, 'hardware.device')}"


def families(runs: Sequence[RunView], without: Iterable[str] = SHAPE) -> list[list[RunView]]:
    """Group the runs so that runs of one group differ only in ``without`` (groups or dotted keys) and as repeats do.

    With :data:`MODE` in ``without``, a prediction joins the measurement of the same experiment.
    """
    removed = {*without, *REPEATS}
    names = dict.fromkeys([*GROUPS, *(key for run in runs for key in run.config)])
    compared = [name for name in names if name not in removed]
    texts: dict[tuple[str, int], str] = {}

    def text(name: str, part: Any) -> str:
        """Return the part without the removed keys as text, made once for all runs that share the part."""
        place = (name, id(part))
        if place not in texts:
            if isinstance(part, dict):
                part = {key: value for key, value in flatten(part, f"{name}.").items() if key not in removed}
            texts[place] = json.dumps(part, sort_keys=True)
        return texts[place]

    def key(run: RunView) -> tuple[str | None, ...]:
        return None if MODE in removed else run.source, *(text(name, run.config.get(name)) for name in compared)

    return list(grouped(runs, key).values())


def configurations(runs: Iterable[RunView]) -> dict[str, list[RunView]]:
    """Group the runs by configuration, at any point: label -> runs. Labels name the options that differ."""
    found = families(list(runs))
    return dict(zip(labels([members[0] for members in found]), found, strict=True))


def labels(firsts: Sequence[RunView]) -> list[str]:
    """Name each configuration with the command-line words of the groups in which the configurations differ.

    The script of a command comes first if the configurations run several. A number follows if two configurations have
    the same words.
    """
    shown = varied_groups(firsts) or ["model", "zero_stage", "offload"]
    words = words_apart(
        firsts, lambda run: [f"{group}={run.choices[group]}" for group in shown if group in run.choices]
    )
    return numbered(" ".join(each) or run.run_id for each, run in zip(words, firsts, strict=True))


def words_apart(firsts: Sequence[RunView], words_of: Callable[[RunView], Iterable[str]]) -> list[list[str]]:
    """Return for each run its ``words_of``, after its script and before its source, where these differ."""
    sources = len({run.source for run in firsts})
    return [
        [*script, *words_of(run), *[run.source] * (sources > 1)]
        for run, script in zip(firsts, scripts(firsts), strict=True)
    ]


def varied_groups(firsts: Sequence[RunView]) -> list[str]:
    """List the groups in whose options configurations differ, without those of a point and of repeats."""
    groups = [group for group in GROUPS if group not in ("seq_len", "batch", *REPEATS)]
    return [group for group in groups if len({run.choices.get(group) for run in firsts}) > 1]


def scripts(firsts: Sequence[RunView]) -> list[list[str]]:
    """Return for each run the script of its command, as a list of one word; empty lists if all run the same.

    memlab's own training has none. The program stands for a command without a Python file.
    """
    commands = [(value_at(run.config, COMMAND) or "").split() for run in firsts]
    programs = [[word for word in words if word.endswith(".py")] or words for words in commands]
    found = [[PurePath(word).name for word in words[:1]] for words in programs]
    return found if len({*map(tuple, found)}) > 1 else [[] for _ in firsts]


def numbered(names: Iterable[str]) -> list[str]:
    """Add a number to each name from its second occurrence on."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name} #{seen[name]}" if seen[name] > 1 else name)
    return unique


def changed_keys(dictionaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the dotted keys whose values differ between these nested dictionaries, in the order of the keys.

    A value that is not known (MISSING) differs from none.
    """
    changed: list[str] = []
    for name in dict.fromkeys(key for values in dictionaries for key in values):
        parts = {id(part): part for part in (values.get(name) for values in dictionaries)}  # runs share equal parts
        flat = [flatten(part, f"{name}.") if isinstance(part, dict) else {name: part} for part in parts.values()]
        for key in dict.fromkeys(key for part in flat for key in part):
            known = [value for part in flat if (value := part.get(key)) != MISSING]
            if any(value != known[0] for value in known[1:]):
                changed.append(key)
    return changed


def differing_axes(runs: Sequence[RunView]) -> list[str]:
    """List the groups (and single values) in which these runs differ, except keys in which repeats may differ.

    The words of a command are no axis: what they set is in the other keys.
    """
    changed = changed_keys([run.config for run in runs])
    return list(dict.fromkeys(axis_of(key) for key in changed if not of_repeats(key) and key != COMMAND))


def axis_of(key: str) -> str:
    """Return the group of a dotted key; a value of a library, or one of the user's own, is an axis by itself."""
    root = key.partition(".")[0]
    return root if root in GROUPS else key


def environment_changes(runs: Sequence[RunView]) -> dict[str, list[Any]]:
    """Find versions, drivers and the like that differ between runs: key -> the value of each run.

    A run without a value is ignored for this key: a prediction has no driver, a run without liger no triton.
    """
    values = [causes(run.environment) for run in runs]
    found = {key: [each.get(key) for each in values] for key in dict.fromkeys(key for each in values for key in each)}
    return {key: each for key, each in found.items() if len({str(value) for value in each if value is not None}) > 1}


def causes(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment values that could change a quantity.

    ``gpus`` lists only the kinds of GPU, not their number: the configuration has the number of GPUs that a run uses.
    """
    stated = {key: value for key, value in environment.items() if key not in NO_CAUSE and value not in (None, [], "")}
    if isinstance(gpus := stated.get("gpus"), list):
        stated["gpus"] = ", ".join(sorted(set(map(str, gpus))))
    return stated


def named_apart(values: Mapping[str, Any], taken: Container[str]) -> dict[str, Any]:
    """Put :data:`OWN` before the keys that have a taken name: a key of the user's own may be called as a figure is."""
    return {OWN + key if key in taken else key: value for key, value in values.items()}


def select(runs: Iterable[RunView], conditions: Iterable[str]) -> list[RunView]:
    """Select the runs that meet every ``KEY=VALUE``. Keys: a group (its option), ``status``, ``source``, or dotted."""
    chosen = list(runs)
    for condition in conditions:
        key, equals, wanted = condition.partition("=")
        if not equals:
            raise MemlabError(f"--where {condition}: write KEY=VALUE.")
        known = {*GROUPS, "status", "source", *(k for run in chosen[:1] for k in flatten(run.config))}
        if key.removeprefix(OWN) not in known:
            raise MemlabError(f"--where {condition}: no such key. {nearest(key, known)}")
        chosen = [run for run in chosen if str(_named(run, key)) == wanted]
    return chosen


def _named(run: RunView, key: str) -> Any:
    return getattr(run, key) if key in ("status", "source") else axis_value(run, key.removeprefix(OWN))


@dataclass
class Points:
    """Runs that have a point. ``in_samples``: those of them whose batches hold no tokens, such as images; a sample
    counts as one token. ``without``: runs whose batch or length is not known."""

    runs: list[RunView] = field(default_factory=list)
    in_samples: list[RunView] = field(default_factory=list)
    without: list[RunView] = field(default_factory=list)


def points_of(runs: Iterable[RunView]) -> Points:
    """Sort runs by what is known of their batches."""
    found = Points()
    for run in runs:
        if has_point(run):
            found.runs.append(run)
        elif in_samples := _in_samples(run):
            found.runs.append(in_samples)
            found.in_samples.append(run)
        else:
            found.without.append(run)
    return found


def _in_samples(run: RunView) -> RunView | None:
    """Return the run of a command whose batches said their samples and no tokens; ``None`` for any other."""
    rate, tokens = (run.summary.get(f"{unit}_per_second") for unit in ("samples", "tokens"))
    if not (is_command(run) and value_at(run.config, MICRO) is not None and rate and tokens is None):
        return None
    gpus = value_at(run.config, "hardware.gpus") or 1
    rates = {"tokens_per_second": rate, "tokens_per_second_per_gpu": rate / gpus}
    return replace(run, config={**run.config, "seq_len": {"tokens": 1}}, summary={**run.summary, **rates})
