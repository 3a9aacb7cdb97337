"""DeepSpeed: the engine's construction, forward, backward, step and checkpoints."""

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

    during(module, "initialize", session, ENGINE_INIT)
    during(engine, "__init__", session, ENGINE_INIT, after=made)
    listening(engine, "forward", before=lambda _, *args, **kwargs: session.forward_begins(kwargs or args))
    listening(engine, "eval", before=lambda engine: session.evaluation_begins(engine.module))
    during(engine, "backward", session, BACKWARD)
    during(engine, "save_checkpoint", session, SAVE)
    during(engine, "save_16bit_model", session, SAVE)
    during(engine, "load_checkpoint", session, RESUME)
    # What the engine, and its pipeline, do at the end of an accumulation.
    during(engine, "_take_model_step", session, OPTIMIZER_STEP, after=step_ended)
