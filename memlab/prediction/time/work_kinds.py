"""Kinds of work on a device, by the operator that launches it: the same for predicted and for profiled steps."""

import re

from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import NOT_NAMED, BeginWorkPhase, Collective, Copy, KernelLaunch

MATRIX_PRODUCTS = "matrix products"
ATTENTION = "attention"
ELEMENTWISE = "elementwise, norms, indexing"
OPTIMIZER = "optimizer step"
COMMUNICATION = "communication"
COPIES = "copies to and from the host"
OTHER = "other"

KINDS = (MATRIX_PRODUCTS, ATTENTION, ELEMENTWISE, OPTIMIZER, COMMUNICATION, COPIES, OTHER)
"""All kinds, in the order of display."""

_PRODUCTS = frozenset(
    {
        *("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul", "_scaled_mm"),
        *("_grouped_mm", "_addmm_activation", "convolution", "convolution_backward"),
        *("cudnn_convolution", "_int_mm", "linear_backward"),
    }
)

_ATTENTION = re.compile(r"attention|flash_attn|fmha")


def kernel_kind(operator: str, phase: str) -> str:
    """Return the kind of a kernel that is neither a collective nor a copy to or from the host.

    ``operator``: as ``aten.mm.default`` or ``aten::mm``, or the name of a function that is no operator of torch.
    ``phase``: of the launch; everything in ``optimizer_step`` is the optimizer's, with the gradients' norm.
    """
    if phase == "optimizer_step":
        return OPTIMIZER
    namespace, *name = re.split(r"::|\.", operator)
    if _ATTENTION.search(operator):
        return ATTENTION
    if namespace != "aten":
        return OTHER
    return MATRIX_PRODUCTS if name and name[0] in _PRODUCTS else ELEMENTWISE


def item_kinds(trace: Trace) -> list[str]:
    """Return the kind of each item of a trace's work; empty for an item that occupies neither a stream nor a link."""
    phase, found = "", []
    for item in trace.work:
        kind = ""
        if isinstance(item, BeginWorkPhase):
            phase = trace.phases[item.phase]
        elif isinstance(item, KernelLaunch):
            kind = kernel_kind("" if item.launcher == NOT_NAMED else trace.launchers[item.launcher].operator, phase)
        elif isinstance(item, Collective):
            kind = COMMUNICATION
        elif isinstance(item, Copy):
            kind = COPIES
        found.append(kind)
    return found
