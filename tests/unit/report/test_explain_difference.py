"""Text of two explained runs: the parts that it names make up the difference."""

import io
from dataclasses import replace

from histories import MIB, explained, out_of_memory, training
from rich.console import Console

from memlab.analyse.explain.explained import Explained
from memlab.analyse.explain.outside import ModelledDevice
from memlab.report.explain_text import difference, show_difference
from memlab.simulator.outside.parts import OutsidePart


def with_context(rank: Explained, nbytes: int, detail: str = "") -> Explained:
    return replace(rank, device=ModelledDevice([OutsidePart(0, "CUDA context", detail, nbytes)]))


def table(before: Explained, after: Explained) -> list[str]:
    out = io.StringIO()
    show_difference(before, after, Console(file=out, width=200), 4)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_difference_outside_the_allocator_is_named():
    rank = explained(training(2, 20))
    assert difference(rank, with_context(rank, 400 * MIB)).endswith(
        "requested memory the same; slack the same; outside the allocator -100.0 MiB."
    )


def test_parts_that_differ_are_named_where_the_sum_is_the_same():
    before, after = (explained(training(2, requests)) for requests in (20, 60))
    more = after.used(after.peak).nbytes - before.used(before.peak).nbytes
    text = difference(before, with_context(after, 500 * MIB - more))
    assert text.startswith("The second run uses the same at its peak (") and "gradients +" in text


def test_of_a_run_that_ran_out_of_memory_the_recorded_peak_is_compared():
    assert difference(explained(training(2, 20)), out_of_memory()).endswith(
        "The second run ran out of memory; its peak here is that of its recorded history."
    )


def test_a_part_outside_is_not_divided_where_one_run_is_predicted():
    """A prediction names what a part consists of in other words than a measurement."""
    measured = with_context(explained(training(2, 20)), 500 * MIB, "first_forward: lm_head")
    predicted = with_context(replace(measured, source="predicted"), 400 * MIB, "of the first thread")
    assert any("lm_head" in line for line in table(measured, with_context(measured, 400 * MIB, "backward")))
    (line,) = (line for line in table(measured, predicted) if "CUDA context" in line)
    assert line.split()[:3] == ["0.488", "0.391", "-0.098"]
    assert not any("lm_head" in line or "of the first thread" in line for line in table(measured, predicted))
