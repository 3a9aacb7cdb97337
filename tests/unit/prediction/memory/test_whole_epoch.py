"""Steps of an epoch that were left out are replayed as copies of those that ran."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from memlab.prediction.memory import whole_epoch
from memlab.prediction.memory.rank_results import command_memory
from memlab.prediction.memory.replay import Replay, replay
from memlab.prediction.memory.whole_epoch import amounts_at, other_orders, with_whole_epoch
from memlab.simulator.allocator import Options
from memlab.simulator.outside.appearances import Appearance
from memlab.simulator.trace.epoch_batches import CollatedBatch, EpochOrder, ReadAhead
from memlab.simulator.trace.events import Alloc, BeginPhase, Event, Free, Synchronize
from memlab.simulator.trace.trace_format import Piece, Site, Trace

MIB = 1 << 20
PHASES = ["engine_init", "first_forward", "forward", "backward", "optimizer_step", "evaluate", "first_evaluate"]
SITES = [Site(kind, "", kind, "", "", ()) for kind in ("weights", "states", "batch", "hidden", "scores", "gradients")]
WEIGHTS, STATES, BATCH, HIDDEN, SCORES, GRADIENTS = range(6)


class Script:
    """Writes the trace of a script whose step at a length takes ``length`` MiB for hidden states and a 16th of its
    square for scores. The batch of a step lives until the next one has another; gradients are freed there, too.

    ``ahead``: the batch of the next step is fetched in each step; ``ends``: but in the last one. ``kept``: MiB of it
    that each step keeps, ``crumbs``: blocks of a KiB that it keeps. ``waits``: the host waits for the whole step at its
    end.
    """

    def __init__(self, ahead: bool = False, ends: bool = False, kept: int = 0, crumbs: int = 0, waits: bool = False):
        self.trace = Trace(0, 1, phases=list(PHASES), sites=list(SITES))
        self._keys, self._ahead, self._ends, self._kept = count(1), ahead, ends, kept
        self._crumbs, self._waits = crumbs, waits
        self._batches: list[int] = []
        self._gradients: int | None = None
        self._begin("engine_init", None)
        self._alloc(20, WEIGHTS)

    def _begin(self, phase: str, step: int | None) -> None:
        self.trace.events.append(BeginPhase(PHASES.index(phase)))
        self.trace.pieces.append(Piece(step, "script.py:1", True))

    def _alloc(self, mib: float, site: int) -> int:
        self.trace.events.append(Alloc(next(self._keys), int(mib * MIB), 0, site))
        return self.trace.events[-1].key

    def _free(self, *keys: int | None) -> None:
        self.trace.events += [Free(key) for key in keys if key is not None]

    def run(self, lengths: list[int], every: int | None = None, evaluates: int = 0) -> Trace:
        """Make a step of each length, and after each ``every`` of them, and the last, an evaluation of so many MiB."""
        for number, length in enumerate(lengths, start=1):
            is_end = self._ends and number == len(lengths)
            self._step(number, length, None if is_end else lengths[number % len(lengths)])
            if evaluates and (number == len(lengths) or number % every == 0):
                self._begin("optimizer_step", number + 1)
                self._free(self._gradients)
                self._gradients = None
                self._begin("evaluate", None)
                self._free(self._alloc(evaluates, SCORES))
        self._begin("optimizer_step", len(lengths) + 1)
        return self.trace

    def _step(self, number: int, length: int, following: int | None) -> None:
        self.trace.steps.append(len(self.trace.events))
        self._begin("forward" if number > 1 else "first_forward", number)
        self._free(self._gradients)
        if not self._ahead or number == 1:
            self._batches.append(self._alloc(length / 2, BATCH))
        if self._ahead and following:
            self._batches.append(self._alloc(following / 2, BATCH))
        if number > 1:
            self._free(self._batches.pop(0))
        hidden, scores = self._alloc(length, HIDDEN), self._alloc(length**2 / 16, SCORES)
        self._begin("backward", number)
        self._gradients = self._alloc(20, GRADIENTS)
        self._free(hidden, scores)
        if number == 1:
            self._alloc(40, STATES)
        if self._kept:
            self._alloc(self._kept, SCORES)
        for _ in range(self._crumbs):
            self._alloc(1 / 1024, SCORES)
        if self._waits:
            self.trace.events.append(Synchronize(requests_before(self.trace.events)))


def requests_before(events: list[Event]) -> int:
    return sum(isinstance(event, Alloc) for event in events)


def short(epoch: list[int], dearest: int, **options) -> Trace:
    """Return the trace of a short epoch: its first two steps, the dearest one and the third, with its order."""
    every, evaluates = options.pop("every", None), options.pop("evaluates", 0)
    is_random = options.pop("is_random", False)
    ran = [0, 1, dearest, 2]
    trace = Script(**options).run([epoch[place] for place in ran], len(ran), evaluates)
    batches = [CollatedBatch(0, place, (("ids", (2, length)),)) for place, length in enumerate(epoch)]
    trace.order = EpochOrder.of(
        ReadAhead(batches, {0: [None] * len(epoch)}),
        0,
        1,
        [(0, place) for place in ran],
        given=2,
        steps=1,
        steps_before=0,
        every={"evaluate": every} if every else {},
        is_random=is_random,
        labels_matter=False,
    )
    trace.epochs = [{"purpose": "training"}]
    trace.check()
    return trace


def replayed(trace: Trace) -> Replay:
    trace.check()
    return replay(trace, Options(), 1 << 40)


def peaks(trace: Trace) -> tuple[int, int]:
    found = replayed(trace)
    return found.peak_allocated, found.peak_reserved


def steps(trace: Trace) -> tuple[int, int]:
    return trace.epochs[0]["steps_replayed"], trace.epochs[0]["steps_of_epoch"]


EPOCH = [16, 24, 20, 36, 28, 44, 18, 64, 40, 30, 22, 50, 26, 34]


@pytest.mark.parametrize(
    "options",
    [{}, {"ahead": True}, {"ahead": True, "ends": True}],
    ids=["plain", "fetched a step ahead", "none behind the last one"],
)
def test_a_short_epoch_has_the_peaks_of_the_whole_one_although_most_lengths_did_not_run(options):
    whole = with_whole_epoch(short(EPOCH, dearest=7, **options))
    assert peaks(whole) == peaks(Script(**options).run(EPOCH)) != peaks(short(EPOCH, dearest=7, **options))
    assert steps(whole) == (14, 14)


def test_the_step_of_the_peak_is_that_of_the_epoch():
    whole = with_whole_epoch(short(EPOCH, dearest=7))
    peak = command_memory(whole, replayed(whole), ())["peak"]
    assert (peak["step"], peak["run_as_step"]) == (8, 3)


def test_evaluations_come_where_the_trainer_plans_them():
    epoch = [16] * 14 + [64, 20]
    whole = with_whole_epoch(short(epoch, dearest=14, every=3, evaluates=150))
    assert peaks(whole) == peaks(Script().run(epoch, every=3, evaluates=150))
    evaluations = [event for event in whole.events if event == BeginPhase(PHASES.index("evaluate"))]
    assert len(evaluations) == 6


def test_equal_steps_are_replayed_until_the_allocator_is_as_before():
    whole = with_whole_epoch(short([16] * 10_000, dearest=5))
    assert steps(whole) == (10_000, 10_000) and len(whole.events) < 200
    assert peaks(whole) == peaks(Script().run([16] * 30))


def test_a_long_epoch_is_left_after_some_events_and_its_dearest_step_is_replayed_all_the_same(monkeypatch):
    monkeypatch.setattr(whole_epoch, "MOST_EVENTS", 40)
    whole = with_whole_epoch(short(EPOCH, dearest=7))
    done, of = steps(whole)
    assert 3 < done < 9 and of == 14
    assert peaks(whole)[0] >= peaks(Script().run(EPOCH))[0]


def test_blocks_that_are_compared_before_each_copy_count_as_its_events(monkeypatch):
    """Each step leaves 100 more of them: twice as many steps would take four times as long."""
    monkeypatch.setattr(whole_epoch, "MOST_EVENTS", 40_000)
    done, of = steps(with_whole_epoch(short([16 + place % 9 for place in range(400)], dearest=8, crumbs=100)))
    assert 20 < done < 60 and of == 400


def test_sizes_that_come_again_are_computed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(
        whole_epoch, "amounts_at", lambda *known, **more: calls.append(known) or amounts_at(*known, **more)
    )
    done, _ = steps(with_whole_epoch(short([16, 24, 20, *[16, 18] * 40, 64, 22], dearest=83, crumbs=1)))
    assert done == 85 and len(calls) < 10


def test_waits_and_marks_behind_an_evaluation_within_a_step_are_in_their_places():
    trace = short([16] * 14 + [64, 20], dearest=14, every=3, evaluates=150, waits=True)
    batch = next(event for event in trace.events[trace.steps[-1] :] if isinstance(event, Alloc))
    trace.appearances = [Appearance(trace.events.index(batch), "kernel")]
    whole = with_whole_epoch(trace)
    waits = [index for index, event in enumerate(whole.events) if isinstance(event, Synchronize)]
    assert len(waits) == 16
    assert [whole.events[index].requests for index in waits] == [
        requests_before(whole.events[:index]) for index in waits
    ]
    assert whole.events[whole.appearances[0].event].site == batch.site == BATCH


def test_steps_that_keep_memory_are_not_copied():
    trace = short(EPOCH, dearest=7, kept=2)
    assert with_whole_epoch(trace) is trace


def test_a_run_whose_epoch_was_not_shortened_stays_as_it_is():
    trace = Script().run(EPOCH)
    assert with_whole_epoch(trace) is trace


def test_a_run_that_ended_early_stays_as_it_is():
    trace = short(EPOCH, dearest=7)
    trace.steps.pop()
    assert with_whole_epoch(trace) is trace


def test_a_random_order_has_a_range_and_a_fixed_one_has_none():
    traces = other_orders({0: short(EPOCH, dearest=7, is_random=True)})
    assert len({replayed(each[0]).peak_reserved for each in traces}) > 1
    assert other_orders({0: short(EPOCH, dearest=7)}) == []
    assert other_orders({0: short([16] * 14, dearest=7, is_random=True)}) == []


def test_the_copies_fit_into_a_file(tmp_path):
    trace = short(EPOCH, dearest=7)
    trace.save(tmp_path / "short.json")
    assert Trace.load(tmp_path / "short.json").order == trace.order
    whole = with_whole_epoch(trace)
    whole.save(tmp_path / "whole.json")
    assert Trace.load(tmp_path / "whole.json").pieces == whole.pieces


def test_amounts_are_constant_multiples_of_a_measure_or_on_a_line():
    measures = np.array([[10.0, 100.0], [20.0, 400.0]])
    known = np.array([[7, 30, 500, 9], [7, 60, 2000, 19]], dtype=float)  # 7; 3 t; 5 t²; t - 1
    assert amounts_at(np.array([15.0, 225.0]), measures, known)[0].tolist() == [7, 45, 1125, 14]


def test_a_block_of_accumulated_batches_follows_its_own_batch():
    measures = np.array([[40.0, 10.0, 30.0], [70.0, 50.0, 20.0]])  # of the window, and of its two batches
    known = np.array([[20, 90, 80, 6], [100, 60, 140, 6]], dtype=float)
    amounts, followed = amounts_at(np.array([50.0, 15.0, 35.0]), measures, known)
    assert amounts.tolist() == [30, 105, 100, 6] and followed.tolist() == [1, 2, 0, -1]
    measures = np.array([[40.0, 10.0, 30.0], [70.0, 50.0, 20.0], [62.0, 20.0, 42.0]])
    known = np.array([[29, 9], [19, 49], [41, 19]], dtype=float)  # one less than those of a batch
    assert amounts_at(np.array([50.0, 15.0, 35.0]), measures, known, elements=3)[0].tolist() == [34, 14]


def test_a_size_that_follows_from_values_is_not_carried_far():
    measures = np.array([[1000.0], [1001.0]])
    assert amounts_at(np.array([2002.0]), measures, np.array([[10.0], [60.0]]))[0].tolist() == [120]
    assert amounts_at(np.array([500.0]), measures, np.array([[10.0], [60.0]]))[0].tolist() == [5]


def test_an_order_is_not_known_where_a_window_that_ran_was_not_read():
    read = ReadAhead([CollatedBatch(0, 0, (("ids", (2, 8)),))], {0: [None] * 4})
    facts = dict(given=1, steps=1, steps_before=0, every=None, is_random=False, labels_matter=False)
    assert EpochOrder.of(read, 0, 1, [(0, 0), (0, 1)], **facts) is None
    assert EpochOrder.of(read, 0, 1, [(0, 0)], **facts).windows == 4


@pytest.mark.parametrize(
    "wrong", [{"order": [[0, 99]]}, {"given": 0}, {"given": 4}, {"sizes": [[[1, 2], [3]]]}, {"sizes": []}], ids=str
)
def test_an_order_that_no_run_can_have_is_refused(wrong):
    order = short(EPOCH, dearest=7).order
    with pytest.raises(ValueError, match="the order of the epoch"):
        replace(order, **wrong).check()
