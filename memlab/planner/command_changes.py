"""Single changes of a training command that can lower its memory: other words, another file, another setting.

A change is proposed only where the command has the word for it, or where its script is seen to read the words of
transformers' TrainingArguments.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from memlab.core.errors import MemlabError
from memlab.core.record import Record, arguments_of
from memlab.planner import changes
from memlab.planner.changes import Change, Reach
from memlab.planner.command_record import TracedCommand, estimate_of
from memlab.planner.search import Outcome, in_order, with_outcome
from memlab.prediction.memory.rank_results import Estimate
from memlab.runs.folder import RunFolder

GPU_COUNTS = ("num_gpus", "nproc_per_node", "num_processes")
"""Options of deepspeed, torchrun and accelerate for the number of ranks on a node."""

JSON_FILES = ("deepspeed", "deepspeed_config", "deepspeed_config_file")
"""Options that name a DeepSpeed JSON: of transformers, of DeepSpeed's own scripts, of accelerate."""

BATCH, ACCUMULATION, CHECKPOINTING = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
)
"""Words of transformers' TrainingArguments."""

JSON_PLACE = "{memlab's changed DeepSpeed JSON}"


def possible_changes(words: Sequence[str], record: Record, facts: Mapping[str, Any], gpus: int) -> list[Change]:
    """List the changes that the command has words for.

    ``record``: has what the script was found to use. ``facts``: ``attached`` of a rank. ``gpus``: GPUs of a node of
    the hardware entry.
    """
    return [
        *_allocator(record.config.allocator.conf),
        *_checkpointing(words, facts),
        *_micro_batch(words, record, facts),
        *_deepspeed_json(words, facts),
        *_zero_stage_word(words, facts),
        *_more_gpus(words, facts, gpus),
    ]


def _allocator(conf: str) -> Iterator[Change]:
    if "expandable_segments" not in conf:
        changed = ",".join(filter(None, [conf, changes.EXPANDABLE]))
        yield Change(f"PYTORCH_ALLOC_CONF={changed}", changes.FREE, changes.DEFRAGMENTED, allocator_conf=changed)


def _checkpointing(words: Sequence[str], facts: Mapping[str, Any]) -> Iterator[Change]:
    trained = [model for model in facts.get("models") or () if model.get("trained")]
    if any(model.get("gradient_checkpointing") is False for model in trained) and _can_take(
        words, CHECKPOINTING, facts
    ):
        yield _with_options(changes.SECOND_FORWARD, changes.CHECKPOINTED, words, {CHECKPOINTING: "true"})


