"""accelerate: preparation, its loaders, and its checkpoints."""

from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ..phases import ENGINE_INIT, RESUME, SAVE
from ..session import Session
from .wrap import during, listening


def listen(module: ModuleType, session: Session) -> None:
    accelerator = module.Accelerator

    def made(_: None, self: Any, *args: Any, **kwargs: Any) -> None:
        session.objects.accelerator = self

    listening(accelerator, "__init__", after=made)
    during(accelerator, session, {"prepare": ENGINE_INIT, "save_state": SAVE, "save_model": SAVE, "load_state": RESUME})


def listen_to_loaders(module: ModuleType, session: Session) -> None:
    """These loaders read one batch ahead of the one that they give out."""
    for loader in (module.DataLoaderShard, module.DataLoaderDispatcher):
        loader.__iter__ = _in_order(loader.__iter__, session)


def _in_order(iterate: Callable[[Any], Iterator], session: Session) -> Callable[[Any], Iterator]:
    def __iter__(self: Any) -> Iterator:
        sizes: deque = deque()
        batches = iterate(self)
        while True:
            with session.reading_ahead(sizes):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            session.loader_gave(batch, sizes.popleft() if sizes else None)
            yield batch

    return __iter__
