"""DeepSpeed: the engine's construction, forward, backward, step and checkpoints."""

from functools import partial
from types import ModuleType
from typing import Any

from ..phases import BACKWARD, ENGINE_INIT, OPTIMIZER_STEP, RESUME, SAVE
from ..session import Session
from .wrap import during, listening


def listen(module: ModuleType, session: Session) -> None:
    engine = module.DeepSpeedEngine

    def made(_: None, engine: Any, *args: Any, **kwargs: Any) -> None:
        session.objects.add_engine(engine)

    def step_ended(_: None, engine: Any, *args: Any, **kwargs: Any) -> None:
        session.step_ends(skipped=not engine.was_step_applied())

    during(module, session, {"initialize": ENGINE_INIT})
    listening(engine, "__init__", after=made, inside=partial(session.running, ENGINE_INIT))
    listening(engine, "forward", before=lambda _, *args, **kwargs: session.forward_begins(kwargs or args))
    listening(engine, "eval", before=lambda engine: session.evaluation_begins(engine.module))
    during(engine, session, {"backward": BACKWARD, "load_checkpoint": RESUME})
    during(engine, session, {"save_checkpoint": SAVE, "save_16bit_model": SAVE})
    # What the engine, and its pipeline, do at the end of an accumulation.
    listening(engine, "_take_model_step", after=step_ended, inside=partial(session.running, OPTIMIZER_STEP))
