"""liger-kernel: its Python code allocates every tensor as usual; its fused loss works in chunks.

Its kernels are Triton's (stand_ins/triton.py).
"""

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(
        # The fused loss works in chunks of a power of two of tokens.
        smooth_from=None if config.kernels.implementation == "liger" else 1,
    )
