"""Objects that the script made: which of them train a module, and that none is kept alive."""

from types import SimpleNamespace

import torch

from memlab.meters.options import MeterOptions
from memlab.meters.script_objects import ScriptObjects
from memlab.meters.session import Session


class Engine(SimpleNamespace):
    """Of DeepSpeed."""


def test_an_optimizer_trains_its_parameters_and_an_engine_its_module_if_it_has_an_optimizer():
    objects = ScriptObjects()
    own, student, teacher = (torch.nn.Linear(2, 2) for _ in range(3))
    optimizer = torch.optim.SGD(own.parameters())
    engines = [Engine(module=student, basic_optimizer=object()), Engine(module=teacher, basic_optimizer=None)]
    objects.optimizers.add(optimizer)
    for engine in engines:
        objects.add_engine(engine)
    assert [objects.train(module) for module in (own, student, teacher)] == [True, True, False]


def test_a_teacher_that_an_engine_holds_is_not_what_an_evaluation_is_about():
    session = Session(MeterOptions("folder"), SimpleNamespace(turn=lambda: None))
    teacher = torch.nn.Linear(2, 2)
    engine = Engine(module=teacher, basic_optimizer=None)
    session.objects.add_engine(engine)
    session.step = object()
    session.evaluation_begins(teacher)
    assert not session.timeline.stack


def test_no_object_is_kept_alive():
    objects = ScriptObjects()
    engine, trainer = Engine(), Engine()
    objects.add_engine(engine)
    objects.trainer = trainer
    assert objects.engines == [engine] and objects.trainer is trainer and objects.accelerator is None
    del engine, trainer
    assert objects.engines == [] and objects.trainer is None


def test_a_new_measurement_forgets_the_objects_and_keeps_what_follows_its_events():
    session = Session(MeterOptions("first"), SimpleNamespace(turn=lambda: None))
    steps: list[int] = []
    session.callbacks.step.append(lambda: steps.append(1))
    objects = session.objects
    session.begin_anew(MeterOptions("second"))
    for step_ended in session.callbacks.step:
        step_ended()
    assert steps == [1] and session.objects is not objects and session.options.folder == "second"
