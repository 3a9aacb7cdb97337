"""How long the work of a step takes: a clock for the host and one for every stream of the GPU.

The host enters modules, dispatches operators one after another and runs ahead. A kernel begins when the host has asked
for it and its stream is free; it takes as long as its FLOPs at the peak or its bytes at the memory's bandwidth,
whichever is longer (the roofline). Collectives run beside them on a stream of their own, copies on the link to the
host. Who waits for whom is what the engine asked for in the trace.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from memlab.config import Config
from memlab.predict.constants import host_link_share
from memlab.predict.events import Trace
from memlab.predict.work import (
    COLLECTIVE,
    COPY,
    EVERYTHING,
    HOST_WAITS,
    HOST_WORK,
    KERNEL,
    PHASE,
    RECORD,
    STREAM_WAITS,
    STREAM_WAITS_COLLECTIVE,
    Item,
    link_bytes,
)
from memlab.unknown import WORK

_NCCL = -1
"""The stream of the collectives: one after another, beside everything else."""

LAUNCH_QUEUE = 1024
"""Kernels of a stream that may wait for the GPU: the host waits before it asks for one more. NVIDIA documents no
number; it is what people measure (stackoverflow.com/questions/53970187: "about 1000", for every stream)."""


@dataclass(frozen=True)
class Costs:
    """What is multiplied by the counts of a trace. Everything is a factor on seconds, so times are linear in them.

    The first seven say how many times longer the GPU takes than at the figures of its hardware entry (1: all that its
    datasheet promises, the inverse of an efficiency); the others are seconds of the host. As they are here nothing is
    lost anywhere: the lower bound.
    """

    compute: float = 1.0
    memory: float = 1.0
    link: float = 1.0
    host_link: float = 1.0  # to and from pinned memory of the host
    pageable_link: float = 1.0  # other memory, which the driver copies once more
    to_host_converted: float = 1.0  # by way of memory that is made for it there
    from_host_converted: float = 1.0
    operator_s: float = 0.0  # to dispatch an operator
    module_s: float = 0.0  # to enter a module's forward and run its Python code, and its share of backward's
    hook_s: float = 0.0  # what ZeRO-3 adds to each module, to fetch and release its parameters
    collective_s: float = 0.0  # to ask for a collective
    host_byte_s: float = 0.0  # for each byte that the host itself reads or writes (offloaded optimizers), for each rank

    def on_a_host(self, share: float) -> "Costs":
        """Those on one that takes this share of the time for what it runs of Python."""
        names = ("operator_s", "module_s", "hook_s", "collective_s")
        return replace(self, **{name: share * getattr(self, name) for name in names})

    def to_json(self) -> dict[str, float]:
        return asdict(self)


LOWER_BOUND = Costs()


@dataclass(frozen=True)
class Figures:
    """The hardware entry's figures, in FLOP/s and bytes/s of one GPU."""

    half_flops: float
    single_flops: float
    memory: float
    link: float
    host_link: float


def missing_figures(config: Config) -> list[str]:
    """The figures that the hardware entry lacks; without them no time can be told."""
    needed = ["bf16_tflops", "fp32_tflops", "memory_gb_per_s", "host_gb_per_s"]
    if config.hardware.world_size > 1:
        needed.append("link_gb_per_s")
    return [name for name in needed if not getattr(config.hardware, name)]


def has_clocks(config: Config, traces: Iterable[Trace]) -> bool:
    """Whether a time can be told: the hardware entry has the figures, and the work of the step was counted."""
    return not missing_figures(config) and not any(WORK in trace.unknown for trace in traces)


def figures(config: Config) -> Figures:
    """Of a hardware entry with no missing figures."""
    hardware = config.hardware
    return Figures(
        half_flops=hardware.bf16_tflops * 1e12,
        single_flops=hardware.fp32_tflops * 1e12,
        memory=hardware.memory_gb_per_s * 1e9,
        link=(hardware.link_gb_per_s or 0.0) * 1e9,
        host_link=hardware.host_gb_per_s * 1e9,
    )


def step_seconds(config: Config, traces: Mapping[int, Trace], costs: Costs) -> float:
    """The time of a step on the slowest of the traced ranks: nobody goes on before it."""
    return max(clocks(config, costs).step(trace.work) for trace in traces.values())


def clocks(config: Config, costs: Costs) -> "Clocks":
    module_s = costs.module_s + (costs.hook_s if config.zero_stage.stage == 3 else 0.0)
    host_byte_s = costs.host_byte_s * config.hardware.gpus  # the ranks of a node share its host
    own = figures(config)
    if costs != LOWER_BOUND:
        own = replace(own, host_link=own.host_link * host_link_share(config.hardware.gpus))
    return Clocks(own, costs, module_s, host_byte_s)


