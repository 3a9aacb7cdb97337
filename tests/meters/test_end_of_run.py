"""Where the last step of a run is found: Trainer's, DeepSpeed's schedule, loops over ranges."""

from types import SimpleNamespace

import pytest

from memlab.meters.end_of_run import last_step

pytestmark = pytest.mark.cpu

TRAINER = SimpleNamespace(state=SimpleNamespace(max_steps=500))


def engine(**schedule):
    return SimpleNamespace(scheduler_params=lambda: schedule or None)


@pytest.mark.parametrize(
    ("trainer", "runs", "engines", "last"),
    [
        (TRAINER, True, [engine(total_num_steps=900)], 500),
        (TRAINER, False, [engine(total_num_steps=900)], 900),  # made by the script, which trains by itself
        (SimpleNamespace(state=SimpleNamespace(max_steps=-1)), True, [], None),
        (None, True, [engine(), engine(total_num_steps="auto"), engine(total_num_steps=900)], 900),
        (None, True, [engine(warmup_num_steps=9)], None),
        (None, True, [], None),
    ],
)
def test_the_last_step_is_the_trainers_or_else_that_of_deepspeeds_schedule(trainer, runs, engines, last):
    assert last_step(SimpleNamespace(trainer=trainer, engines=engines), runs, steps_done=3) == last
