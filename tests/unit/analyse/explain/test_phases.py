"""What each phase finds, adds and leaves, and the sentence about the peak."""

import pytest

from memlab.analyse.explain.accounting import Share
from memlab.analyse.explain.explained import Explained, History, explain_history
from memlab.analyse.explain.outside import ModelledDevice
from memlab.analyse.explain.phases import Part, PhaseRun, changes, highest_runs, parts_of
from memlab.core.errors import MemlabError
from memlab.prediction.memory.ledger import moments
from memlab.report.explain_text import (
    _rows,
    phase_sentence,
    run_of_phase,
    show_explained,
    show_phase,
    when_reserved_is_highest,
    why_the_peak_is_there,
)
from memlab.report.text import console
from memlab.simulator.allocator import CachingAllocator, RecordingAllocator
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.trace_format import Piece, Site, Trace, replayed

GIB = 1 << 30
KINDS = ("weights", "activations", "gradients", "optimizer states", "temporaries of the step")
PHASES = ["load", "forward", "backward", "optimizer_step"]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def step(number: int, activations: int, with_states: bool) -> list:
    """A step whose activations have this size; the first one makes the optimizer states."""
    keys = iter(range(10 * number, 10 * number + 10))
    held, gradients, states, temporary = next(keys), next(keys), next(keys), next(keys)
    return [
        *(BeginPhase(1), Alloc(held, activations, 0, 1)),
        *(BeginPhase(2), Alloc(gradients, 7 * GIB, 0, 2), Free(held)),
        BeginPhase(3),
        *([Alloc(states, 14 * GIB, 0, 3)] if with_states else []),
        *(Alloc(temporary, 3 * GIB, 0, 4), Free(temporary), Free(gradients)),
    ]


EVENTS = [BeginPhase(0), Alloc(0, 13 * GIB, 0, 0), *step(1, GIB, True), *step(2, 2 * GIB, False)]
TRACE = Trace(
    *(0, 1),
    events=EVENTS,
    phases=PHASES,
    sites=[Site(kind, "", f"{kind.split()[0]}.py:1", "", "", ()) for kind in KINDS],
    pieces=[Piece(number or None, None, True) for number in (0, 1, 1, 1, 2, 2, 2)],
)


def explained() -> Explained:
    return explain_history("predicted", History(TRACE, "", RecordingAllocator), ModelledDevice(()))


def printed(show, *arguments) -> str:
    out = console()
    with out.capture() as text:
        show(*arguments[:-1], out, arguments[-1])
    return " ".join(text.get().split())


