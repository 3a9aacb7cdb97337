"""Types of the values inside a record. ``Record`` and ``RankResult`` themselves are in memlab/core/record.py.

First what the ranks of a command found out (memlab/meters/__init__.py), and what a prediction adds for all; then the
parts of a record. The values below the configurations of libraries (DeepSpeed's JSON, TrainingArguments) are theirs:
any.

memlab/core/schema.py turns these types into checks, which run once when a record is read. Later code relies on the
types and checks nothing again, except for keys that are optional or may be ``None``.
"""

from typing import Annotated, Any, TypedDict

from memlab.core.schema import Limits, Others, Together
from memlab.core.value_types import AtLeastOne, Bytes, Count, Dollars, Figure, Index, Name, Positive, Seconds


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


Verdict = Annotated[str, Limits(choices=("fits", "edge", "does_not_fit", "does_not_last"))]


class OverRanks(TypedDict):
    """Largest, mean and smallest value of a figure over the ranks."""

    max: Figure
    mean: Figure
    min: Figure


SPEED = (
    *("step_seconds", "step_seconds_min", "step_seconds_max"),
    *("iterations_per_second", "samples_per_second", "tokens_per_second"),
)
"""Speed figures. A summary has either all of them or none."""


class _Summary(TypedDict, total=False):
    step_seconds: Positive  # the median of the measured steps
    step_seconds_min: Positive
    step_seconds_max: Positive | None  # None: not known, since the predicted step time is a lower bound
    step_seconds_lower_bound: Positive  # at the speeds in the datasheet
    step_seconds_basis: Name  # calibration or lower bound
    iterations_per_second: Positive
    samples_per_second: Positive | None  # None: not known, since the batches of a command need not say
    tokens_per_second: Positive | None
    usd: Dollars | None
    usd_per_million_tokens: Dollars | None
    parameters: Count
    verdict: Verdict  # of the worst rank
    needed_bytes: Bytes  # of the fullest rank on a GPU of any size, of a prediction that does not fit


Summary = Annotated[_Summary, Others(Figure | None | OverRanks), Together(SPEED)]
"""``Record.summary``. Any other key holds a :data:`Figure`, ``None`` or :class:`OverRanks`."""


class StepError(TypedDict):
    """Error of predicted step times of this kind, as a share of the step time."""

    median: Figure
    p90: Figure


class Steps(TypedDict, total=False):
    """``Record.steps``."""

    warmup: Count
    measured: Count
    averaged_over: Count  # imports only: number of steps behind a mean, if the source has no single step times
    repeat: Count
    repeats: Count
    seconds: list[Seconds]  # for each measured step, the seconds of the slowest rank
    warmup_seconds: list[Seconds]
    doubts: list[str]
    rows: list[StepRow]  # of a command: optimizer steps, over all ranks; of very many a choice (runs/step_rows.py)
    basis: Name
    basis_reason: str | None
    error: StepError | None
    calibration: str | None


class Disagreement(TypedDict):
    """A key that was composed with one value while the script used another."""

    key: Name
    composed: Any
    found: Any


class Needs(TypedDict):
    """What a command needs: the verdict, and the bytes of the rank that needs the most. ``free`` is negative if they
    are not there."""

    verdict: Verdict
    used: Bytes
    free: int | None
    host: Bytes


class TriedChange(TypedDict, total=False):
    """A change of a command that was predicted. ``needs`` is ``None`` if it was not, for ``reason``."""

    change: str
    price: str
    saved_bytes: int | None
    needs: Needs | None
    reason: str | None


class Changes(TypedDict):
    """Predicted changes of a command, and those for which there was no time."""

    base: TriedChange
    tried: list[TriedChange]
    not_tried: list[str]


class Files(TypedDict):
    """Files of one folder, with those of the folders below it."""

    folder: str
    files: Count
    bytes: Bytes


class Told(TypedDict):
    """A connection, a signal or an upload: what it was, and how many times."""

    what: str
    times: Count


class SandboxEffects(TypedDict):
    """What a predicted command would have done to the machine and to others (memlab/system/sandbox)."""

    protection: Annotated[str, Limits(choices=("namespaces", "landlock", "unprotected"))]
    network: bool  # whether it was open
    written: list[Files]
    deleted: list[Files]
    refused: list[Told]  # connections, and other system calls by their names
    answered: list[Told]  # uploads


class GrowthOfRun(Growth):
    """Memory that grows from step to step, on the rank on which it ends first.

    ``agreed``: whether a variable was found that keeps more with each step. Else only the steps that ran have shown it,
    and the verdict does not follow from it.
    """

    rank: Index
    kept_by: Keeper | None
    agreed: bool
    out_of_memory_step: Count | None  # None: memory lasts until the end of the run, or until the bound
    need_bytes: Bytes | None  # device memory when growth ends; None: nothing is known to end it


class EndedEarly(TypedDict):
    """What a prediction could not follow, after ``steps`` optimizer steps: the answer is for these."""

    phase: str | None
    where: str | None
    reason: str
    steps: Count


class _Words(TypedDict):
    words: list[str]


class Command(_Words, total=False):
    """``Record.command``: the user's command, how it ended, and where it did not use what was composed."""

    exit_code: int | None  # None: memlab ended the command
    steps: Count | None  # that it was to end after
    disagreements: list[Disagreement]
    changes: Changes
    assumed: dict[str, Count]  # of a prediction: line that needed a value that is not known -> times
    effects: SandboxEffects  # of a prediction
    epochs: list[Epoch]  # of a prediction
    ranges: list[ChoiceRange]  # of a prediction: of each choice that steered it
    growth: GrowthOfRun  # left out: no growth was seen
    ended_early: EndedEarly  # of a prediction; left out: the script was followed to its end


class _Timing(TypedDict, total=False):
    step_s_range: Annotated[list[Seconds | None], Limits(length=2)]  # the end is None if the step is a lower bound


Timing = Annotated[_Timing, Others(Seconds | None)]
"""``Record.timing``: wall-clock time by part of the run. Any other key also holds seconds."""


class HostProbe(TypedDict):
    """How fast a host works in a single thread (memlab/meters/host_probe.py). Each is the fastest of many tries."""

    python_calls_per_second: Positive
    torch_dispatch_seconds: Positive  # of one operator on a CPU tensor of one element
    copied_bytes_per_second: Positive


class Oom(Place, total=False):
    """An out-of-memory: where it occurred (``where``: of a command alone), and the requested bytes."""

    requested_bytes: Bytes | None
    event: Count
    message: str | None


class Breakdown(TypedDict):
    """Bytes by kind at the peak of each phase, and the places in code that allocated most at the peak of the run."""

    phases: dict[str, dict[str, int]]
    peak_phase: str | None
    largest: list[dict[str, Any]]


class Curve(TypedDict):
    """Memory over one step. All lists but ``phases`` have one length; ``phases`` holds [first event, name] pairs."""

    event: list[Count]
    allocated_bytes: list[Bytes]
    reserved_bytes: list[Bytes]
    phases: list[Annotated[list[int | str], Limits(length=2)]]