class Clocks:
    """``host`` and ``streams`` are seconds."""

    def __init__(self, figures: Figures, costs: Costs, module_s: float, host_byte_s: float):
        self.figures, self.costs, self.module_s, self.host_byte_s = figures, costs, module_s, host_byte_s
        ways = costs.host_link, costs.pageable_link, costs.to_host_converted, costs.from_host_converted
        self._by_copied_byte = [way / figures.host_link for way in ways]
        self.host = 0.0
        self.streams: dict[int, float] = {0: 0.0}
        self._begins: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=LAUNCH_QUEUE))

    def step(self, work: Sequence[Item]) -> float:
        """From the end of one step to the end of the next, when it is done again and again."""
        self.run(work)
        first = self.end()
        self.run(work)
        return self.end() - first

    def end(self) -> float:
        """When an event that is recorded now on the default stream completes."""
        return max(self.host, self.streams[0])

    def run(self, work: Sequence[Item], after_each: Callable[[], None] | None = None) -> None:
        streams, costs, module_s = self.streams, self.costs, self.module_s
        by_flops = (costs.compute / self.figures.single_flops, costs.compute / self.figures.half_flops)
        by_byte = costs.memory / self.figures.memory
        operator_s = costs.operator_s
        events: list[float] = []
        collectives: list[float] = []
        for item in work:
            kind = item[0]
            self.host += item[1] * operator_s + item[2] * module_s
            if kind == KERNEL:
                stream = item[3]
                by_compute, by_memory = item[5] * by_flops[item[4]], sum(item[6:]) * by_byte
                begins = self._begins[stream]
                if len(begins) == LAUNCH_QUEUE and begins[0] > self.host:
                    self.host = begins[0]
                free = streams.get(stream, 0.0)
                begin = free if free > self.host else self.host
                begins.append(begin)
                streams[stream] = begin + (by_compute if by_compute > by_memory else by_memory)
            elif kind == RECORD:
                events.append(max(self.host, streams.get(item[3], 0.0)))
            elif kind == STREAM_WAITS:
                streams[item[3]] = max(streams.get(item[3], 0.0), events[item[4]])
            elif kind == COLLECTIVE:
                collectives.append(self._collective(*item[3:]))
            elif kind == STREAM_WAITS_COLLECTIVE:
                streams[item[3]] = max(streams.get(item[3], 0.0), collectives[item[4]])
            elif kind == COPY:
                self._copy(*item[3:])
            elif kind == HOST_WAITS:
                self.host = max(self.host, *(streams.values() if item[3] == EVERYTHING else (events[item[3]],)))
            elif kind == HOST_WORK:
                self.host += sum(item[3:]) * self.host_byte_s
            if after_each:
                after_each()

    def _collective(self, stream: int, collective: int, ranks: int, nbytes: int) -> float:
        """When it is done. Alone, a rank copies: what is read is written."""
        self.host += self.costs.collective_s
        if ranks > 1:
            seconds = link_bytes(collective, ranks, nbytes) / self.figures.link * self.costs.link
        else:
            seconds = 2 * nbytes / self.figures.memory * self.costs.memory
        begin = max(self.host, self.streams.get(stream, 0.0), self.streams.get(_NCCL, 0.0))
        self.streams[_NCCL] = begin + seconds
        return begin + seconds

    def _copy(self, stream: int, blocking: int, way: int, nbytes: int) -> None:
        self.streams[stream] = max(self.host, self.streams.get(stream, 0.0)) + nbytes * self._by_copied_byte[way]
        if blocking:
            self.host = self.streams[stream]


BETWEEN = "between"
"""In place of a phase: what Trainer and the engine do outside them."""


def counts(trace: Trace) -> dict[str, dict[str, int]]:
    """What one rank does in a step, by phase: FLOPs, and bytes by where they go. ``link_bytes`` are those it sends."""
    phases: dict[str, dict[str, int]] = {}
    name = ""
    for item in trace.work:
        kind, operators, modules = item[:3]
        found = phases.setdefault(name or BETWEEN, dict.fromkeys(COUNTED, 0))
        found["operators"] += operators  # those before the item: of the phase that was
        found["modules"] += modules
        if kind == PHASE:
            name = trace.phases[item[3]]
        elif kind == KERNEL:
            found["kernels"] += 1
            found["flops"] += item[5]
            found["memory_bytes"] += sum(item[6:])
        elif kind == COLLECTIVE:
            found["collectives"] += 1
            found["link_bytes"] += round(link_bytes(*item[4:]))
        elif kind == COPY:
            found["host_link_bytes"] += item[6]
        elif kind == HOST_WORK:
            found["host_memory_bytes"] += sum(item[3:])
    return phases


COUNTED = (
    *("flops", "memory_bytes", "link_bytes", "host_link_bytes", "host_memory_bytes"),
    *("kernels", "collectives", "operators", "modules"),
)
