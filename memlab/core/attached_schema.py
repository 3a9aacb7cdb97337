"""Types of what the ranks of a command found out (memlab/meters/__init__.py), and of what a prediction adds for all.

The values below the configurations of libraries (DeepSpeed's JSON, TrainingArguments) are theirs: any.
"""

from typing import Annotated, Any, TypedDict

from memlab.core.schema import Limits, Others, Together
from memlab.core.value_types import AtLeastOne, Bytes, Count, Index, Seconds


class _NumberedStep(TypedDict):
    step: Count


class _Step(_NumberedStep, total=False):
    seconds: Seconds | None
    phase: str | None
    phases: dict[str, list[Bytes]]
    skipped: bool
    recorded: bool


StepRow = Annotated[_Step, Others(Count | None)]
"""An optimizer step of one rank, or over all ranks: a line of rankN.steps.jsonl."""


class _Phase(TypedDict, total=False):
    seconds: Seconds | None
    where: str | None


class Place(TypedDict, total=False):
    """Where a rank was. ``step``: from 1; ``None``: outside of the steps."""

    step: Count | None
    phase: str | None
    where: str | None


class _PeakBytes(Place):
    bytes: Bytes


class Keeper(TypedDict):
    """The variable that keeps tensors of each step. ``bound``: how many it can keep; ``None``: without a bound."""

    name: str  # losses, Trainer.history
    where: str | None  # line of the script that puts them there
    bound: Count | None
    keeps_graph: bool  # whether a tensor is kept together with what its backward needs
    is_scalar: bool  # whether each tensor has one element


class FoundKeeper(Keeper):
    """A keeper as a rank found it."""

    full_at_step: Count | None
    is_emptied: bool


class Growth(TypedDict):
    """Memory that grows over steps of equal shape."""

    bytes_per_step: AtLeastOne
    steps_seen: Count  # steps of equal shape over which it grew
    last_step: Count  # the last step that ran
    end_step: Count | None  # the last step of the run; None: not known


class FoundGrowth(Growth):
    """Growth as a rank found it."""

    kept_by: FoundKeeper | None


class FoundModel(TypedDict, total=False):
    """A module with parameters that is not part of another."""

    trained: bool
    parameters: Count
    convolution_parameters: Count
    dtypes: dict[str, Any]
    config: dict[str, Any] | None
    adapters: dict[str, Any] | None
    wrappers: list[str] | None


class _Device(TypedDict):
    device: str
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes


class FoundDevice(_Device, total=False):
    """A GPU that a process uses beside its own. Older records lack ``device_used_bytes``."""

    device_used_bytes: Bytes


class FoundEngine(TypedDict, total=False):
    """An engine of DeepSpeed."""

    config: dict[str, Any]
    zero: dict[str, Any]
    micro_batch: Count | None
    accumulation: Count | None


class FoundOptimizer(TypedDict, total=False):
    """An optimizer. ``calls``: number of its steps."""

    calls: Count
    defaults: dict[str, Any]


class FoundArguments(TypedDict):
    """The arguments of transformers' Trainer."""

    values: dict[str, Any]


class _NamedFile(TypedDict):
    name: str
    bytes: Bytes | None


class FoundFile(_NamedFile, total=False):
    """A data file. The size of a remote one is not known; one of the Hub has no path."""

    path: str


class FoundScript(TypedDict, total=False):
    """The script, and the folder that it ran in."""

    path: str | None
    cwd: str | None


class Attached(TypedDict, total=False):
    """``RankResult.attached``."""

    local_rank: Index | None
    local_world_size: Index | None
    world_size: Index | None
    ended: str
    where: str | None
    failed_in: str | None
    failed_at: Seconds | None
    at: Place | None
    steps: Count
    recorded_steps: Count
    profiled_steps: list[Count]
    peak: Annotated[_PeakBytes, Others(Count | None)] | None
    growth: FoundGrowth | None
    phases: dict[str, Annotated[_Phase, Others(Bytes | None)]]
    other_devices: list[FoundDevice]
    is_gpu_of_process: bool
    models: list[FoundModel] | None
    deepspeed: list[FoundEngine] | None
    optimizers: list[FoundOptimizer] | None
    training_arguments: FoundArguments | None
    accelerate: dict[str, Any] | None
    datasets: list[FoundFile] | None
    environment: dict[str, str] | None
    versions: dict[str, Any] | None
    script: FoundScript | None
    modules: dict[str, str] | None
    meter_errors: list[str]


class DearBatch(TypedDict):
    """A batch that was run because it takes the most memory. ``shapes``: of its tensors, by name."""

    batch: Count
    rank: Index | None
    shapes: dict[str, list[Count]]


class _Epoch(TypedDict):
    purpose: Annotated[str, Limits(choices=("training", "evaluation"))]
    batches: Count | None
    batches_read: Count
    batches_per_step: AtLeastOne
    failure: str | None
    seconds: Seconds
    is_stream: bool
    is_run_whole: bool
    dearest: list[DearBatch]


class _SharedEpoch(_Epoch, total=False):
    is_shared: bool
    read_by: Index
    batches_in_reach: Count | None
    ranks: AtLeastOne
    ranks_read: Count | None
    steps_of_epoch: Count
    steps_replayed: Count


Epoch = Annotated[
    _SharedEpoch,
    Together(("is_shared", "read_by", "batches_in_reach", "ranks", "ranks_read")),
    Together(("steps_replayed", "steps_of_epoch")),
]
"""What a prediction read of an epoch (predict/trace/epoch_batches.py)."""


class _Choice(TypedDict):
    choice: Annotated[str, Limits(choices=("generation", "routing", "selection", "workspaces", "order"))]


class ChoiceRange(_Choice, total=False):
    """Lowest and highest figures over the two ends of a choice; or why the other end could not be predicted."""

    failure: str
    peak_allocated_bytes: Annotated[list[Bytes], Limits(length=2)]
    peak_reserved_bytes: Annotated[list[Bytes], Limits(length=2)]
    device_used_bytes: Annotated[list[Bytes], Limits(length=2)]
