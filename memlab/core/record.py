"""Record of one experiment, measured or predicted: its types and the words that they hold.

The types of the smaller parts are in memlab/core/record_schema.py. Files are read and written in memlab/runs/.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from memlab.core.basis import Basis, basis_of
from memlab.core.config import Config
from memlab.core.config_values import without
from memlab.core.record_schema import Attached, Breakdown, Command, Curve, HostProbe, Oom, Steps, Summary, Timing
from memlab.core.schema import Limits, PlainOf
from memlab.core.value_types import Bytes, Count, Figure, GpuBytes, Index, Name, Seconds

MODEL_FLOPS = "model_flops_per_step"
GPU_MODEL = "gpu_model"  # properties of the GPU that a prediction needs
EARLY = "early"  # how a predicted rank ended that could not be followed any further
WORK = "work"  # FLOPs, bytes and kernels of a predicted step, which give its time


@contextmanager
def left_out(figure: str, unknown: dict[str, str]) -> Iterator[None]:
    """Run the block. If an exception ends it, note in ``unknown`` why ``figure`` is missing, and go on."""
    try:
        yield
    except Exception as error:  # of any kind: the other figures of the run do not depend on this one
        unknown[figure] = f"{type(error).__name__}: {error}"


Facts = Mapping[str, Any]


def trained_model(facts: Facts) -> Mapping[str, Any]:
    """Return the largest model that an optimizer trains; empty if none is known."""
    models = [model for model in facts.get("models") or () if model.get("trained")]
    return max(models, key=lambda model: model.get("parameters") or 0, default={})


def first_engine(facts: Facts) -> Mapping[str, Any]:
    """Return the first engine of DeepSpeed, which trains if one does; empty without DeepSpeed."""
    return next(iter(facts.get("deepspeed") or ()), {})


def arguments_of(facts: Facts) -> Mapping[str, Any]:
    """Return the values of transformers' TrainingArguments; empty without its Trainer."""
    return (facts.get("training_arguments") or {}).get("values") or {}


SCHEMA_VERSION = 1

SOURCES = ("measured", "predicted")

STATUSES = ("ok", "gpu_oom", "host_oom", "timeout", "failed", "infra", "unsupported", "interrupted")
"""How a run can end. An out-of-memory is a result too; only the last four statuses mean that the run has no result."""

FINAL = ("ok", "gpu_oom", "host_oom", "unsupported")
"""Statuses that would be the same in a new run. A resumed sweep runs points with other statuses again."""

WITHOUT_RESULT = ("infra", "interrupted")
"""Statuses that say nothing about the run: an accident ended it. Running the same command again replaces them."""

OUT_OF_MEMORY = ("gpu_oom", "host_oom")
"""Statuses that larger points of the same configuration would also end with, because memory grows with size."""

IMPLIED = "implied by "
"""Prefix of the reason of an implied record. The run id of the record that implies it follows."""

FITS, EDGE, DOES_NOT_FIT, DOES_NOT_LAST = "fits", "edge", "does_not_fit", "does_not_last"
"""Verdicts of predictions. ``EDGE``: fits or not, depending on when side streams free memory. ``DOES_NOT_LAST``: the
steps that were run fit, and memory that grows from step to step ends in a later one (``Record.command``, ``growth``).
A measured run that was ended early has this verdict, too."""


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of the ranks' verdicts: a run fits if all its ranks fit."""
    return max(verdicts, key=(FITS, EDGE, DOES_NOT_FIT).index)


ISOLATIONS = ("fresh", "shared")
"""Whether a point had its own launch, or shared a launch with other points."""

PHASES = ("model_build", "engine_init", "forward", "backward", "optimizer_step")
"""The phases of a run. Forward, backward and optimizer step of the first step have the prefix ``first_``."""

BEFORE_STEPS = ("model_build", "engine_init")

FIRST_STEP_PHASES = ("first_forward", "first_backward", "first_optimizer_step")

COMMAND_PHASES = (
    *("load", "model_build", "engine_init", "resume", *FIRST_STEP_PHASES, "forward", "backward", "optimizer_step"),
    *("first_generate", "generate", "first_evaluate", "evaluate", "first_save", "save"),
)
"""The phases of a command of the user's own, in the order of display."""


def phases_of(ranks: Iterable[Mapping[str, Any]]) -> list[str]:
    """List the phases of these ranks of a record, in the order of display; phases of other versions come last."""
    order = {phase: place for place, phase in enumerate(COMMAND_PHASES)}
    found = dict.fromkeys(phase for rank in ranks for phase in rank["phases"])
    return sorted(found, key=lambda phase: order.get(phase, len(order)))


CUDA_ALLOCATOR = "cuda_caching_allocator"
"""``memory_source`` of a rank on a GPU: torch's own counters."""

HOST = "host"
"""``memory_source`` of a rank of a command on a machine without GPUs: only host memory is known."""

LIVE_TENSORS = "live_tensors"
"""``memory_source`` of a rank on a CPU, where torch has no counters. Allocated: bytes of live storages, counted by a
dispatch mode during the untimed steps. Reserved: the resident set of the process."""

PREDICTED = "predicted"
"""``memory_source`` of a rank that never ran: a replay of torch's allocator over a trace."""


@dataclass
class Phase:
    """Torch's memory in one phase: peaks over all its occurrences, and bytes allocated at the end of the last one."""

    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    end_allocated_bytes: Bytes


