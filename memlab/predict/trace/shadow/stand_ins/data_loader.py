"""Data loaders: their worker processes would have no simulated GPUs, so that the rank itself loads its batches."""

from types import ModuleType

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn

_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "worker_init_fn")


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(changes={"torch.utils.data.dataloader": _without_workers})


def _without_workers(dataloader: ModuleType, recorder: Recorder) -> None:
    init = dataloader.DataLoader.__init__

    def init_without_workers(self, *args, **options) -> None:
        init(
            self,
            *args,
            **{name: value for name, value in options.items() if name not in _OF_WORKERS} | {"num_workers": 0},
        )

    dataloader.DataLoader.__init__ = init_without_workers
