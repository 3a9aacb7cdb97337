"""Remedies: what holds the memory decides which changes are tried; an effect is a difference of two predictions."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from memlab.analyse.explain.remedies import choose, held_at_the_peak, needs_of, remedies
from memlab.core.config import Allocator, Config, Hardware
from memlab.core.sizes import GIB
from memlab.planner.changed_runs import TracedPlan
from memlab.planner.changes import Change
from memlab.report.remedies_text import remedies_text, show_remedies
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.trace_format import Site, Trace

KINDS = ("weights", "activations", "optimizer states")
CONFIG = Config(hardware=Hardware(gpu="a round one", memory_gib=8.5), allocator=Allocator(conf=""))


def run_that_holds(activations: int, optimizer: int = 2) -> TracedPlan:
    """A step: 2 GiB of weights stay, activations come and go, optimizer states come. Sizes in GiB."""
    sizes = (2, activations, optimizer)
    events = [
        *(BeginPhase(0), Alloc(0, sizes[0] * GIB, 0, 0)),
        *(BeginPhase(1), Alloc(1, sizes[1] * GIB, 0, 1), Free(1)),
        *(BeginPhase(2), Alloc(2, sizes[2] * GIB, 0, 2)),
    ]
    module = "model.layers.3.mlp"
    sites = [Site(kind, "aten.empty", "model.py:7", "forward", module, (1,)) for kind in KINDS]
    phases = ["model_build", "forward", "optimizer_step"]
    return TracedPlan(CONFIG, {0: Trace(0, 1, 1, 512, events, phases, sites, steps=[2])})


class Runs:
    """Changes whose predictions are known."""

    def __init__(self, base, changed):
        self.base, self._changed = base, changed
        self.changes = [
            Change("checkpointing=full", "a second forward pass", {"activations": 1.0}),
            Change("kernels=liger", "one more package", {"logits and loss": 1.0}),
            Change("batch.micro=1", "more steps", {"activations": 0.5}),
            Change("offload=optimizer", "an optimizer step on the CPU", {"optimizer states": 1.0}),
        ]

    def predict(self, chosen):
        return (self._changed[change.told] for change in chosen)


@pytest.fixture
def found():
    base = run_that_holds(6)
    runs = Runs(base, {"checkpointing=full": run_that_holds(1), "batch.micro=1": "no such word"})
    return remedies(SimpleNamespace(source="predicted"), runs, 2)


def test_the_changes_that_reach_the_largest_holders_are_chosen():
    base = run_that_holds(6)
    held = held_at_the_peak(needs_of(base).rank)
    assert held == {"weights": 2 * GIB, "activations": 6 * GIB, "allocator slack": 0}
    chosen, others = choose(Runs(base, {}).changes, held, 1)
    assert [each.told for each in chosen] == ["checkpointing=full"]
    assert [each.told for each in others] == ["batch.micro=1"]  # the others reach nothing that is there


def test_an_effect_is_the_difference_of_two_predictions(found):
    checkpointing, batch = found.tried
    assert (found.base.verdict, checkpointing.needs.verdict) == ("does_not_fit", "fits")
    assert found.base.reserved - checkpointing.needs.reserved == 3 * GIB  # a free block is too small for the optimizer
    gone = {part.name: part.change // GIB for part in checkpointing.blocks.parts}
    assert gone == {"activations": -6, "optimizer states": 2, "weights": 0}
    assert batch.needs == "no such word"


def test_the_text_names_the_blocks_the_price_and_what_failed(found):
    out = io.StringIO()
    show_remedies(found, Console(file=out, width=200))
    text = " ".join(out.getvalue().split())
    assert "Remedies: of 2 single changes, predicted one at a time, 1 saves at least 0.5 % of the memory." in text
    assert "(reserved 8.00 -> 5.00, allocated 8.00 -> 4.00); then it fits." in text
    assert (
        "activations -6.00 GiB, optimizer states +2.00 GiB, slack of the allocator +1.00 GiB; the peak moves from "
        "forward to" in text
    )
    assert "Price: a second forward pass." in text
    assert "batch.micro=1 could not be predicted: no such word." in text


def test_a_measured_run_keeps_its_figures_and_gets_the_difference(found):
    measured = SimpleNamespace(
        source="measured",
        status="ok",
        ranks=[dict(peak_allocated_bytes=9 * GIB, peak_reserved_bytes=10 * GIB, device_used_bytes=11 * GIB)],
    )
    base = run_that_holds(6)
    runs = Runs(base, {"checkpointing=full": run_that_holds(1)})
    found = remedies(measured, runs, 1)
    out = io.StringIO()
    show_remedies(found, Console(file=out, width=200))
    text = " ".join(out.getvalue().split())
    assert "checkpointing=full: 11.0 -> 8.00 GiB used (reserved 10.0 -> 7.00, allocated 9.00 -> 5.00)" in text
    assert "-20.0 % in reserved, -11.1 % in allocated. So its remedies may be off, too." in text
    assert "Not predicted: batch.micro=1. --remedies 2 predicts all." in text


def test_a_change_that_saves_nothing_is_said_not_to_help():
    base = run_that_holds(6)
    found = remedies(SimpleNamespace(source="predicted"), Runs(base, {"checkpointing=full": base}), 1)
    out = io.StringIO()
    show_remedies(replace(found, not_tried=[]), Console(file=out, width=200))
    assert "of 1 single change, predicted one at a time, none saves at least 0.5 % of the memory." in out.getvalue()
    assert "checkpointing=full does not help: it takes 0 bytes more." in out.getvalue()


def test_a_change_that_saves_little_is_said_to_save_it(found):
    checkpointing = found.tried[0]
    little = replace(checkpointing.needs, used=found.base.used - (8 << 20))
    text = remedies_text(replace(found, tried=[replace(checkpointing, needs=little)]))
    assert [change.effect for change in text.changes] == ["checkpointing=full saves only 8.00 MiB."]
