"""Step time model: one clock for the host and one for every stream of the GPU.

The host enters modules, dispatches operators one after another and runs ahead of the GPU. A kernel begins when the host
has launched it and its stream is free. It takes as long as its FLOPs at peak speed or its bytes at the memory's
bandwidth, whichever is longer (the roofline). Collectives run at the same time on a stream of their own, copies on the
link to the host. The waits between them are the ones that the engine requested in the trace.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memlab.core.config import Config
from memlab.core.record import WORK
from memlab.simulator.constants import TF32_SHARE, host_link_share
from memlab.simulator.trace.trace_format import Trace, Traces
from memlab.simulator.trace.work_items import (
    EVERYTHING,
    HALF,
    SINGLE,
    TF32,
    Collective,
    Copy,
    HostWaits,
    HostWork,
    Item,
    KernelLaunch,
    RecordEvent,
    StreamWaitsForCollective,
    StreamWaitsForEvent,
    link_bytes,
)

COMMUNICATION = -1
"""The stream of the collectives, which run one after another at the same time as the kernels."""

LAUNCH_QUEUE = 1024
"""Number of launched kernels that may wait in a stream; before one more kernel launch the host waits. NVIDIA documents
no number; people measure this one (stackoverflow.com/questions/53970187: "about 1000", for every stream)."""


@dataclass(frozen=True)
class Costs:
    """Costs that are multiplied by the counts of a trace. Every cost is a factor on seconds, so times are linear in the
    costs.

    The first seven are how many times longer the GPU takes than at the specifications of its hardware entry: the
    inverse of an efficiency, 1 at full datasheet speed. The others are seconds of the host. The defaults give the lower
    bound: full datasheet speed, and a host that takes no time.
    """

    compute: float = 1.0
    memory: float = 1.0
    link: float = 1.0
    host_link: float = 1.0  # to and from pinned memory of the host
    pageable_link: float = 1.0  # to and from unpinned memory, which the driver copies once more
    to_host_converted: float = 1.0  # with a conversion, by way of a temporary buffer on the host
    from_host_converted: float = 1.0
    operator_s: float = 0.0  # to dispatch an operator
    module_s: float = 0.0  # to enter a module's forward and run its Python code, and its share of the backward pass
    hook_s: float = 0.0  # what ZeRO-3 adds to each module, to fetch and release its parameters
    collective_s: float = 0.0  # to launch a collective
    host_byte_s: float = 0.0  # for each byte that the host itself reads or writes (offloaded optimizers), for each rank

    def on_a_host(self, share: float) -> "Costs":
        """Return the costs with all times of the host's Python code multiplied by ``share``."""
        names = ("operator_s", "module_s", "hook_s", "collective_s")
        return replace(self, **{name: share * getattr(self, name) for name in names})


LOWER_BOUND = Costs()


def missing_specifications(config: Config) -> list[str]:
    """Return the names of the specifications that the hardware entry lacks. Without them no time can be predicted."""
    needed = ["bf16_tflops", "fp32_tflops", "memory_gb_per_s", "host_gb_per_s"]
    if config.hardware.world_size > 1:
        needed.append("link_gb_per_s")
    return [name for name in needed if not getattr(config.hardware, name)]


def has_clocks(config: Config, traces: Iterable[Trace]) -> bool:
    """Return whether a time can be predicted: all specifications are there, and the step's work was counted."""
    return not missing_specifications(config) and not any(WORK in trace.unknown for trace in traces)


def step_seconds(config: Config, traces: Traces, costs: Costs) -> float:
    """Return the seconds of a step on the slowest traced rank, which all ranks wait for."""
    return max(Clocks(config, costs).step(trace.work) for trace in traces.values())


