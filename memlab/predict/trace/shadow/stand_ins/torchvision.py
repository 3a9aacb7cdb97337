"""torchvision built for another torch, as PyPI's beside a CPU build: it is imported without its compiled operators.

Its transforms, which image processors use, need none. torchvision itself does without them but for ``nms``, of which it
describes the result as it is imported (``torchvision/_meta_registrations.py``).
"""

from types import ModuleType

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn

_declared: list[torch.library.Library] = []  # a declaration ends with its library


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(changes={"torchvision.extension": _declare})


def _declare(extension: ModuleType, recorder: Recorder) -> None:
    if not extension._has_ops():
        _declared.append(torch.library.Library("torchvision", "DEF"))
        _declared[0].define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
