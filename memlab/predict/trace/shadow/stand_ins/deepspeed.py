"""DeepSpeed's compiled operators, which are only counted, and ZeRO-3's comparisons of ranks, which are skipped.

The operators write into existing tensors, so no allocation is missed.
"""

from collections.abc import Callable, Iterator
from itertools import chain

import torch

from memlab.core.config import Config
from memlab.predict.constants import Generation
from memlab.predict.trace.shadow.counting import Counter, tensors_in
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: Generation) -> StandIn:
    return StandIn(replace=_replace)


def _replace(recorder: Recorder) -> None:
    import deepspeed.runtime.zero.utils as zero_utils
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.ops.op_builder.cpu import NotImplementedBuilder  # builder of ops that exist only for GPUs

    OpBuilder.load = NotImplementedBuilder.load = lambda self, verbose=True: _Extension(recorder.counter)
    zero_utils.get_lst_from_rank0 = lambda numbers: numbers  # each traced rank runs alone
    zero_utils.assert_lst_len_same_as_other_ranks = lambda numbers: None


class _Extension:
    """A compiled extension whose functions do nothing but count."""

    def __init__(self, counter: Counter):
        self._counter = counter

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*args, **options) -> int:
            self._counter.library_call(chain(tensors_in(args), _updated(name, args)))
            return 0

        return function


def _updated(function: str, args: tuple) -> Iterator[torch.Tensor]:
    """Yield the tensors that an optimizer's function writes as well as reads.

    Source: ``multi_tensor_adam.cu`` (lists of gradients, parameters and moments) and ``cpu_adam_impl.cpp`` (last
    arguments: parameter, gradient and moments) in DeepSpeed's ``csrc/adam``, and their counterparts in ``csrc/lion``.
    """
    if function.startswith(("multi_tensor_adam", "multi_tensor_lion")):
        yield from tensors_in(args[2][1:])
    elif function.startswith(("adam_update", "lion_update")):
        parameter, _, *moments = tensors_in(args)
        yield from (parameter, *moments)
