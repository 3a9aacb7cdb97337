"""Data loaders: worker processes would have no simulated GPUs, so a rank reads its samples itself: as one worker would,
but a stream as all workers in turn, because each of them may have a part of it. No rank is there that sends batches to
this one, so each rank loads its batches itself.

The script's loaders keep their class and their attributes; only the iterator that starts workers is another one.
"""

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import _utils
from torch.utils.data.dataloader import _DatasetKind

from memlab.meters import import_hook
from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn


def stand_in(gpu: GpuModel) -> StandIn:
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
        """Reads as workers would. ``_reset`` begins the next epoch of workers that persist."""

        _num_workers = _timeout = property(lambda self: 0, lambda self, of_loader: None)

        def __init__(self, loader: Any, state: Any = None):
            # ``state``: of a StatefulDataLoader. Each worker had a part of it, so the epoch begins anew.
            is_shared = loader._dataset_kind == _DatasetKind.Iterable and loader.num_workers > 1
            own = [copy.copy(loader.dataset) for _ in range(loader.num_workers)] if is_shared else [loader.dataset]
            self._datasets = own
            for worker in range(len(own) if loader.worker_init_fn is not None else 0):
                with _as_worker(own, worker), _same_random_states():
                    loader.worker_init_fn(worker)
            self._reset(loader)

        def _reset(self, loader: Any, first_iter: bool = False) -> None:
            scripts_own, vars(loader)["dataset"] = loader.dataset, self._datasets[0]
            try:
                with _as_worker(self._datasets):
                    single.__init__(self, loader)
            finally:
                vars(loader)["dataset"] = scripts_own
            fetches = [self._dataset_fetcher.fetch]
            for worker in range(1, len(self._datasets)):
                with _as_worker(self._datasets, worker):
                    options = (self._datasets[worker], self._auto_collation, self._collate_fn, self._drop_last)
                    fetches.append(_DatasetKind.create_fetcher(self._dataset_kind, *options).fetch)
            self._dataset_fetcher.fetch = _in_turn(self._datasets, fetches)

        def _shutdown_workers(self) -> None:
            pass

    setattr(module, f"{prefix}MultiProcessingDataLoaderIter", InThisProcess)


def _in_turn(datasets: list[Any], fetches: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return a function that fetches the batches of workers in turn, until all of them have ended."""
    turns = deque(enumerate(fetches))

    def fetch(indices: Any) -> Any:
        while turns:
            worker, fetch_own = turns[0]
            try:
                with _as_worker(datasets, worker):
                    batch = fetch_own(indices)
            except StopIteration:
                turns.popleft()
            else:
                turns.rotate(-1)
                return batch
        raise StopIteration

    return fetch


@contextmanager
def _as_worker(datasets: list[Any], number: int = 0) -> Iterator[None]:
    """Let ``get_worker_info()`` tell of a worker. ``datasets``: of all workers."""
    worker = _utils.worker
    seed = torch.initial_seed() + number
    info = worker.WorkerInfo(id=number, num_workers=len(datasets), seed=seed, dataset=datasets[number])
    worker._worker_info = info
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
