"""Listeners: one module for each library, with a function ``listen(module, session)``.

It is called after the import of the library's module, and makes the session hear of its functions. A library that has
changed its names is noted as a failure of memlab and is not listened to; the others are.
"""

from functools import partial
from types import ModuleType

from .. import import_hook
from ..own_errors import note
from ..phases import BACKWARD, ENGINE_INIT, LOAD, SAVE
from ..session import Session
from . import accelerate, build_locks, datasets, deepspeed, torch, transformers
from .wrap import during

LISTENERS = {
    "torch.nn.parallel.distributed": torch.listen_to_ddp,
    "torch.distributed.fsdp": torch.listen_to_fsdp,
    # its place before torch 2.6
    "torch.distributed._composable.fsdp": partial(during, phases={"fully_shard": ENGINE_INIT}),
    "torch.distributed.checkpoint": partial(during, phases={"save": SAVE, "async_save": SAVE, "load": LOAD}),
    "megatron.core.pipeline_parallel.schedules": partial(during, phases={"custom_backward": BACKWARD}),
    "lomo_optim": torch.listen_to_lomo,
    "safetensors.torch": partial(during, phases={"save_file": SAVE, "load_file": LOAD}),
    "torch.utils.file_baton": build_locks.listen,
    "deepspeed": deepspeed.listen,
    "transformers.modeling_utils": transformers.listen_to_models,
    "transformers.generation.utils": transformers.listen_to_generation,
    "transformers.trainer": transformers.listen_to_trainer,
    "accelerate.accelerator": accelerate.listen,
    "accelerate.data_loader": accelerate.listen_to_loaders,
    "datasets.builder": datasets.listen,
}
"""Module whose import is waited for -> what then listens."""


def listen_to_all(session: Session) -> None:
    """Listen to torch, without which nothing is measured, and to each library as soon as it is imported."""
    torch.listen(session)
    for name, listen in LISTENERS.items():

        def attach(module: ModuleType, name=name, listen=listen) -> None:
            try:
                listen(module, session)
            except Exception as error:
                note(f"listener of {name}", error)

        import_hook.after(name, attach)
