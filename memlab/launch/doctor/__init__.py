"""The doctor, which checks whether this machine can measure a plan: facts.py gathers facts, checks.py judges them."""

from collections.abc import Iterator

from memlab.core.diagnosis import OK, Diagnosis
from memlab.core.plan import Plan
from memlab.core.sizes import in_gib
from memlab.launch.doctor.checks import CHECKS
from memlab.launch.doctor.facts import gather
from memlab.launch.doctor.ops import build, needed_ops
from memlab.system.machine import detect
from memlab.system.sandbox import kept_data


def examine(plan: Plan, build_ops: bool, drop_data: bool = False) -> Iterator[Diagnosis]:
    """Yield each finding as soon as it is known. With ``build_ops``, also build each op that the plan needs. With
    ``drop_data``, remove the data sets that predictions have prepared.

    Builds nothing for an unsupported plan.
    """
    machine = detect()
    facts = gather(plan, machine)
    for check in CHECKS:
        yield from check(facts)
    if drop_data:
        yield Diagnosis(OK, "prepared data", f"removed {in_gib(kept_data.drop_all())} that predictions had kept")
    if build_ops and not facts.reasons:
        for op in needed_ops(plan):
            yield build(op, plan, machine)
