"""Work of one rank in a step by phase, for the record."""

from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import BeginWorkPhase, Collective, Copy, HostWork, KernelLaunch, link_bytes

BETWEEN = "between"
"""Name for the work that Trainer and the engine do outside the phases."""


def work_by_phase(trace: Trace) -> dict[str, dict[str, float]]:
    """Sum up one rank's work in a step by phase, in the counts of ``COUNTED``. ``link_bytes`` are the bytes that the
    rank sends."""
    phases: dict[str, dict[str, float]] = {}
    name = ""
    for item in trace.work:
        found = phases.setdefault(name or BETWEEN, dict.fromkeys(COUNTED, 0))
        found["operators"] += item.operators  # before the item, so of the phase so far
        found["modules"] += item.modules
        if isinstance(item, BeginWorkPhase):
            name = trace.phases[item.phase]
        elif isinstance(item, KernelLaunch):
            found["kernels"] += 1
            found["flops"] += item.flops
            found["memory_bytes"] += sum(item.sizes)
        elif isinstance(item, Collective):
            found["collectives"] += 1
            found["link_bytes"] += round(link_bytes(item.kind, item.ranks, item.nbytes))
        elif isinstance(item, Copy):
            found["host_link_bytes"] += item.nbytes
        elif isinstance(item, HostWork):
            found["host_memory_bytes"] += sum(item.sizes)
    return phases


COUNTED = (
    *("flops", "memory_bytes", "link_bytes", "host_link_bytes", "host_memory_bytes"),
    *("kernels", "collectives", "operators", "modules"),
)