def _micro_batch(words: Sequence[str], record: Record, facts: Mapping[str, Any]) -> Iterator[Change]:
    batch: str | None = BATCH
    accumulation: str | None = ACCUMULATION
    if _can_take(words, BATCH, facts):
        values = arguments_of(facts)
        micro, times = values.get(BATCH) or 1, values.get(ACCUMULATION) or 1
    elif {"batch", "batch.micro"} & set(record.unknown_config):
        return
    else:
        micro, times = record.config.batch.micro, record.config.batch.accumulation
        batch, accumulation = _option_with_value(words, "batch", micro), _option_with_value(words, "accum", times)
    if batch is None or micro < 2:
        return
    options, price = {batch: str(micro // 2)}, "smaller steps"
    if accumulation is not None:
        options[accumulation], price = str(2 * times), "twice the forward passes of half the size"
    yield _with_options(price, changes.halved_batch(micro), words, options)


def _deepspeed_json(words: Sequence[str], facts: Mapping[str, Any]) -> Iterator[Change]:
    given = ((name, path) for name in JSON_FILES if (path := _value(words, name)) is not None)
    name, path = next(given, ("", ""))  # --deepspeed of DeepSpeed's own scripts is a flag
    if (content := _read(Path(path))) is None:
        return
    changed = _set(words, name, JSON_PLACE)
    for told, price, takes, zero in _more_sharded(content["zero_optimization"], facts.get("world_size") or 1):
        new = {**deepcopy(content), "zero_optimization": zero}
        yield Change(f"{told} in {Path(path).name}", price, takes, tuple(changed), deepspeed=new)


def _more_sharded(zero: Mapping[str, Any], ranks: int) -> Iterator[tuple[str, str, Reach, dict[str, Any]]]:
    """Yield (JSON text, price, reach, ``zero_optimization``) of each deeper stage or offload."""
    stage, on_cpu = zero.get("stage", 0), {"device": "cpu", "pin_memory": True}
    for deeper, price in ((2, changes.GRADIENTS_REDUCED), (3, changes.WEIGHTS_GATHERED)):
        if stage in range(deeper):
            yield f'"stage": {deeper}', price, changes.sharded(stage, deeper, ranks), {**zero, "stage": deeper}
    for key, price, takes, stages in (
        ("offload_optimizer", changes.STEP_ON_CPU, changes.OPTIMIZER_OFFLOADED, (1, 2, 3)),
        ("offload_param", changes.WEIGHTS_OVER_PCIE, changes.WEIGHTS_OFFLOADED, (3,)),
    ):
        if stage in stages and (zero.get(key) or {}).get("device", "none") == "none":
            yield f'"{key}": {{"device": "cpu"}}', price, takes, {**zero, key: on_cpu}


def _zero_stage_word(words: Sequence[str], facts: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the next stages of ``accelerate launch --zero_stage N``, which has no JSON."""
    if (stage := _value(words, "zero_stage")) in ("1", "2"):
        takes = changes.sharded(int(stage), 3, facts.get("world_size") or 1)
        yield _with_options(changes.WEIGHTS_GATHERED, takes, words, {"zero_stage": "3"})


def _more_gpus(words: Sequence[str], facts: Mapping[str, Any], gpus: int) -> Iterator[Change]:
    given = ((name, value) for name in GPU_COUNTS if (value := _value(words, name)) and value.isdigit())
    name, number = next(given, ("", "0"))
    if 0 < 2 * int(number) <= gpus and _shards(facts):
        yield _with_options("twice the GPUs", changes.TWICE_THE_RANKS, words, {name: str(2 * int(number))})


def _shards(facts: Mapping[str, Any]) -> bool:
    """Whether the ranks share out what one rank would hold: ZeRO from stage 1 on, or FSDP."""
    stages = [engine["zero"].get("stage", 0) for engine in facts.get("deepspeed") or ()]
    wrappers = [name for model in facts.get("models") or () for name in model.get("wrappers") or ()]
    return any(stages) or any("FSDP" in name or "FullySharded" in name for name in wrappers)


# --- words of a command


def _with_options(price: str, takes: Reach, words: Sequence[str], options: Mapping[str, str]) -> Change:
    changed, told = list(words), []
    for name, value in options.items():
        changed = _set(changed, name, value)
        told.append(f"--{name} {value}")
    return Change(" ".join(told), price, takes, tuple(changed))


def _can_take(words: Sequence[str], name: str, facts: Mapping[str, Any]) -> bool:
    """Whether the command has the option, or its script reads the words of transformers' TrainingArguments."""
    values = arguments_of(facts)
    return name in values and (_find(words, name) is not None or any(_name(word) in values for word in words))


def _name(word: str) -> str:
    """Return the name of an option as Python writes it; empty for other words."""
    return word.partition("=")[0].lstrip("-").replace("-", "_") if word.startswith("--") else ""


def _find(words: Sequence[str], name: str) -> int | None:
    """Return the index of an option. The last one counts, as for argparse."""
    return max((index for index, word in enumerate(words[: _end(words)]) if _name(word) == name), default=None)


def _end(words: Sequence[str]) -> int:
    """Return the index behind the script's options: of its own ``--``, behind which nothing is an option."""
    script = next((index for index, word in enumerate(words) if word.endswith(".py")), 0)
    return words.index("--", script) if "--" in words[script:] else len(words)


def _value(words: Sequence[str], name: str) -> str | None:
    """Return the value of an option; ``None`` if it is not there, or has none."""
    if (at := _find(words, name)) is None:
        return None
    if "=" in words[at]:
        return words[at].partition("=")[2]
    return words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else None


def _option_with_value(words: Sequence[str], part: str, value: int) -> str | None:
    """Return the only option with ``part`` in its name, if it has this value."""
    names = {name for word in words if part in (name := _name(word)) and "eval" not in name}
    return next((name for name in names if len(names) == 1 and _value(words, name) == str(value)), None)


def _set(words: Sequence[str], name: str, value: str) -> list[str]:
    """Return the words with another value of an option, which is added behind the script's options if it is not there.

    A word behind the option is its value only if it can be one: behind a flag may stand an argument of the script.
    """
    at, end = _find(words, name), _end(words)
    if at is None:
        return [*words[:end], f"--{name}", value, *words[end:]]
    option = words[at].partition("=")[0]
    if "=" in words[at]:
        return [*words[:at], f"{option}={value}", *words[at + 1 :]]
    has_value = _can_be_replaced(_value(words, name), value)
    return [*words[:at], option, value, *words[at + 1 + has_value :]]


_TRUTHS = frozenset({"true", "false", "yes", "no", "y", "n", "t", "f", "1", "0"})
"""Words that transformers' ``HfArgumentParser`` reads as true or false."""


def _can_be_replaced(given: str | None, value: str) -> bool:
    """Whether a word behind an option can be a value of the option like ``value``: a truth, a number, or any text."""
    if given is None or value in _TRUTHS - {"1", "0"}:
        return given is not None and given.lower() in _TRUTHS
    return given.isdigit() or not value.isdigit()


def _read(path: Path) -> dict[str, Any] | None:
    """Read a DeepSpeed JSON; ``None`` if it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("zero_optimization"), dict) else None


ENOUGH_S = 180
"""Seconds after which no further change is begun."""


Tracer = Callable[[Sequence[str], RunFolder], TracedCommand]
"""Runs changed words on the simulated GPUs. Raises :class:`MemlabError` where the script fails."""


def predicted_changes(
    command: TracedCommand, record: Record, trace: Tracer, on_change: Callable[[str], None]
) -> dict[str, Any]:
    """Predict each possible change of a command. ``record``: of the command; ``on_change`` gets each change first.

    Returns the value of ``Record.command["changes"]``: ``tried`` has first those that fit, then those that save the
    most memory; ``not_tried`` the changes for which there was no time.
    """
    facts = record.ranks[0]["attached"]

    def estimate_with(change: Change) -> Estimate:
        return estimate_of(changed_command(change, command, trace))

    base, began = estimate_of(command), time.monotonic()
    tried, not_tried = [], []
    for change in possible_changes(command.words, record, facts, command.hardware.gpus):
        if time.monotonic() - began > ENOUGH_S and change.words is not None:
            not_tried.append(change.told)
            continue
        on_change(change.told)
        tried.append(with_outcome(change, base, or_reason(estimate_with, change)))
    told = [
        {"change": one.word, "price": one.price, "saved_bytes": one.saved, **_needs(one.outcome)}
        for one in in_order(tried)
    ]
    return {"base": _needs(base), "tried": told, "not_tried": not_tried}


def or_reason(predict: Callable[..., Any], *arguments: Any) -> Any:
    """Return what ``predict`` returns, or the reason why there is no prediction."""
    try:
        return predict(*arguments)
    except MemlabError as error:
        return str(error)


def changed_command(change: Change, command: TracedCommand, trace: Tracer) -> TracedCommand:
    """Trace the changed command; a change of the allocator's settings alone has the traces of ``command``.

    Raises :class:`MemlabError` where the script fails.
    """
    if change.words is None:
        return replace(command, allocator_conf=change.allocator_conf)
    with tempfile.TemporaryDirectory(prefix="memlab-change-") as scratch:
        path = Path(scratch) / "deepspeed.json"
        if change.deepspeed is not None:
            path.write_text(json.dumps(change.deepspeed), encoding="utf-8")
        return trace([word.replace(JSON_PLACE, str(path)) for word in change.words], RunFolder(Path(scratch) / "run"))


def _needs(outcome: Outcome) -> Mapping[str, Any]:
    if isinstance(outcome, str):
        return {"reason": outcome, "needs": None}
    needs = {"verdict": outcome.verdict, "used": outcome.used, "free": outcome.free, "host": outcome.host}
    return {"reason": None, "needs": needs}
