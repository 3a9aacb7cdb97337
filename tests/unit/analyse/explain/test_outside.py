"""Memory outside the allocator: each part is what the driver's figure grew by, and the parts add up to that figure."""

from itertools import pairwise

import pytest
from recordings import keep_files, one_gpu

from memlab.analyse.explain.outside import (
    CONTEXT,
    CUBLAS,
    CUDNN,
    KERNELS,
    NCCL,
    PROCESSES,
    RANKS,
    TRITON,
    GpuMarks,
    Outside,
    ReadingMarks,
    handles_made,
    outside_at,
)
from memlab.analyse.explain.recorded_ranks import read_marks
from memlab.analyse.explain.snapshot import Entry, Frame
from memlab.core.errors import RecordError

MIB = 1 << 20
BEFORE = (30 * MIB, {"1": 25 * MIB})
NOTHING: tuple[int, dict] = (0, {})
PID = "7"
READINGS = [
    # phase, module, call, outside, of them of other processes, time, last look
    ("", "", "set_device", 556, 25, 10, 20),
    ("model_build", "", None, 648, 25, 30, 40),
    ("engine_init", "", "allreduce of default_pg (2 ranks)", 1148, 25, 50, 60),
    ("first_forward", "model.layers.0.mlp", None, 1156, 25, 70, 80),
    ("first_forward", "model.layers.1.mlp", None, 1158, 25, 81, 90),
    ("first_backward", "lm_head", None, 1222, 25, 110, 200),
    ("forward", "", None, 1322, 125, 300, 310),
]


def reading(phase, module, call, outside, others, begin, end, reserved=0) -> ReadingMarks:
    """Return the marks of a reading. ``others``: of other processes; ``None``: the driver does not tell."""
    return ReadingMarks(
        phase=phase or None,
        module=module,
        call=call,
        used_bytes=outside + reserved,
        processes={} if others is None else {PID: outside + reserved, **others},
        reserved_bytes=reserved,
        time_us=begin,
        until_us=end,
    )


def outside_of(before, found, handles=(), strays=None) -> Outside:
    """``before``: bytes in use before, and those of other processes."""
    used = None if before is None else {"used_bytes": before[0], "processes": before[1]}
    return Outside(GpuMarks(gpu=0, before=used, readings=found), PID, handles, strays)


def readings(told: bool = True) -> list[ReadingMarks]:
    """``told``: whether the driver tells what this process uses."""
    return [
        reading(phase, module, call, total * MIB, {"1": others * MIB} if told else None, begin, end)
        for phase, module, call, total, others, begin, end in READINGS
    ]


