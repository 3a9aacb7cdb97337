"""Data loaders: worker processes would have no simulated GPUs, and no rank is there that sends batches to this one, so
that each rank loads its batches itself."""

import inspect
from types import ModuleType
from typing import Any

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn

_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "worker_init_fn")


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(changes={"torch.utils.data.dataloader": _without_workers, "accelerate.data_loader": _dispatch})


def _without_workers(dataloader: ModuleType, recorder: Recorder) -> None:
    init = dataloader.DataLoader.__init__
    signature = inspect.signature(init)

    def init_without_workers(*args, **options) -> None:
        given = signature.bind(*args, **options).arguments
        init(**{name: value for name, value in given.items() if name not in _OF_WORKERS} | {"num_workers": 0})

    dataloader.DataLoader.__init__ = init_without_workers


def _dispatch(data_loader: ModuleType, recorder: Recorder) -> None:
    """Let every rank read the batches that accelerate's first rank reads and sends to all others."""
    dispatcher = data_loader.DataLoaderDispatcher
    fetch = dispatcher._fetch_batches

    def fetch_as_the_first(self: Any, iterator: Any) -> tuple[Any, list]:
        self.base_dataloader._memlab_together = 1 if self.split_batches else self.state.num_processes
        rank, self.state.process_index = self.state.process_index, 0
        try:
            batch, (structure, is_last) = fetch(self, iterator)
        finally:
            self.state.process_index = rank
        return batch, [structure if rank == 0 else batch, is_last]

    dispatcher._fetch_batches = fetch_as_the_first
    data_loader.broadcast_object_list = lambda objects, *args, **options: objects
    data_loader.initialize_tensors = lambda batch: batch  # which is already there
