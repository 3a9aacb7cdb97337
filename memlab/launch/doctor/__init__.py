"""Whether this machine can measure a plan: facts are gathered in one place, and judged by pure functions."""

from collections.abc import Iterator

from memlab.launch.doctor.checks import CHECKS
from memlab.launch.doctor.facts import gather
from memlab.launch.doctor.finding import Finding
from memlab.launch.doctor.ops import build, needed_ops
from memlab.machine import detect
from memlab.plan import Plan


def examine(plan: Plan, build_ops: bool) -> Iterator[Finding]:
    """The findings, as they are found; with ``build_ops``, then what came of building each op that the plan needs.

    For a plan that is unsupported nothing is built.
    """
    machine = detect()
    facts = gather(plan, machine)
    for check in CHECKS:
        yield from check(facts)
    if build_ops and not facts.reasons:
        for op in needed_ops(plan):
            yield build(op, plan, machine)