class Clocks:
    """The clocks of one rank, in seconds: ``host``, and ``streams`` by stream. ``began``: when the latest kernel,
    collective or copy began. The hardware entry must have all specifications."""

    def __init__(self, config: Config, costs: Costs):
        hardware: Any = config.hardware  # with all specifications
        self.costs = costs
        self.module_s = costs.module_s + (costs.hook_s if config.zero_stage.stage == 3 else 0.0)
        self._host_byte_s = costs.host_byte_s * hardware.gpus  # the ranks of a node share its host
        tf32_tflops = max(hardware.fp32_tflops, TF32_SHARE * hardware.bf16_tflops)
        peaks = {SINGLE: hardware.fp32_tflops, HALF: hardware.bf16_tflops, TF32: tf32_tflops}
        self._by_flops = {precision: costs.compute / (peak * 1e12) for precision, peak in peaks.items()}
        self._memory = hardware.memory_gb_per_s * 1e9  # bytes/s, as of the links
        self._link = (hardware.link_gb_per_s or 0.0) * 1e9
        host_link = hardware.host_gb_per_s * 1e9
        if costs != LOWER_BOUND:
            host_link *= host_link_share(hardware.gpus)
        ways = costs.host_link, costs.pageable_link, costs.to_host_converted, costs.from_host_converted
        self._by_copied_byte = [way / host_link for way in ways]
        self.host = 0.0
        self.streams: dict[int, float] = {0: 0.0}
        self.began = 0.0
        self._begins: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=LAUNCH_QUEUE))

    def step(self, work: Sequence[Item]) -> float:
        """Return the seconds from the end of one step to the end of the next, when the same step is repeated."""
        self.run(work)
        first = self.end()
        self.run(work)
        return self.end() - first

    def end(self) -> float:
        """Return the second at which an event completes that is recorded now on the default stream."""
        return max(self.host, self.streams[0])

    def run(self, work: Sequence[Item], after_each: Callable[[], None] | None = None) -> None:
        streams, operator_s, module_s = self.streams, self.costs.operator_s, self.module_s
        by_flops, by_byte = self._by_flops, self.costs.memory / self._memory
        events: list[float] = []
        collectives: list[float] = []
        item: Any  # of the type that ``kind`` says: comparing types is faster than isinstance
        for item in work:
            kind = type(item)
            self.host += item.operators * operator_s + item.modules * module_s
            if kind is KernelLaunch:
                stream = item.stream
                by_compute, by_memory = item.flops * by_flops[item.precision], sum(item.sizes) * by_byte
                begins = self._begins[stream]
                if len(begins) == LAUNCH_QUEUE and begins[0] > self.host:
                    self.host = begins[0]
                free = streams.get(stream, 0.0)
                begin = free if free > self.host else self.host
                begins.append(begin)
                self.began = begin
                streams[stream] = begin + (by_compute if by_compute > by_memory else by_memory)
            elif kind is RecordEvent:
                events.append(max(self.host, streams.get(item.stream, 0.0)))
            elif kind is StreamWaitsForEvent:
                streams[item.stream] = max(streams.get(item.stream, 0.0), events[item.event])
            elif kind is Collective:
                collectives.append(self._collective(item))
            elif kind is StreamWaitsForCollective:
                streams[item.stream] = max(streams.get(item.stream, 0.0), collectives[item.collective])
            elif kind is Copy:
                self._copy(item)
            elif kind is HostWaits:
                until = streams.values() if item.event == EVERYTHING else (events[item.event],)
                self.host = max(self.host, *until)
            elif kind is HostWork:
                self.host += sum(item.sizes) * self._host_byte_s
            if after_each:
                after_each()

    def _collective(self, item: Collective) -> float:
        """Run a collective and return the second at which it ends. A single rank copies: it reads and writes every
        byte."""
        self.host += self.costs.collective_s
        if item.ranks > 1:
            seconds = link_bytes(item.kind, item.ranks, item.nbytes) / self._link * self.costs.link
        else:
            seconds = 2 * item.nbytes / self._memory * self.costs.memory
        self.began = max(self.host, self.streams.get(item.stream, 0.0), self.streams.get(COMMUNICATION, 0.0))
        self.streams[COMMUNICATION] = self.began + seconds
        return self.began + seconds

    def _copy(self, item: Copy) -> None:
        self.began = max(self.host, self.streams.get(item.stream, 0.0))
        self.streams[item.stream] = self.began + item.nbytes * self._by_copied_byte[item.route]
        if item.blocking:
            self.host = self.streams[item.stream]