@dataclass
class RankResult:
    """Figures of one rank: an entry of ``Record.ranks``, and the content of the rank's file.

    Peaks cover the training steps, including the first one; the allocator's cache is emptied before them. With
    ``measure.protocol=cold``, peaks cover everything from process start. Peaks while the model and the engine are built
    are in ``phases``. ``None``: the device does not count this figure, or the rank ended before it was known.
    """

    rank: Index
    device: str
    """``cuda:0``, ``cpu``"""
    device_name: str
    memory_source: str
    """:data:`CUDA_ALLOCATOR`, :data:`LIVE_TENSORS` or :data:`PREDICTED`"""
    status: Annotated[str, Limits(choices=STATUSES)] = "ok"
    reason: str | None = None
    device_total_bytes: GpuBytes | None = None
    peak_allocated_bytes: Bytes | None = None
    peak_active_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    device_used_bytes: Bytes | None = None
    """Most bytes in use on the whole device, as the driver reports."""
    process_used_bytes: Bytes | None = None
    """Most bytes in use by this process, as the driver reports."""
    host_rss_bytes: Bytes | None = None
    """Resident set at the end of the run."""
    host_peak_bytes: Bytes | None = None
    host_pinned_bytes: Bytes | None = None
    """Peak of torch's pinned host allocator."""
    num_alloc_retries: Count | None = None
    num_ooms: Count | None = None
    phases: dict[str, Phase] = field(default_factory=dict)
    step_seconds: list[Seconds] = field(default_factory=list)
    """The measured steps."""
    warmup_seconds: list[Seconds] = field(default_factory=list)
    """The warm-up steps, from the very first step on."""
    losses: list[float | None] = field(default_factory=list)
    """One for each step, warm-up included. ``None``: not finite."""
    skipped_steps: Count | None = None
    """Optimizer steps that an overflow (fp16) skipped."""
    energy_joules: Figure | None = None
    """Energy of the device over the measured steps."""
    parameters: Count | None = None
    """Parameters of the whole model."""
    trainable_parameters: Count | None = None
    model_flops_per_step: Figure | None = None
    """FLOPs of this rank, without recomputation."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Figures that could not be computed -> the reason."""
    oom: Annotated[dict[str, Any], PlainOf(Oom)] | None = None
    runtime: dict[str, Any] = field(default_factory=dict)
    """Versions that only torch knows. In a record they are in ``Record.environment``."""
    host_probe: Annotated[dict[str, float], PlainOf(HostProbe)] | None = None
    """Of the first rank of each node, measured after its steps. Records from before it was measured lack it."""
    timing: dict[str, Seconds] = field(default_factory=dict)
    """``launch_s``, ``build_s``, ``init_s``, ``train_s``"""

    # The fields below are for predictions only.
    same_as_rank: Index | None = None
    """This rank was not traced: its figures are copied from this traced rank."""
    peak_reserved_range_bytes: Annotated[list[Bytes], Limits(length=2)] | None = None
    """Lowest and highest peak: the peak depends on the release delay of blocks that side streams use."""
    cold_peak_allocated_bytes: Bytes | None = None
    """Peak of a plain training: from process start, without emptying the cache before the first step."""
    cold_peak_reserved_bytes: Bytes | None = None
    fit_probability: Figure | None = None
    """Probability that the rank with the least free memory fits, from past errors of predictions."""
    verdict: Name | None = None
    """``fits``, ``edge`` or ``does_not_fit``, on this rank."""
    breakdown: Annotated[dict[str, Any], PlainOf(Breakdown)] | None = None
    curve: Annotated[dict[str, Any], PlainOf(Curve)] | None = None
    attached: Annotated[dict[str, Any], PlainOf(Attached)] | None = None
    """Facts that were found in a rank of a command of the user's own (memlab/meters/__init__.py)."""
    work: dict[str, dict[str, Figure]] | None = None
    """Phase -> FLOPs, bytes and kernels of a step, which give its time."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Record:
    """``record.json``: one experiment, measured or predicted. Bytes are integers, times are seconds."""

    run_id: Name
    source: Annotated[str, Limits(choices=SOURCES)]
    status: Annotated[str, Limits(choices=STATUSES)]
    config: Annotated[Config, PlainOf(dict[str, Any])]
    choices: dict[str, Name]
    """Group -> the chosen option."""
    fingerprint: Name
    reason: str | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    isolation: Annotated[str, Limits(choices=ISOLATIONS)] = "fresh"
    before_in_launch: list[Annotated[list[int], Limits(length=2)]] | None = None
    """(micro batch, tokens) of the points that the same launch ran before this one. ``None``: not known."""
    ranks: Annotated[list[dict[str, Any]], PlainOf(list[RankResult])] = field(default_factory=list)
    steps: Annotated[dict[str, Any], PlainOf(Steps)] = field(default_factory=dict)
    summary: Annotated[dict[str, Any], PlainOf(Summary)] = field(default_factory=dict)
    timing: Annotated[dict[str, Any], PlainOf(Timing)] = field(default_factory=dict)
    unknown_config: list[Name] = field(default_factory=list)
    """Groups and dotted keys of ``config`` that could not be found out. The file lacks them; here they are defaults."""
    command: Annotated[dict[str, Any], PlainOf(Command | None)] = field(default_factory=dict)
    """Of a run with ``training=command``. Empty for a point that did not run, and for memlab's own training: the file
    has ``null``."""
    schema_version: int = SCHEMA_VERSION

    @property
    def is_implied(self) -> bool:
        """Whether this out-of-memory follows from another record and was not measured."""
        return self.status in OUT_OF_MEMORY and (self.reason or "").startswith(IMPLIED)

    @property
    def basis(self) -> Basis:
        """How the record's times, rates and prices are known."""
        return basis_of(self.source, self.steps, self.summary)

    def with_command(self, **values: Any) -> "Record":
        """Copy the record with these values of ``command``."""
        return replace(self, command={**self.command, **values})

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["config"] = without(values["config"], self.unknown_config)
        values["command"] = values["command"] or None
        return {"schema_version": values.pop("schema_version"), **values}
