"""transformers: loading and saving of models, generation, and Trainer."""

from functools import partial
from types import ModuleType
from typing import Any

from ..phases import EVALUATE, GENERATE, LOAD, RESUME, SAVE
from ..session import Session
from .wrap import during, listening


def listen_to_models(module: ModuleType, session: Session) -> None:
    during(module.PreTrainedModel, session, {"from_pretrained": LOAD, "save_pretrained": SAVE})


def listen_to_generation(module: ModuleType, session: Session) -> None:
    during(module.GenerationMixin, session, {"generate": GENERATE})


def listen_to_trainer(module: ModuleType, session: Session) -> None:
    trainer = module.Trainer
    during(trainer, session, {"evaluate": EVALUATE, "predict": EVALUATE})
    during(trainer, session, {"_save_checkpoint": SAVE, "save_model": SAVE})
    during(trainer, session, {"_load_from_checkpoint": RESUME, "_load_best_model": RESUME})
    listening(
        trainer,
        "_load_optimizer_and_scheduler",
        inside=partial(session.running, RESUME),
        # transformers 4 calls its loader for every training.
        when=lambda trainer, checkpoint: checkpoint is not None,
    )

    def train_begins(self: Any, *args: Any, **kwargs: Any) -> None:
        session.objects.trainer, session.trainer_runs = self, True
        session.setting_up()
        hear_of_losses(type(self))

    def train_ended(*args: Any, **kwargs: Any) -> None:
        session.trainer_runs = False

    heard: set[type] = set()

    def hear_of_losses(kind: type) -> None:
        """Listen to the method that computes the loss: subclasses have their own, which gets what they prepared."""
        owner = next(each for each in kind.__mro__ if "compute_loss" in vars(each))
        if owner not in heard:
            heard.add(owner)
            listening(owner, "compute_loss", before=lambda _, model, inputs, *args, **kw: session.loss_begins(inputs))

    listening(trainer, "train", before=train_begins, after=train_ended)
    listening(trainer, "training_step", before=lambda _, model, inputs, *args, **kw: session.forward_begins(inputs))
