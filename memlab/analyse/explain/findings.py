"""Findings: memory that a run may not need, called by name. Each is a function of the trace or of what is held."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType

from memlab.analyse.explain.accounting import ALL_MODULES, layers_together
from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.growth import GrowingPlace, growth_in_evaluation, growth_over_steps
from memlab.analyse.explain.outside import RANKS
from memlab.core.grouping import grouped
from memlab.core.record_schema import GrowthOfRun
from memlab.meters.owner import GRADIENTS, OPTIMIZER, WEIGHTS, Owner
from memlab.prediction.memory.ledger import Holding
from memlab.simulator.trace.memory_kinds import ACTIVATIONS, CASTS, STEP
from memlab.simulator.trace.trace_format import Trace

GROWS_OVER_STEPS = "memory grows over steps"
GROWS_IN_EVALUATION = "evaluation keeps its outputs"
TRAINS_BESIDE_ADAPTER = "base parameters train next to the adapter"
STATES_OF_FROZEN = "gradients and states of frozen parameters"
UPCAST = "weights in float32 among 16-bit ones"
FROZEN_IN_FLOAT32 = "frozen weights in float32"
CAST_IN_FORWARD = "weights in float32 and again in 16 bits"
MODEL_TWICE = "two copies of a model"
WEIGHTS_CLONED = "a copy of the weights outside the model"
GRADIENTS_KEPT = "gradients kept that no step uses"
STRAY_CONTEXTS = "contexts of other ranks"

LEAST = 0.005
"""Least share of the allocated memory at the peak that a finding names, but for memory that grows."""

ALIKE = 0.01
"""Largest difference in elements between two copies of a model, as a share: heads and buffers may differ."""

LEAST_BLOCKS = 8
"""Least number of blocks that can be told to be a copy of a model's weights."""

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "uint8": 0.5}
"""Bytes of an element by dtype; of another dtype 1. Weights in uint8 are packed, two to a byte."""