def test_of_each_phase_the_run_with_the_highest_peak_is_shown():
    rank = explained()
    assert [(run.part[:2], run.times) for run in rank.phases] == [
        (("load", None), 1),
        (("optimizer_step", 1), 2),
        (("forward", 2), 2),
        (("backward", 2), 2),
    ]
    (run,) = [run for run in rank.phases if run.part.phase == "optimizer_step"]
    assert [moment.allocated // GIB for moment in (run.start, run.peak, run.end)] == [20, 37, 27]


def test_a_phase_that_began_with_nothing_starts_at_nothing():
    load = explained().phases[0]
    assert load.part == Part("load", None, 0, 2) and load.start.allocated == 0 and load.peak == load.end


def test_changes_tell_what_stays_from_what_is_gone():
    run = next(run for run in explained().phases if run.part.phase == "optimizer_step")
    by_kind = {change.kind: (change.added // GIB, change.stays // GIB) for change in changes(run)}
    assert by_kind == {
        "optimizer states": (14, 14),
        "temporaries of the step": (3, 0),
        "weights": (0, 0),
        "gradients": (0, 0),
    }


def test_the_peak_is_explained_in_words():
    assert why_the_peak_is_there(explained()) == (
        "Why there: optimizer_step begins with 20.0 GiB allocated: weights (13.0 GiB), gradients (7.00 GiB). Until its "
        "peak, 37.0 GiB, it adds optimizer states (14.0 GiB), which stay, and temporaries of the step (3.00 GiB), "
        "which are gone at the end of optimizer_step. It ends with 27.0 GiB. "
        "The next highest peak, of backward, is 36.0 GiB."
    )


def test_what_a_phase_has_freed_before_its_peak_is_said():
    events = [BeginPhase(1), Alloc(0, 9 * GIB, 0, 1), BeginPhase(2), Free(0), Alloc(1, 10 * GIB, 0, 2)]
    trace = Trace(0, 1, events=events, phases=PHASES, sites=TRACE.sites)
    allocated = [allocator.allocated for allocator in replayed(trace, CachingAllocator())]
    run = highest_runs(parts_of(trace, len(allocated)), allocated)[1]
    found = moments(trace, run.events, CachingAllocator())
    sentence = phase_sentence(PhaseRun(run.part, run.times, *(found[event] for event in run.events)))
    assert sentence == (
        "backward begins with 9.00 GiB allocated: activations (9.00 GiB). Until its peak, 10.0 GiB, it adds gradients "
        "(10.0 GiB), which stay. By then it has freed activations (9.00 GiB). It ends with 10.0 GiB."
    )


def test_a_run_prints_the_accounting_then_the_phases():
    text = printed(show_explained, explained(), 5)
    assert "optimizer states 14.0 GiB, weights 13.0 GiB, gradients 7.00 GiB" in text
    assert "Why there: optimizer_step begins with 20.0 GiB" in text
    assert "optimizer_step (of 2) 20.000 37.000 27.000 38.000 38.000" in text


def test_a_level_that_repeats_the_row_above_is_left_out():
    """No module is known of any memory here, so the lines stand below the kinds."""
    out = console()
    with out.capture() as text:
        show_explained(explained(), out, 5)
    tree = text.get().partition("memory at the peak")[2].partition("GiB allocated in")[0]
    assert "outside all modules" not in tree
    by_kind = [line for line in tree.splitlines() if "weights" in line]
    assert [line.split()[2:] for line in by_kind] == [["weights"], ["weights.py:1"]]


def test_small_parts_share_a_row_and_a_single_one_keeps_its_name():
    parts = tuple(Share(name, nbytes) for name, nbytes in (("large", 90), ("small", 6), ("smaller", 4)))
    names = [[node.name for _, node in _rows(Share("used", 100, parts), 1, least, _size)] for least in (5, 7)]
    assert names == [["used", "large", "small", "smaller"], ["used", "large", "2 smaller"]]


def _size(share: Share) -> int:
    return share.nbytes


def test_what_stays_in_part_is_said_with_its_size():
    events = [BeginPhase(2), Alloc(0, 4 * GIB, 0, 2), Alloc(1, 6 * GIB, 0, 2), Free(1)]
    trace = Trace(0, 1, events=events, phases=PHASES, sites=TRACE.sites)
    (run,) = explain_history("predicted", History(trace, "", RecordingAllocator), ModelledDevice(())).phases
    assert "it adds gradients (10.0 GiB), of which 4.00 GiB stay. It ends with 4.00 GiB." in phase_sentence(run)


def test_reserved_memory_that_is_highest_after_the_peak_of_allocated_memory_is_said():
    peak = [BeginPhase(1), Alloc(0, 10 * GIB, 0, 1), Free(0)]
    with_a_hole = [Alloc(1, 4 * GIB, 0, 1), Alloc(2, 5 * GIB, 0, 1), Free(1), Alloc(3, 4 * GIB + GIB // 2, 0, 1)]
    trace = Trace(0, 1, events=[*peak, BeginPhase(2), *with_a_hole], phases=PHASES, sites=TRACE.sites)
    rank = explain_history("predicted", History(trace, "", RecordingAllocator), ModelledDevice(()))
    assert rank.peak.allocated == 10 * GIB
    assert when_reserved_is_highest(rank) == (
        "This is the peak of allocated memory. Reserved memory is highest at another moment (backward): 14.5 GiB, of "
        "it 5.00 GiB slack, with 14.5 GiB of the GPU in use. --at backward shows that phase."
    )
    assert when_reserved_is_highest(rank) in printed(show_explained, rank, 3)
    assert not when_reserved_is_highest(explained())


def test_a_phase_is_printed_at_its_start_its_peak_and_its_end():
    rank = explained()
    text = printed(show_phase, rank, run_of_phase(rank, "optimizer_step"), 5)
    assert "20.000 37.000 +17.000 27.000 requested" in text
    assert "0.000 14.000 +14.000 14.000 optimizer states" in text and "0.000 3.000 +3.000 0.000 temporaries" in text
    assert "weights.py:1" in text
    assert run_of_phase(rank, "optimizer step") is run_of_phase(rank, "optimizer_step")  # as tables of runs name it
    with pytest.raises(MemlabError, match="Did you mean 'optimizer_step'"):
        run_of_phase(rank, "optimiser_step")
