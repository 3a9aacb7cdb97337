"""Parts of a run that are alike: memlab traces and describes some of them, and writes the others from a description.

Decoding steps (decoding_steps.py) and micro-steps of Trainer (trainer_micro_steps.py) are such parts. A part that is
written again leaves the events and the work that it would have if it was traced.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memlab.meters.own_errors import contained
from memlab.simulator.rank.memory_events import block_of
from memlab.simulator.rank.recorder import Recorder
from memlab.simulator.trace.alike_steps import NO_SITE, AlikeStep, Left, renamed
from memlab.simulator.trace.events import Alloc, made
from memlab.simulator.trace.memory_kinds import SMALL

Described = Callable[..., AlikeStep | None]
"""Describes a part that was traced (:func:`traced_part`)."""


@contextmanager
def traced_part(recorder: Recorder) -> Iterator[Described]:
    """Trace what runs inside as a part of the run. Yields a function that describes the part, while it is inside.

    The function gets the ``size`` of the step, the ``found`` blocks that the part frees, the tensors that are ``left``,
    the blocks that stay with other tensors (``kept``), and whatever else must be equal (``others``). It returns
    ``None`` if the part leaves or frees anything else.
    """
    trace, sites = recorder.trace, recorder.sites
    begin, assumed, sites.of_small = len(trace.events), trace.assumed.copy(), []

    @contained
    def described(
        size: Any, found: Sequence[Any], left: Sequence[torch.Tensor], others: Any, kept: Sequence[int] = ()
    ) -> AlikeStep | None:
        blocks: list[Any] = [*map(block_of, left), *kept]
        numbers = made(trace.events[begin:])
        events, counted = renamed(trace.events[begin:], found, blocks), work()
        if counted is None or events is None or not all(map(_is_plain, left)):
            return None
        small = iter(sites.of_small or ())
        of_requests = [trace.sites[event.site] for event in trace.events[begin:] if isinstance(event, Alloc)]
        of_requests = [next(small) if site.kind == SMALL else site for site in of_requests]
        taken = [(sentence, times - assumed.get(sentence, 0)) for sentence, times in trace.assumed.items()]
        return AlikeStep(
            size,
            events,
            sites=list(map(sites.without_shape, of_requests)),
            shapes=[site.shape for site in of_requests],
            work=counted,
            left=[
                Left(numbers.index(block), tuple(tensor.shape), tensor.dtype, tensor.device)
                for block, tensor in zip(blocks, left, strict=False)
            ],
            others=(others, [numbers.index(block) for block in kept], [each for each in taken if each[1]]),
        )

    try:
        with recorder.counter.of_part() as work:
            yield described
    finally:
        sites.of_small = None


def write_again(
    recorder: Recorder, step: AlikeStep, found: Sequence[Any], cuts: Sequence[Callable[[], Any]] = ()
) -> tuple[list[torch.Tensor], list[int]]:
    """Write what a step does into the trace; return the tensors that it leaves, and the keys of all blocks it makes.

    ``found``: storages whose blocks it frees. ``cuts``: what begins each of its phases but the first.
    """
    requests = [event for event in step.events if type(event) is Alloc]
    sites = {
        event.key: recorder.sites.like(site, shape, event.nbytes) if event.site == NO_SITE else event.site
        for event, site, shape in zip(requests, step.sites, step.shapes, strict=True)
    }
    for sentence, times in step.others[-1]:
        recorder.trace.assumed[sentence] += times
    keys, new = recorder.memory.keys_of(step.events, found)
    for (events, work), begin_next in zip(step.phases(), (*cuts, lambda: None), strict=True):
        recorder.counter.repeat(work)
        recorder.memory.repeat(events, keys, sites)
        begin_next()
    tensors = [
        recorder.in_block(left.shape, left.dtype, left.device, new[left.block], sites[left.block]) for left in step.left
    ]
    return tensors, new


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its block, and neither its values nor its gradient matter."""
    storage = tensor.untyped_storage()
    is_whole = tensor.is_contiguous() and tensor.numel() * tensor.element_size() == storage.nbytes()
    has_values = any(hasattr(storage, name) for name in ("_memlab_values", "_memlab_assumed", "_memlab_taken"))
    return isinstance(tensor, FakeTensor) and is_whole and not has_values and not tensor.requires_grad