def mib(shares) -> dict:
    return {
        share.name: {part.name: part.nbytes // MIB for part in share.parts} or share.nbytes // MIB for share in shares
    }


def test_each_part_is_what_the_drivers_figure_grew_by():
    outside = outside_of(BEFORE, readings(), handles=[105])
    shares = outside.shares(400)
    assert sum(share.nbytes for share in shares) == 1322 * MIB
    assert mib(shares) == {
        CONTEXT: 526,
        NCCL: {"allreduce of the default group (2 ranks), in engine_init": 500},
        PROCESSES: 130,
        KERNELS: {"model_build": 92, "first_forward": 10},
        CUBLAS: {"first_backward: lm_head": 64},
    }
    (forward,) = (part for share in shares for part in share.parts if part.name == "first_forward")
    assert [(part.name, part.nbytes // MIB) for part in forward.parts] == [("model.layers.*.mlp", 10)]


def test_between_two_readings_the_nearer_one_counts_for_the_sum_and_for_the_parts():
    outside = outside_of(BEFORE, readings(), handles=[])
    assert mib(outside.shares(44)) == {CONTEXT: 526, KERNELS: {"model_build": 92}, PROCESSES: 30}
    assert set(mib(outside.shares(45))) == {CONTEXT, KERNELS, PROCESSES, NCCL}
    for time in range(400):
        assert sum(share.nbytes for share in outside.shares(time)) == outside.total(time)


def test_without_a_context_nothing_can_be_allocated_so_it_is_there_from_the_beginning():
    outside = outside_of(BEFORE, readings(), handles=[])
    assert mib(outside.shares(5)) == {CONTEXT: 526, PROCESSES: 30}
    assert sum(share.nbytes for share in outside.shares(5)) == outside.total(5)


def test_the_context_of_another_rank_is_a_part_of_its_own():
    context, grown = {"1": 25 * MIB, "8": 520 * MIB}, {"1": 26 * MIB, "8": 522 * MIB, "9": 520 * MIB}
    found = [
        reading("", "", "set_device", 1076 * MIB, context, 10, 20),
        reading("load", "", None, 1691 * MIB, grown, 30, 40),
    ]
    outside = outside_of((550 * MIB, context), found, [], strays={"8": 1, "9": 2})
    assert mib(outside.shares(15)) == {CONTEXT: 526, PROCESSES: 30, RANKS: {"rank 1": 520}}
    assert mib(outside.shares(35)) == {
        CONTEXT: 526,
        PROCESSES: 31,
        RANKS: {"rank 1": 522, "rank 2": 520},
        KERNELS: {"load": 92},
    }


def test_convolutions_and_triton_kernels_are_parts_of_their_own():
    found = [
        reading("", "", "set_device", 526 * MIB, None, 10, 20),
        reading("forward", "conv", "convolution", 596 * MIB, None, 30, 40),
        reading("forward", "conv2", "convolution", 662 * MIB, None, 50, 60),
        reading("forward", "act", "Triton kernel _swiglu", 664 * MIB, None, 70, 80),
    ]
    assert mib(outside_of(NOTHING, found, handles=[45]).shares(99)) == {
        CONTEXT: 526,
        CUDNN: {"forward: conv": 70},
        CUBLAS: {"forward: conv2": 66},
        TRITON: {"Triton kernel _swiglu, in forward: act": 2},
    }


@pytest.mark.parametrize(("time", "nearest"), [(5, 556), (15, 556), (44, 648), (47, 1148), (150, 1222), (999, 1322)])
def test_the_drivers_figure_is_the_one_of_the_nearest_reading(time, nearest):
    assert outside_of(NOTHING, readings(), []).total(time) == nearest * MIB


def test_between_its_changes_nothing_changes():
    outside = outside_of(BEFORE, readings(), handles=[105])
    changes = outside.changes
    seen = [(outside.shares(time), outside.total(time)) for time in range(400)]
    assert len({figure for _, figure in seen}) == len(READINGS)
    for time, (before, after) in enumerate(pairwise(seen)):
        assert before == after or any(time <= change <= time + 1 for change in changes)


def test_where_the_driver_does_not_tell_of_processes_all_belongs_to_what_ran():
    shares = mib(outside_of(NOTHING, readings(told=False), []).shares(400))
    assert shares[KERNELS]["forward"] == 100 and PROCESSES not in shares


def test_a_context_that_came_with_other_things_is_called_so():
    first = reading("load", "", None, 3800 * MIB, {"1": 3270 * MIB}, 10, 20)
    shares = mib(outside_of((730 * MIB, {"1": 715 * MIB}), [first], []).shares(15))
    assert shares == {PROCESSES: 730 + 2555, CONTEXT: {"with all that came in load": 515}}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("eager_connect_single_device of a group (2 ranks)", "communicator of a further group (2 ranks)"),
        ("_verify_params_across_processes of default_pg (1 rank)", "DDP's check of the parameters of the default"),
        ("barrier of mesh_dp (4 ranks)", "barrier of group mesh_dp (4 ranks)"),
    ],
)
def test_collectives_and_groups_are_named_in_words(call, words):
    found = [reading("", "", "set_device", 526 * MIB, None, 10, 20), reading("load", "", call, 915 * MIB, None, 30, 40)]
    ((name, _),) = mib(outside_of(NOTHING, found, []).shares(99))[NCCL].items()
    assert name.startswith(words) and name.endswith(", in load")


def test_a_context_before_set_device_came_with_what_ran_there():
    first = reading("load", "", "set_device", 615 * MIB, {}, 10, 20, reserved=2 * MIB)
    assert mib(outside_of(NOTHING, [first], []).shares(15)) == {CONTEXT: {"with all that came in load": 615}}


def test_without_a_figure_from_before_the_context_is_not_told_from_other_processes():
    outside = outside_of(None, readings(told=False), [])
    assert mib(outside.shares(15)) == {f"{CONTEXT} and {PROCESSES}": 556}


def test_a_handle_shows_by_the_request_for_its_workspace():
    made = (Frame("??", 0, "at::cuda::getCurrentCUDABlasHandle()"),)
    entries = [
        Entry("alloc", 0, 1, 0, (), "", 5),
        Entry("alloc", 0, 1, 0, made, "", 6),
        Entry("oom", 0, 1, 0, made, "", 7),
    ]
    assert handles_made(entries) == [6]


def marks(tmp_path, values):
    path = tmp_path / "rank0.memory_marks.json"
    whole = {"folder": "/home/user", "owners": {"list": [], "looks": {}}, **values}
    keep_files(tmp_path / "rank0.memory_snapshot.pickle", path, {}, whole)
    return read_marks(path)


def test_readings_are_taken_from_the_marks(tmp_path):
    first = {"time_us": 5, "until_us": 9, "phase": None, "module": "", "call": "set_device", "used_bytes": 10}
    first |= {"reserved_bytes": 4, "processes": {"7": 8, "1": 2}}
    values = {"pieces": [], "first_piece": 3, "outside": one_gpu({"used_bytes": 1, "processes": {}}, [first])}
    found = marks(tmp_path, values)
    assert found.first == 3
    assert found.told_of(0) == values["outside"]["devices"]["0"] and outside_at(found.told_of(0)["readings"][0]) == 6
    devices = values["outside"]["devices"]
    devices["1"] = devices.pop("0") | {"gpu": 5}
    found = marks(tmp_path, values | {"device": 1})
    assert (found.pid, found.device) == ("7", 1)
    assert found.told_of(1) == devices["1"] and found.told_of(0)["readings"] == []
    first.pop("call")
    with pytest.raises(RecordError, match="not the marks of a memory history"):
        marks(tmp_path, values)
