"""Products of matrices in half precision whose result is in single precision (``out_dtype``), which chunked losses use.

torch before 2.13 has no result without data for ``addmm``.
"""

from types import ModuleType

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn

_aten = torch.ops.aten


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(changes={"torch._subclasses.fake_impls": _shape_of_addmm})


def _shape_of_addmm(fake_impls: ModuleType, recorder: Recorder) -> None:
    from torch._decomp import decomposition_table

    for overload in (_aten.addmm.dtype, _aten.addmm.dtype_out):  # before 2.13 those of addmm, which take it for beta
        decomposition_table.pop(overload, None)

    @fake_impls.register_op_impl(_aten.addmm.dtype)
    def addmm(mode, func, bias, first, second, out_dtype, **factors):
        return first.new_empty((first.shape[0], second.shape[1]), dtype=out_dtype)

    @fake_impls.register_op_impl(_aten.addmm.dtype_out)
    def addmm_into(mode, func, bias, first, second, out_dtype, *, out, **factors):
        return out
