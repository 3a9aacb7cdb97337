"""What takes memory outside the allocator is noted when it first runs."""

import pytest
import torch
import torch.distributed as dist

from memlab.simulator.outside.appearances import ATTENTION, COLLECTIVE, COMMUNICATOR, Appearance
from memlab.simulator.rank.libraries import Libraries
from memlab.simulator.trace.events import Free
from memlab.simulator.trace.trace_format import Trace

pytestmark = pytest.mark.shadow


class Group(dist.ProcessGroup):
    """A process group without a backend, which would hold its name."""

    def __init__(self, name: str, ranks: int, described: str):
        super().__init__(0, ranks)
        self._named = name, described

    @property
    def group_name(self) -> str:
        return self._named[0]

    @property
    def group_desc(self) -> str:
        return self._named[1]


def group(name: str, ranks: int, described: str = "undefined") -> Group:
    return Group(name, ranks, described)


@pytest.fixture
def trace() -> Trace:
    return Trace(0, 2)


def test_a_group_has_its_communicator_with_its_first_collective(trace):
    libraries, world = Libraries(trace), group("0", 2, "default_pg")
    libraries.made(world, "nccl")
    assert trace.appearances == []
    trace.events.append(Free(1))
    for _ in range(2):
        libraries.runs_in(world)
    assert trace.appearances == [
        Appearance(1, COMMUNICATOR, "default_pg", 2),
        Appearance(1, COLLECTIVE, "default_pg", 2),
    ]


def test_groups_that_are_bound_to_a_device_connect_when_they_are_made(trace):
    libraries = Libraries(trace)
    libraries.connects_at_once = True
    for each in (group("0", 2, "default_pg"), group("1", 2), group("2", 2)):
        libraries.made(each, None)
    assert [each.cause for each in trace.appearances] == ["default_pg", "a group", "a group"]
    assert {each.what for each in trace.appearances} == {COMMUNICATOR}


def test_a_group_on_the_host_has_none_and_what_comes_after_the_last_step_does_not_count(trace):
    libraries, on_host = Libraries(trace), group("1", 2)
    libraries.made(on_host, "gloo")
    libraries.runs_in(on_host)
    libraries.notes = False
    libraries.runs_in(group("0", 2))
    assert trace.appearances == []


def test_fused_attention_is_noted_once(trace):
    libraries = Libraries(trace)
    for _ in range(2):
        libraries.operator(torch.ops.aten._scaled_dot_product_cudnn_attention.default, ())
        libraries.operator(torch.ops.aten.mm.default, ())
    assert [each.what for each in trace.appearances] == [ATTENTION]
