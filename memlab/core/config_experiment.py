"""Config groups training, hardware, measure, predict, sweep."""

from dataclasses import dataclass, field
from typing import Any

from memlab.core.config_fields import Range, at_least, not_negative, one_of, positive, within


@dataclass
class Training:
    """Whose training runs: memlab's own worker, or a command of yours."""

    loop: str = one_of("memlab", "command")
    command: str = ""
    """The words of your command, as in a shell. {key} stands for the value of a key (model.path, batch.micro, ...),
    {deepspeed_json} for the DeepSpeed JSON that memlab writes, {run_dir} for a folder of the point's own,
    {master_port} for a free port, {{ for a brace. docs/your_own_command.md has the other places."""
    script: str = ""
    """The script, with words of its own, where the command leaves it to you: {training.script}."""
    words: dict[str, Any] = field(default_factory=dict)
    """Key -> the words that it becomes, or value of the key -> words. They stand at the key's place in the command, or
    at its end. With such words, a value that reaches the command in no way is unsupported."""
    trainer: str = ""
    """Name of the trainer in the names of run folders and in messages."""

    @property
    def name(self) -> str:
        return self.trainer or self.loop

    auto: bool = True
    """Write "auto" into the DeepSpeed JSON for what transformers' arguments say: batch, precision, clipping, and the
    optimizer's hyperparameters. false: write all values, for scripts that call deepspeed.initialize themselves."""


@dataclass
class Hardware:
    """The machine to measure on, or the machine to predict for."""

    device: str = one_of("cuda", "cpu")
    gpu: str = ""
    gpus: int = at_least(1, 1, 1024)
    """GPUs of one node, or ranks of one node if device is cpu."""
    nodes: int = at_least(1, 1, 1024)
    """1: this machine. More: identical nodes, and this machine is one of them."""
    hostfile: str | None = None
    """For several nodes: DeepSpeed's list of the nodes, one '<host> slots=<gpus>' a line."""
    launcher: str | None = field(default=None, metadata={"choices": ("pdsh", "slurm", "openmpi")})
    """For several nodes: the launcher of DeepSpeed that starts the ranks."""
    memory_gib: float | None = within(Range(0.001), None)
    """Memory of one GPU."""
    usd_per_gpu_hour: float | None = not_negative(None)
    """Price of one GPU; the GPUs that are used are paid."""
    bf16_tflops: float | None = positive(None)
    """Dense peak of one GPU, the denominator of model FLOP utilisation. For every shipped GPU, fp16 has the same
    peak."""
    fp32_tflops: float | None = positive(None)
    memory_gb_per_s: float | None = positive(None)
    link_gb_per_s: float | None = positive(None)
    """GPU to GPU, one direction."""
    host_gb_per_s: float | None = positive(None)
    """GPU to host memory, one direction."""

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes."""
        return self.nodes * self.gpus

    @property
    def total_usd_per_hour(self) -> float | None:
        """Price of the GPUs on all nodes in US dollars an hour; ``None`` if the price is not known."""
        return None if self.usd_per_gpu_hour is None else self.world_size * self.usd_per_gpu_hour


@dataclass
class Measure:
    warmup: int = at_least(2, 3, 1_000_000)
    """Steps before the measured ones. The first step is reported separately: it creates the optimizer states, and
    ZeRO-3 does not prefetch in it."""
    steps: int = at_least(1, 10, 1_000_000)
    timeout_s: int = at_least(1, 1800)
    """Wall-clock limit in seconds of the whole run, including start-up."""
    repeats: int = at_least(1, 1, 10_000)
    """How often to measure the whole experiment. Every repeat has its own run folder."""
    repeat: int = at_least(1, 1)
    """Number of this repeat, from 1."""
    protocol: str = one_of("steps", "cold")
    """``steps``: peaks of the training steps; the allocator's cache is emptied before them. ``cold``: peaks from
    process start, as in a plain training: the cache is not emptied before the first step, and each point has its own
    launch."""
    snapshot: bool = False
    """Write torch's memory history, for memlab explain and pytorch.org/memory_viz: until the end of the warm-up steps,
    or up to an out-of-memory."""
    snapshot_ranks: list[int] = field(default_factory=list, metadata={"range": Range(0)})
    """Ranks that write it; empty: all."""
    profile: bool = False
    """After the measured steps, run three more under torch's profiler on rank 0, for memlab explain --time."""


@dataclass
class Predict:
    """Settings of predictions. They do not change what is measured."""

    calibrate: str | None = None
    """A folder of your own measured runs, or a file that ``python -m tools.calibration`` wrote. ``None``: the shipped
    calibration."""
    outside: str | None = None
    """Readings of your own runs, as memlab.analyse.explain.readings writes them: sizes of what lies outside torch's
    allocator. ``None``: the shipped sizes."""


@dataclass
class Sweep:
    """Settings of a sweep as a whole. They do not change what a point measures."""

    isolation: str = one_of("shared", "fresh")
    """``shared``: points that differ only in shape (seq_len, batch) run one after another in one launch."""
    prune: bool = True
    """After a point runs out of memory, record larger points of the same configuration as out of memory without a
    run."""
    side_by_side: str = one_of("auto", "always", "never")
    """Run several launches at once on disjoint GPUs. ``auto``: not with offload, where launches would compete for the
    host."""
    search: str = one_of("none", "batch", "seq_len")
    """Find the largest micro batch (or sequence length) that trains. The search starts from the composed value."""
    search_limit: int | None = at_least(1, None)
    """Largest value that the search tries."""
    dry_run: bool = False
    """Show what would run, and run nothing."""
    guide: str = one_of("none", "quote")
    """``quote``: a dry run also predicts which points fit, and the hours and dollars of the sweep."""
    max_usd: float | None = not_negative(None)
    max_hours: float | None = not_negative(None)
