"""transformers: what it does for fake tensors alone."""

from types import ModuleType

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(changes={"transformers.utils.import_utils": _skip_masks})


def _skip_masks(import_utils: ModuleType, recorder: Recorder) -> None:
    """Skip masks that are not needed, which transformers does except for fake tensors."""
    import_utils.is_fake_tensor = lambda tensor: False
