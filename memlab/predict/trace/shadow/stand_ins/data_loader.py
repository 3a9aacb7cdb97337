"""Data loaders: worker processes would have no simulated GPUs, so a rank reads its samples itself, as one worker would.
No rank is there that sends batches to this one, so each rank loads its batches itself.

The script's loaders keep their class and their attributes; only the iterator that starts workers is another one.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import _utils

from memlab.attach import import_hook
from memlab.predict.trace.shadow.stand_ins import Config, GpuModel, Recorder, StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(
        changes={
            "torch.utils.data.dataloader": partial(_without_workers, prefix="_"),
            import_hook.STATEFUL_LOADERS: partial(_without_workers, prefix="_Stateful"),
            "accelerate.data_loader": _dispatch,
        }
    )


def _without_workers(module: ModuleType, recorder: Recorder, prefix: str) -> None:
    """Replace the iterator that starts workers by the one that starts none. ``prefix``: of their names."""
    single: Any = getattr(module, f"{prefix}SingleProcessDataLoaderIter")

    class InThisProcess(single):
        """Reads as the only worker. ``_reset`` begins the next epoch of workers that persist."""

        _num_workers = _timeout = property(lambda self: 0, lambda self, of_loader: None)

        def __init__(self, loader: Any, state: Any = None):
            # ``state``: of a StatefulDataLoader. Each worker had a part of it, so the epoch begins anew.
            with _as_worker(loader), _same_random_states():
                if loader.worker_init_fn is not None:
                    loader.worker_init_fn(0)
            self._reset(loader)

        def _reset(self, loader: Any, first_iter: bool = False) -> None:
            with _as_worker(loader):
                single.__init__(self, loader)
            fetch = self._dataset_fetcher.fetch

            def fetch_as_worker(indices: Any) -> Any:
                with _as_worker(loader):
                    return fetch(indices)

            self._dataset_fetcher.fetch = fetch_as_worker

        def _shutdown_workers(self) -> None:
            pass

    setattr(module, f"{prefix}MultiProcessingDataLoaderIter", InThisProcess)


@contextmanager
def _as_worker(loader: Any) -> Iterator[None]:
    """Let ``get_worker_info()`` tell of one worker, which has all samples."""
    worker = _utils.worker
    worker._worker_info = worker.WorkerInfo(id=0, num_workers=1, seed=torch.initial_seed(), dataset=loader.dataset)
    try:
        yield
    finally:
        worker._worker_info = None


@contextmanager
def _same_random_states() -> Iterator[None]:
    """Put the random states of this process back, which a worker does not share."""
    numpy = sys.modules.get("numpy")
    python, of_numpy = random.getstate(), numpy and numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        if numpy:
            numpy.random.set_state(of_numpy)


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
