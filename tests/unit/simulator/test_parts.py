"""Parts outside the allocator: what a trace says has appeared, with measured sizes."""

import pytest

from memlab.prediction.memory.outside import PAGE_TABLES, outside_parts
from memlab.simulator.outside.appearances import (
    ATTENTION,
    ATTENTION_BACKWARD,
    COLLECTIVE,
    COMMUNICATOR,
    HANDLE,
    STREAM,
    Appearance,
)
from memlab.simulator.outside.parts import (
    CONTEXT,
    CUBLAS,
    KERNELS,
    NCCL,
    group_in_words,
    outside_bytes,
    parts_of,
    shipped,
)
from memlab.simulator.trace.events import Alloc, BeginPhase, HostAlloc, HostFree
from memlab.simulator.trace.trace_format import Trace

MIB = 1 << 20
ONE_PROCESS = [
    Appearance(3, HANDLE),
    Appearance(4, ATTENTION),
    Appearance(5, HANDLE),
    Appearance(6, ATTENTION_BACKWARD),
]


def group(event: int, name: str, ranks: int, collective: bool = True) -> list[Appearance]:
    made = Appearance(event, COMMUNICATOR, name, ranks)
    return [made, Appearance(event, COLLECTIVE, name, ranks)] if collective else [made]


def mib(appearances) -> float:
    return outside_bytes(parts_of(appearances, shipped())) / MIB


def test_a_process_without_nccl_has_context_kernels_and_a_handle_for_each_thread():
    parts = list(parts_of(ONE_PROCESS, shipped()))
    sums = {
        name: outside_bytes(part for part in parts if part.name == name) / MIB for name in (CONTEXT, CUBLAS, KERNELS)
    }
    assert sums == {CONTEXT: 526.8125, CUBLAS: 130, KERNELS: 110}
    assert outside_bytes(parts, 2) / MIB == 526.8125 + 92  # before the first product


@pytest.mark.parametrize(
    ("groups", "measured"),
    [
        ([], 769),  # trainer_eval_save
        (group(1, "a group", 1), 1327),  # qwen25_zero2_accumulation on one GPU
        (group(1, "default_pg", 1) + group(2, "a group", 1), 1715),  # trl_dpo_zero2
        (group(1, "default_pg", 2), 1613),  # ddp
        (group(0, "default_pg", 2) + group(2, "a group", 2, collective=False), 1811),  # qwen25_zero3
        (group(0, "default_pg", 2) + group(2, "a group", 2), 2103),  # trl_sft_zero2
    ],
)
def test_the_sum_is_that_of_measured_runs(groups, measured):
    assert mib([*groups, *ONE_PROCESS]) == pytest.approx(measured, abs=7)


def test_the_library_and_a_stream_of_high_priority_come_once():
    both = [Appearance(1, STREAM), *group(2, "default_pg", 2), *ONE_PROCESS]
    assert mib(both) == mib([*group(2, "default_pg", 2), *ONE_PROCESS])
    assert mib([Appearance(1, STREAM), *ONE_PROCESS]) == mib(ONE_PROCESS) + 70
    nccl = [part for part in parts_of(both, shipped()) if part.name == NCCL]
    assert [part.detail for part in nccl] == [
        "the library",
        "communicator of the default group (2 ranks)",
        "first collective of the default group (2 ranks)",
    ]


def test_page_locked_memory_has_page_tables_which_stay():
    gib = 1 << 30
    events = [BeginPhase(0), Alloc(1, 10, 0, 0), HostAlloc(2, 4 * gib, True), HostFree(2), HostAlloc(3, 2 * gib, True)]
    parts = outside_parts(Trace(0, 1, events=events, phases=[""]), shipped())
    tables = [part for part in parts if part.name == PAGE_TABLES]
    assert [(part.event, part.nbytes // MIB) for part in tables] == [(2, 8), (4, 4)]


def test_a_process_that_uses_no_gpu_has_nothing_there():
    assert outside_parts(Trace(0, 1, events=[BeginPhase(0)], phases=[""]), shipped()) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("default_pg", "the default group (2 ranks)"),
        ("a group", "a further group (2 ranks)"),
        ("mesh_dp", "group mesh_dp (2 ranks)"),
    ],
)
def test_groups_have_names_that_need_no_knowledge_of_torch(name, words):
    assert group_in_words(name, 2) == words
