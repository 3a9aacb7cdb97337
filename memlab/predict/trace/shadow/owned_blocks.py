"""Owners of the blocks of a trace: parameters, their gradients, and the states of optimizers."""

import torch

from memlab.attach.owner import Owner
from memlab.attach.ownership import Ownership
from memlab.predict.trace.events import Alloc
from memlab.predict.trace.memory_kinds import SMALL, name_casts
from memlab.predict.trace.trace_format import Site, Trace


class OwnedBlocks:
    """Notes the owners of blocks while ``trace`` is recorded. ``ownership``: made with :func:`block_of`."""

    def __init__(self, trace: Trace, ownership: Ownership):
        self._trace, self._ownership = trace, ownership
        self._owners: dict[int, Owner] = {}  # by the block's key

    def look(self, phase: str | None) -> None:
        """Note the owners at the end of a phase. A later look knows more."""
        self._owners.update(self._ownership.after(phase))

    def write(self) -> None:
        """Name the owners in the trace. Its sites get copies with owners; kinds and modules are then the owners'."""
        numbers: dict[Site, int] = {}
        sites = self._trace.sites
        for index, event in enumerate(self._trace.events):
            if isinstance(event, Alloc) and event.key in self._owners and sites[event.site].kind != SMALL:
                site = sites[event.site].owned_by(self._owners[event.key])
                if site not in numbers:
                    numbers[site] = len(sites)
                    sites.append(site)
                self._trace.events[index] = event._replace(site=numbers[site])
        name_casts(self._trace)


def block_of(tensor: torch.Tensor) -> int | None:
    """Return the key of the block in which a tensor lies; ``None`` if it lies in none."""
    return getattr(tensor.untyped_storage(), "_memlab_key", None)
