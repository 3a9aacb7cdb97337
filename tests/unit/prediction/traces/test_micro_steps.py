"""A step of many micro-steps from a trace of five: against the trace of all of them, written as a shadow run would."""

import pytest

from memlab.core.plan import make_plan
from memlab.prediction.traces.micro_steps import TRACED, repeated, with_few
from memlab.simulator.trace.events import (
    Alloc,
    BeginPhase,
    BeginPoint,
    Free,
    HostAlloc,
    HostFree,
    RecordStream,
    Synchronize,
)
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import (
    EVERYTHING,
    BeginWorkPhase,
    Collective,
    HostWaits,
    KernelLaunch,
    RecordEvent,
    StreamWaitsForCollective,
)

PHASES = ["", "first_forward", "first_backward", "first_optimizer_step", "forward", "backward", "optimizer_step"]
LAYERS = 3
WAITS_BACK = 2 * LAYERS  # the host waits for a gather that was so many gathers ago: of the micro-step before the last


class Run:
    """A training with two steps of ``micro_steps``: blocks that live on to the next micro-step, gradients that the
    first makes, a host that waits for what it asked for two micro-steps ago."""

    def __init__(self, micro_steps: int, alternates: bool = False, large_batches: bool = False, keeps: bool = False):
        self.trace = Trace(0, 1, phases=list(PHASES))
        self.micro_steps, self.alternates, self.large_batches, self.keeps = (
            micro_steps,
            alternates,
            large_batches,
            keeps,
        )
        self.blocks = self.requests = 0
        self.gathers: list[tuple[int, int, int]] = []  # requests, step, number of the event in its step
        for self.step, prefix in enumerate(("first_", "")):
            self.one_step(prefix)

    def one_step(self, prefix: str) -> None:
        trace, self.events, self.collectives = self.trace, 0, 0
        batches = [self.make_on_host(1 << 20) for _ in range(self.micro_steps)] if self.large_batches else []
        if self.step == 0:
            trace.events.append(BeginPoint())
        trace.steps.append(len(trace.events))
        loss, kept, gradients = None, [], []
        batch = self.make(8)
        for number in range(self.micro_steps):
            self.phase(f"{prefix}forward")
            activations = [self.gathered_layer(number) for _ in range(LAYERS)]
            loss, before = self.make(4), loss
            kept.append(self.make(16))
            self.phase("")
            self.free(batch)
            self.phase(f"{prefix}backward")
            for activation in reversed(activations):
                self.free(activation)
                if number == 0:
                    gradients.append(self.make(300))
                self.work(KernelLaunch, 0, True, 100, (200,))
            if number == self.micro_steps - 1:
                trace.events += [RecordStream(gradient, 1) for gradient in gradients]
            self.phase("")
            if before:
                self.free(before)
            if not self.keeps:
                self.free(kept.pop())
            if number < self.micro_steps - 1:
                batch = self.make(8)
        self.phase(f"{prefix}optimizer_step")
        self.work(HostWaits, EVERYTHING)
        trace.events.append(Synchronize(self.requests))
        for block in (*gradients, loss, *kept):
            self.free(block)
        self.phase("")
        for batch in batches:
            self.free(batch, HostFree)

    def gathered_layer(self, number: int) -> int:
        weights = self.make(1000 + (number % 2 if self.alternates else 0), stream=1)
        self.work(Collective, 1, 0, 2, 1000)
        self.work(StreamWaitsForCollective, 0, self.collectives)
        self.collectives += 1
        self.work(RecordEvent, 1, self.events)
        self.gathers.append((self.requests, self.step, self.events))
        self.events += 1
        if len(self.gathers) > WAITS_BACK:
            requests, step, event = self.gathers[-WAITS_BACK - 1]
            self.trace.events.append(Synchronize(requests))
            if step == self.step:
                self.work(HostWaits, event)
        activation = self.make(500)
        self.free(weights)
        return activation

    def phase(self, name: str) -> None:
        self.trace.events.append(BeginPhase(PHASES.index(name)))
        self.work(BeginWorkPhase, PHASES.index(name))

    def make(self, nbytes: int, stream: int = 0) -> int:
        self.blocks += 1
        self.requests += 1
        self.trace.events.append(Alloc(self.blocks, nbytes, stream, 0))
        return self.blocks

    def make_on_host(self, nbytes: int) -> int:
        self.blocks += 1
        self.trace.events.append(HostAlloc(self.blocks, nbytes, False))
        return self.blocks

    def free(self, block: int, kind: type = Free) -> None:
        self.trace.events.append(kind(block))

    def work(self, kind: type, *rest) -> None:
        if self.step == 1:
            self.trace.work.append(kind(1, 0, *rest))
            self.trace.events_before.append(len(self.trace.events))


@pytest.mark.parametrize("micro_steps", [TRACED, TRACED + 1, 16])
def test_all_is_as_if_every_micro_step_was_traced(micro_steps):
    assert repeated(Run(TRACED).trace, micro_steps).to_json() == Run(micro_steps).trace.to_json()


@pytest.mark.parametrize("unlike", ["alternates", "large_batches", "keeps"])
def test_what_a_few_micro_steps_do_not_tell(unlike):
    """Two kinds of micro-steps in turn, batches that take host memory all at once, blocks that stay until the end."""
    assert repeated(Run(TRACED, **{unlike: True}).trace, 16) is None


def test_a_plan_with_many_micro_steps_is_traced_with_few(config):
    many, few = (make_plan(config({"batch.accumulation": number}), {}) for number in (16, TRACED))
    assert with_few(many).deepspeed == few.deepspeed and with_few(many).training_args == few.training_args
    assert with_few(few) is few
