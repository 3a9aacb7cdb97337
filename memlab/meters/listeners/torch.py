"""torch itself: optimizers, backward, data loaders, evaluation mode, torch.save and torch.load, DDP and FSDP."""

import sys
from collections import deque
from functools import partial, wraps
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..own_errors import contained
from ..phases import BACKWARD, ENGINE_INIT, LOAD, OPTIMIZER_STEP, SAVE
from ..session import Session
from .wrap import during, listening


def listen(session: Session) -> None:
    _optimizers(session)
    during(torch.autograd, session, {"backward": BACKWARD})
    listening(torch.nn.Module, "eval", before=session.evaluation_begins)
    _loaders(session)
    during(torch.serialization, session, {"save": SAVE, "load": LOAD})
    torch.save, torch.load = torch.serialization.save, torch.serialization.load
    listening(sys, "exit", before=lambda code=None, /: session.exits(code))
    # when the script first uses CUDA
    torch.cuda._lazy_call(contained(lambda: torch._C._cuda_attach_out_of_memory_observer(session.runs_out_of_memory)))


def _optimizers(session: Session) -> None:
    def step_begins(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            session.optimizer_step_begins()

    def step_ends(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            session.optimizer_step_ends()

    register_optimizer_step_pre_hook(step_begins)
    register_optimizer_step_post_hook(step_ends)
    listening(
        torch.optim.Optimizer, "__init__", after=lambda _, optimizer, *args, **kw: session.optimizer_made(optimizer)
    )
    listening(torch.optim.Optimizer, "zero_grad", after=lambda *args, **kwargs: session.forward_begins())
    _compiled_steps(session)
    _gradient_scalers(session)


def _compiled_steps(session: Session) -> None:
    """``torch.compile(optimizer.step)``: compiled code calls no hooks, so its caller says when it runs."""
    compile_ = torch.compile

    @wraps(compile_)
    def compiled(model: Any = None, **options: Any) -> Any:
        made = compile_(model, **options)
        if not isinstance(getattr(model, "__self__", None), torch.optim.Optimizer) or model.__name__ != "step":
            return made

        @wraps(made)
        def step(*args: Any, **kwargs: Any) -> Any:
            session.optimizer_step_begins()
            result = made(*args, **kwargs)
            session.optimizer_step_ends()
            return result

        return step

    torch.compile = compiled


def _gradient_scalers(session: Session) -> None:
    """``GradScaler.step`` leaves out the optimizer's step after an overflow, so that no hook is called."""
    from torch.amp import GradScaler

    calls: list[int] = []

    def step_begins(*args: Any, **kwargs: Any) -> None:
        calls.append(session.optimizer_calls)

    def step_ended(*args: Any, **kwargs: Any) -> None:
        session.step_ends(skipped=session.optimizer_calls == calls.pop())

    inside = partial(session.running, OPTIMIZER_STEP)
    listening(GradScaler, "step", before=step_begins, after=step_ended, inside=inside)


def _loaders(session: Session) -> None:
    """Batches are measured as a loader gives them out: they are still on the host, so that masks can be read.

    A loader chooses the samples of a batch before it gives the batch out, of several batches if it has workers.
    """
    from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

    chosen: WeakKeyDictionary[Any, deque[int]] = WeakKeyDictionary()

    def begins(loader: Any, *args: Any) -> None:
        chosen[loader] = deque()

    def chose(indices: Any, loader: Any) -> None:
        if isinstance(indices, list) and loader._dataset_kind == _DatasetKind.Map:
            chosen.setdefault(loader, deque()).append(len(indices))

    def gave(batch: Any, loader: Any) -> None:
        waiting = chosen.get(loader)
        session.loader_gave(batch, samples=waiting.popleft() if waiting else None)

    listening(_BaseDataLoaderIter, "_reset", before=begins)
    listening(_BaseDataLoaderIter, "_next_index", after=chose)
    listening(_BaseDataLoaderIter, "__next__", after=gave)


def listen_to_ddp(module: ModuleType, session: Session) -> None:
    wrapper = module.DistributedDataParallel
    during(wrapper, session, {"__init__": ENGINE_INIT})
    listening(wrapper, "forward", before=lambda _, *args, **kwargs: session.forward_begins(kwargs or args))


def listen_to_fsdp(module: ModuleType, session: Session) -> None:
    during(module.FullyShardedDataParallel, session, {"__init__": ENGINE_INIT})
    if hasattr(module, "fully_shard"):
        during(module, session, {"fully_shard": ENGINE_INIT})


def listen_to_lomo(module: ModuleType, session: Session) -> None:
    """LOMO's optimizers update the weights in a backward pass of their own, and have no ``step``."""

    def updated(*args: Any, **kwargs: Any) -> None:
        session.optimizer_step_begins()
        session.optimizer_step_ends()

    for kind in (module.Lomo, module.AdaLomo):
        listening(kind, "fused_backward", after=updated)
