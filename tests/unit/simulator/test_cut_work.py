"""Work of one optimizer step, cut out of that of a whole run."""

from memlab.simulator.trace.work_items import (
    EVERYTHING,
    HALF,
    Collective,
    HostWaits,
    HostWork,
    KernelLaunch,
    RecordEvent,
    StreamWaitsForCollective,
    StreamWaitsForEvent,
    cut_work,
)


def test_events_and_collectives_are_numbered_from_the_beginning_of_the_step():
    items = [
        Collective(1, 0, 0, 0, 2, 8),  # number 5: an evaluation, left out
        RecordEvent(1, 0, 0, 7),  # left out, too
        Collective(1, 0, 0, 0, 2, 8),
        RecordEvent(1, 0, 0, 8),
        StreamWaitsForEvent(1, 0, 1, 8),
        StreamWaitsForCollective(1, 0, 0, 6),
        HostWaits(1, 0, EVERYTHING),
    ]
    assert cut_work(items, [False, False, *[True] * 5], collectives_before=5) == [
        Collective(1, 0, 0, 0, 2, 8),
        RecordEvent(1, 0, 0, 0),
        StreamWaitsForEvent(1, 0, 1, 0),
        StreamWaitsForCollective(1, 0, 0, 0),
        HostWaits(1, 0, EVERYTHING),
    ]


def test_a_wait_for_what_came_before_the_step_leaves_its_operators():
    items = [StreamWaitsForCollective(3, 1, 0, 2), HostWaits(2, 0, 4), KernelLaunch(1, 0, 0, HALF, 10, (4,))]
    found = cut_work(items, [True] * 3, collectives_before=3)
    assert found == [HostWork(3, 1, ()), HostWork(2, 0, ()), items[2]]
    assert list(map(type, found)) == [HostWork, HostWork, KernelLaunch]
