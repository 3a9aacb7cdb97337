"""The doctor, which checks whether this machine can measure a plan: facts.py gathers facts, checks.py judges them."""

from collections.abc import Iterator

from memlab.core.finding import Finding
from memlab.core.plan import Plan
from memlab.launch.doctor.checks import CHECKS
from memlab.launch.doctor.facts import gather
from memlab.launch.doctor.ops import build, needed_ops
from memlab.system.machine import detect


def examine(plan: Plan, build_ops: bool) -> Iterator[Finding]:
    """Yield each finding as soon as it is known. With ``build_ops``, also build each op that the plan needs.

    Builds nothing for an unsupported plan.
    """
    machine = detect()
    facts = gather(plan, machine)
    for check in CHECKS:
        yield from check(facts)
    if build_ops and not facts.reasons:
        for op in needed_ops(plan):
            yield build(op, plan, machine)
