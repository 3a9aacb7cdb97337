"""The last optimizer step of the whole run, as the script says it while it trains."""

from .script_objects import ScriptObjects
from .source_lines import passes_of
from .variables import local_variables, loops_of, user_frames


def last_step(objects: ScriptObjects, trainer_runs: bool, steps_done: int) -> int | None:
    """Return the number of the last step: Trainer's, DeepSpeed's schedule's, or that of the loops over ranges around
    the step that ends now. ``None``: the script does not say it."""
    trainer = objects.trainer if trainer_runs else None
    if trainer is not None and trainer.state.max_steps > 0:
        return trainer.state.max_steps
    for engine in objects.engines:
        steps = (engine.scheduler_params() or {}).get("total_num_steps")  # with which the learning rate ends
        if isinstance(steps, int) and steps:
            return steps
    return _of_loops(steps_done)


def _of_loops(steps_done: int) -> int | None:
    """Return the last step, if the passes that have begun made as many steps as the others will."""
    begun, total = 1, 1
    for frame in user_frames():
        passes = passes_of(loops_of(frame), {**frame.f_globals, **local_variables(frame)})
        if passes is None:
            return None
        begun, total = (passes[0] - 1) * total + begun, total * passes[1]
    return None if total == 1 else -(-steps_done * total // begun)