_16_BITS_OR_LESS = frozenset({"bfloat16", "float16", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"})

_ADAPTERS = ("lora_", "lokr_", "hada_", "ia3_", "oft_", "prompt_", "adapter_", "modules_to_save", "trainable_tokens")
"""Parts of the names that peft gives to what its adapters train."""


@dataclass(frozen=True)
class Finding:
    """Memory that a run may not need.

    ``name``: one of the names above. ``nbytes``: where it is most, at the peak or in a step; of growth, each time.
    ``parts``: what holds it (modules, parameters or kinds) with bytes, the largest first. ``where``: the line that
    requested most of it, and ``user_line`` the line of the user's script that led there; empty where they are not
    known. ``subject``: model, kind or phase that it is about. ``times``: how often it grew, or the number of
    parameters. ``grown``: growth over steps as the meters of a command found it, with the variable that keeps it.
    """

    name: str
    nbytes: int
    parts: tuple[tuple[str, int], ...] = ()
    where: str = ""
    user_line: str = ""
    subject: str = ""
    times: int = 0
    grown: GrowthOfRun | None = None


def findings(rank: Explained) -> list[Finding]:
    """Return the findings of a rank: contexts of other ranks and growth first, then the others, the largest first."""
    in_steps = [run for run in rank.phases if run.part.step is not None]
    trained = _trained(run.end.holdings for run in in_steps)
    moments = [rank.peak.holdings, *(moment.holdings for run in in_steps for moment in (run.peak, run.end))]
    after_steps = [run.end.holdings for run in in_steps if run.part.phase.endswith("optimizer_step")]
    largest: dict[tuple[str, str], Finding] = {}
    for finding in (
        *(finding for holdings in moments for finding in found_in(holdings, trained)),
        *(finding for holdings in after_steps for finding in weights_cloned(holdings)),
        *(finding for run in rank.phases for finding in gradients_kept(run.part.phase, run.start.holdings)),
    ):
        key = finding.name, finding.subject
        largest[key] = max(largest.get(key, finding), finding, key=lambda each: each.nbytes)
    large = [finding for finding in largest.values() if finding.nbytes >= LEAST * rank.peak.allocated]
    grown = growth(rank.history.trace, rank.growth)
    return [*stray_contexts(rank), *grown, *sorted(large, key=lambda finding: -finding.nbytes)]


def stray_contexts(rank: Explained) -> Iterator[Finding]:
    """Yield what ranks that compute on other GPUs hold on this one, at the end of the history."""
    for share in rank.device.outside(len(rank.history.trace.events) - 1):
        if share.name == RANKS:
            parts = tuple((part.name, part.nbytes) for part in share.parts)
            yield Finding(STRAY_CONTEXTS, share.nbytes, parts, subject=f"cuda:{rank.device.index}", times=len(parts))


def growth(trace: Trace, of_run: GrowthOfRun | None = None) -> list[Finding]:
    """What grows over steps and over the batches of an evaluation. ``of_run``: what the meters found to grow."""
    grown = {GROWS_OVER_STEPS: growth_over_steps(trace), GROWS_IN_EVALUATION: growth_in_evaluation(trace)}
    found = {name: _of_growth(name, places) for name, places in grown.items() if places}
    if of_run is not None:
        seen = Finding(GROWS_OVER_STEPS, of_run["bytes_per_step"], times=of_run["steps_seen"])
        over_steps = replace(found.pop(GROWS_OVER_STEPS, seen), grown=of_run)
        return [over_steps, *found.values()]
    return list(found.values())


def _of_growth(name: str, places: Sequence[GrowingPlace]) -> Finding:
    """Join what grows into one finding, with the place that grows most."""
    most, modules = places[0], Counter[str]()
    for growth in places:
        for module, nbytes in growth.modules:
            modules[layers_together(module) or growth.place.where] += nbytes
    return Finding(
        name,
        sum(growth.nbytes for growth in places),
        tuple(modules.most_common()),
        most.place.where,
        most.place.user_line,
        most.place.kind,
        most.times,
    )


def found_in(holdings: Sequence[Holding], trained: Mapping[str, int] = MappingProxyType({})) -> Iterator[Finding]:
    """Yield the findings about weights, gradients and optimizer states that are held at one moment.

    ``trained``: model -> most bytes of gradients and optimizer states that it has at any moment.
    """
    by_model = _by_model(holdings)
    for model, own in by_model.items():
        yield from trains_beside_adapter(model, own)
        yield from states_of_frozen(model, own)
        yield from in_float32(model, _weights(own))
    yield from models_twice({model: _weights(own) for model, own in by_model.items()}, trained)
    yield from cast_in_forward(holdings)


def _by_model(holdings: Iterable[Holding]) -> dict[str, list[Holding]]:
    """Return model -> what it owns."""
    of_models = (held for held in holdings if held.site.owner and held.site.owner.model)
    return grouped(of_models, lambda held: _owner(held).model)


def _weights(own: Iterable[Holding]) -> list[Holding]:
    return [held for held in own if held.site.kind == WEIGHTS]


def _trained(moments: Iterable[Sequence[Holding]]) -> dict[str, int]:
    """Return model -> most bytes of gradients and optimizer states that it has at one of these moments."""
    most: dict[str, int] = defaultdict(int)
    for holdings in moments:
        for model, own in _by_model(holdings).items():
            used = _bytes(held for held in own if held.site.kind in (GRADIENTS, OPTIMIZER))
            most[model] = max(most[model], used)
    return most


def trains_beside_adapter(model: str, own: Sequence[Holding]) -> Iterator[Finding]:
    """Parameters of the base model that require gradients although the model has an adapter."""
    if any(_is_adapter(_owner(held)) for held in own):
        wrong = [held for held in own if _owner(held).trains and not _is_adapter(_owner(held))]
        yield from _about(TRAINS_BESIDE_ADAPTER, wrong, model)


def states_of_frozen(model: str, own: Sequence[Holding]) -> Iterator[Finding]:
    """Gradients and optimizer states of parameters that do not require gradients."""
    wrong = [held for held in own if held.site.kind in (GRADIENTS, OPTIMIZER) and not _owner(held).trains]
    yield from _about(STATES_OF_FROZEN, wrong, model)


def in_float32(model: str, weights: Sequence[Holding]) -> Iterator[Finding]:
    """Weights in float32: a few among smaller ones, which something has upcast, or all of a frozen model's."""
    full = [held for held in weights if _owner(held).dtype == "float32" and not _is_adapter(_owner(held))]
    smaller = [held for held in weights if _owner(held).dtype in _16_BITS_OR_LESS]
    if _elements(smaller) > _elements(full):
        yield from _about(UPCAST, full, model)
    else:
        yield from _about(FROZEN_IN_FLOAT32, [held for held in full if not _owner(held).trains], model)


def cast_in_forward(holdings: Sequence[Holding]) -> Iterator[Finding]:
    """16-bit copies of float32 weights, which autocast keeps from a module's forward on."""
    yield from _about(CAST_IN_FORWARD, [held for held in holdings if held.site.kind == CASTS], "")


def models_twice(weights: dict[str, list[Holding]], trained: Mapping[str, int]) -> Iterator[Finding]:
    """Pairs of models with as many elements and the same names, or the same class if ZeRO made one flat: a reference
    model, a teacher, a model loaded twice. The copy is the one that an optimizer does not train."""
    for first, second in combinations(weights, 2):
        if _is_copy(weights[first], weights[second]):
            copy = min((first, second), key=lambda each: (trained.get(each, 0), _use(weights[each])))
            yield from _about(MODEL_TWICE, _base(weights[copy]), copy)


def weights_cloned(after_step: Sequence[Holding]) -> Iterator[Finding]:
    """As many blocks, with as many elements, as a model's weights, from one line: clones, such as a moving average.

    ``after_step``: what is held when an optimizer step ends. Before, activations and temporaries can look the same.
    """
    weights = {model: _weights(own) for model, own in _by_model(after_step).items()}
    kinds = (WEIGHTS, ACTIVATIONS, STEP)
    of_no_model = (held for held in after_step if held.site.owner is None and held.site.kind in kinds)
    for clones in grouped(of_no_model, lambda held: (held.site.where, held.site.op)).values():
        own = next((own for own in weights.values() if _is_clone(clones, own)), None)
        if own is not None:
            yield from _about(WEIGHTS_CLONED, clones, _owner(own[0]).model)


def gradients_kept(phase: str, at_start: Iterable[Holding]) -> Iterator[Finding]:
    """Gradients of parameters that are still there when an evaluation, a generation or a saving begins."""
    if phase.removeprefix("first_") in ("evaluate", "save", "generate"):
        kept = [held for held in at_start if held.site.kind == GRADIENTS and held.site.owner]
        yield from _about(GRADIENTS_KEPT, kept, phase)


def _about(name: str, wrong: Sequence[Holding], subject: str) -> Iterator[Finding]:
    """Yield a finding about these holdings, if there are any."""
    if not wrong:
        return
    kinds = Counter(held.site.kind for held in wrong)
    parts: Counter[str] = Counter()
    for held in wrong:
        module = layers_together(held.site.module) or ALL_MODULES
        parts[module if len(kinds) == 1 else f"{held.site.kind} of {module}"] += held.nbytes
    most = wrong[0].site
    count = len({held.site.owner.parameter for held in wrong if held.site.owner})
    yield Finding(name, _bytes(wrong), tuple(parts.most_common()), most.where, most.user_line, subject, count)


def _owner(held: Holding) -> Owner:
    assert held.site.owner is not None
    return held.site.owner


def _is_adapter(owner: Owner) -> bool:
    return any(part in owner.parameter for part in _ADAPTERS)


def _base(weights: Iterable[Holding]) -> list[Holding]:
    return [held for held in weights if not _is_adapter(_owner(held))]


def _is_copy(first: Sequence[Holding], second: Sequence[Holding]) -> bool:
    one, other = _base(first), _base(second)
    sizes = sorted((_elements(one), _elements(other)))
    if not sizes[0] or sizes[1] - sizes[0] > ALIKE * sizes[1]:
        return False
    if _is_flat(one) or _is_flat(other):  # a flat buffer has no names
        classes = {_owner(own[0]).model.partition(" ")[0] for own in (one, other)}
        return len(classes) == 1
    names = [{_plain_name(_owner(held).parameter) for held in own} for own in (one, other)]
    return len(names[0] & names[1]) >= (1 - ALIKE) * len(names[0] | names[1])


def _is_clone(blocks: Sequence[Holding], weights: Sequence[Holding]) -> bool:
    counts = [sum(held.count for held in own) for own in (blocks, weights)]
    in_other_precision = _bytes(blocks) / max(_bytes(weights), 1) in (0.5, 1, 2)
    return counts[0] == counts[1] >= LEAST_BLOCKS and in_other_precision


def _plain_name(parameter: str) -> str:
    for part in ("base_model.model.", "module.", ".base_layer"):
        parameter = parameter.replace(part, "")
    return parameter


def _use(weights: Sequence[Holding]) -> tuple[bool, int]:
    """Return what tells a model that trains from its copy: an engine has made it flat, or more of it trains."""
    return _is_flat(weights), _bytes([held for held in weights if _owner(held).trains])


def _is_flat(weights: Iterable[Holding]) -> bool:
    return any(_owner(held).parameters > 1 for held in weights)


def _bytes(holdings: Iterable[Holding]) -> int:
    return sum(held.nbytes for held in holdings)


def _elements(weights: Iterable[Holding]) -> float:
    return sum(held.nbytes / _BYTES.get(_owner(held).dtype, 1) for held in weights)
