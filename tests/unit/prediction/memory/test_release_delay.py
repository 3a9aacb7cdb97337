"""When side streams let blocks go, on steps by hand. No torch."""

from dataclasses import replace

from memlab.core.config import Config, Hardware
from memlab.prediction.memory.release_delay import furthest_ahead, with_release_delays
from memlab.prediction.time.calibrate import shipped
from memlab.prediction.time.clocks import LAUNCH_QUEUE, LOWER_BOUND
from memlab.simulator.trace.events import Alloc, Free, RecordStream, Synchronize
from memlab.simulator.trace.trace_format import Site, Trace
from memlab.simulator.trace.work_items import HALF, KernelLaunch

HARDWARE = Hardware(
    gpu="a round one", gpus=4, bf16_tflops=100.0, fp32_tflops=10.0, memory_gb_per_s=1000.0, link_gb_per_s=100.0,
    host_gb_per_s=10.0,
)  # fmt: skip
CONFIG = Config(hardware=HARDWARE)
MILLI_FLOPS = 10**11  # what the GPU does in a millisecond
SITE = Site("weights", "all_gather", "", "", "layer", (1,))


COSTS = replace(LOWER_BOUND, operator_s=1e-3)  # a host that takes a millisecond for an operator


def step(milliseconds: float, kernels: int = 1, then: int = 20) -> Trace:
    """A block of stream 1 that stream 0 uses in ``kernels`` of so long each, and that is freed at once; ``then`` blocks
    more, an operator before each."""
    events = [Alloc(0, 512, 1, 0), RecordStream(0, 0)]
    work = [KernelLaunch(0, 0, 0, HALF, round(milliseconds * MILLI_FLOPS), (0,))] * kernels
    events_before = [len(events)] * kernels
    events.append(Free(0))
    for key in range(1, then + 1):
        work.append(KernelLaunch(1, 0, 2, HALF, 0, (0,)))
        events_before.append(len(events))
        events += [Alloc(key, 512, 0, 0), Free(key)]
    return Trace(0, 4, events=events, sites=[SITE], steps=[0], work=work, events_before=events_before)


def lag(trace: Trace) -> int:
    return with_release_delays(trace, CONFIG, COSTS).events[2].release_delay


def test_a_block_is_free_when_the_gpu_has_got_there():
    assert lag(step(milliseconds=0)) == 0
    assert lag(step(milliseconds=2.5)) == 2
    assert lag(step(milliseconds=7.5)) == 7


def test_it_may_take_until_the_next_step():
    """The kernel begins at 12.5 ms, when that of the step before is done, and ends at 25 ms; the host is at 10 ms. Its
    requests until then: ten in this step, the block at 20 ms and four more in the next one."""
    assert lag(step(milliseconds=12.5, then=10)) == 10 + 1 + 4


def test_the_host_is_no_further_ahead_than_the_queue_is_long():
    """Of twice as many kernels as the queue holds, the host waits for the first half."""
    assert lag(step(milliseconds=0.01, kernels=LAUNCH_QUEUE)) == 10
    assert lag(step(milliseconds=0.01, kernels=2 * LAUNCH_QUEUE)) == 10


def test_blocks_that_no_other_stream_used_have_none():
    events = with_release_delays(step(milliseconds=5), CONFIG, COSTS).events
    assert [event for event in events if isinstance(event, Free) and event.release_delay is not None] == [events[2]]


def test_the_first_step_waits_as_the_last_does():
    last = step(milliseconds=2.5)
    shift = 100
    first = [event._replace(key=event.key + shift) for event in last.events]
    both = replace(
        last,
        events=first + last.events,
        steps=[0, len(first)],
        events_before=[before + len(first) for before in last.events_before],
    )
    assert with_release_delays(both, CONFIG, COSTS).events[2] == Free(shift, 2)


def test_the_waits_of_the_host_are_in_the_lags_and_gone():
    waited = step(milliseconds=2.5)
    waited.events.insert(0, Synchronize(0))
    waited.steps, waited.events_before = [1], [before + 1 for before in waited.events_before]
    found = with_release_delays(waited, CONFIG, COSTS)
    assert found.events == with_release_delays(step(milliseconds=2.5), CONFIG, COSTS).events
    assert (found.steps, found.events_before) == ([0], step(milliseconds=2.5).events_before)


def test_a_faster_host_is_further_ahead():
    assert with_release_delays(step(milliseconds=2.25), CONFIG, COSTS.on_a_host(0.5)).events[2].release_delay == 4


def test_of_several_ranks_one_is_ahead_by_the_error_of_the_clocks():
    calibration = replace(shipped(), error={"median": 0.25})
    assert furthest_ahead(CONFIG, calibration) == 0.8
    assert furthest_ahead(replace(CONFIG, hardware=replace(HARDWARE, gpus=1)), calibration) == 1.0
