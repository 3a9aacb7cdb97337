"""The search over predictions, with a predictor whose memory is a formula."""

from dataclasses import dataclass, field, replace

import pytest

from memlab.core.basis import EXACT, Basis
from memlab.core.plan import make_plan
from memlab.core.record import DOES_NOT_FIT, EDGE, FITS
from memlab.planner.changes import Change
from memlab.planner.search import (
    Candidate,
    Row,
    cheapest,
    fits,
    largest_batches,
    next_size,
    rows_to_measure,
    single_changes,
)
from memlab.prediction.memory.rank_results import Estimate

CAPACITY = 1000


def estimate(used, capacity=CAPACITY):
    verdict = FITS if used <= capacity else DOES_NOT_FIT
    return Estimate(verdict, min(used, capacity), max(capacity - used, 0), host=0, held={"forward": used})


@dataclass
class Formula:
    """``used``: bytes of a micro batch. Remembers what it was asked."""

    used: object
    asked: list[list[int]] = field(default_factory=list)
    prepared: list[int] = field(default_factory=list)
    computed: object = lambda low, high: None

    def prepare(self, plans):
        self.prepared = [plan.config.batch.micro for plan in plans]

    def estimates(self, plans, limited=True):
        sizes = [plan.config.batch.micro for plan in plans]
        self.asked.append(sizes)
        found = [(estimate(self.used(size)), self.used(size)) for size in sizes]
        return [one if limited else replace(one, used=needed) for one, needed in found]

    def largest(self, plan_at, sizes, low, high):
        return self.computed(low, high)

    def summaries(self, plans):
        return [({}, EXACT) for _ in plans]


@pytest.fixture
def candidate(config):
    def build(usd_per_hour=10.0, **options):
        return Candidate(options, config({"hardware.usd_per_gpu_hour": usd_per_hour and usd_per_hour / 2}), {})

    return build


SHAPES = {
    "a line": lambda b: 100 + 7 * b,
    "nothing to spare": lambda b: 100 * b,
    "growing ever faster": lambda b: 3 * b * b,
    "slower and slower": lambda b: int(90 * b**0.5),
    "stairs": lambda b: 100 + 64 * (b // 8),
    "flat, then a wall": lambda b: 10 if b < 700 else 2000,
    "only one": lambda b: 900 * b,
    "none": lambda b: 2000,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_largest_batch_is_the_last_that_fits(candidate, shape):
    used = SHAPES[shape]
    predictor = Formula(used)
    (row,) = largest_batches([candidate()], predictor)
    assert row.batch == max((size for size in range(1, 5000) if used(size) <= CAPACITY), default=0)
    assert len(predictor.asked) <= 24
    if row.batch:
        assert fits(row.best) and not fits(row.next_up)


def test_a_line_takes_few_predictions(candidate):
    predictor = Formula(lambda b: 100 + 7 * b)
    (row,) = largest_batches([candidate()], predictor)
    assert row.batch == 128
    assert predictor.asked == [[1], [2], [8], [32], [128], [129]]


def test_what_can_be_computed_is_tried_at_once(candidate):
    predictor = Formula(lambda b: 100 + 7 * b, computed=lambda low, high: 128 if low >= 8 else None)
    (row,) = largest_batches([candidate()], predictor)
    assert row.batch == 128 and predictor.asked == [[1], [2], [8], [128], [129]]


def test_what_was_computed_is_only_a_guess(candidate):
    predictor = Formula(lambda b: 100 + 7 * b, computed=lambda low, high: min(135, high - 1))
    (row,) = largest_batches([candidate()], predictor)
    assert row.batch == 128


def test_what_decides_all_sizes_is_traced_at_once(candidate):
    predictor = Formula(lambda b: 100 + 7 * b)
    largest_batches([candidate(), candidate()], predictor)
    assert predictor.prepared == [1, 2, 3, 1, 2, 3]


def test_all_searches_are_asked_about_at_once(candidate):
    predictor = Formula(lambda b: 300 * b)
    assert [row.batch for row in largest_batches([candidate(), candidate()], predictor)] == [3, 3]
    assert all(len(sizes) == 2 for sizes in predictor.asked)


def test_the_limit_ends_a_search(candidate):
    (row,) = largest_batches([candidate()], Formula(lambda b: 1), limit=64)
    assert (row.batch, row.next_up) == (64, None)


def test_what_cannot_be_predicted_ends_its_search_alone():
    assert next_size({1: "KeyError: 'x'"}, 64) is None
    assert next_size({1: estimate(10), 2: "KeyError: 'x'"}, 64) is None


def test_the_edge_is_not_taken_for_fitting():
    assert not fits(Estimate(EDGE, 1, 1, 0, {}))


def row(candidate, batch, rate=None, usd_per_hour=10.0, **options):
    summary = {} if rate is None else {"tokens_per_second": rate}
    best = estimate(1) if batch else None
    return Row(candidate(usd_per_hour, **options), batch, estimate(1), best, None, summary)


def test_the_cheapest_by_the_hour_where_speed_is_not_known(candidate):
    dear, cheap = row(candidate, 8, usd_per_hour=20.0), row(candidate, 2, usd_per_hour=5.0)
    cheap_and_larger = row(candidate, 4, usd_per_hour=5.0)
    too_small = row(candidate, 0, usd_per_hour=1.0)
    assert cheapest([dear, cheap, cheap_and_larger, too_small]) is cheap_and_larger
    assert cheapest([too_small]) is None
    assert cheapest([dear, row(candidate, 1, usd_per_hour=None)]) is None


def test_bounds_of_speed_rank_nothing(candidate):
    """By the bounds, the second costs less a token; by the hour, the first costs less."""
    rows = [row(candidate, 2, 1e4, 5.0, offload="none"), row(candidate, 8, 1e5, 20.0, offload="all")]
    bounds = [replace(each, basis=Basis("lower bound")) for each in rows]
    assert cheapest(rows) is rows[1] and cheapest(bounds) is bounds[0]
    assert rows_to_measure(rows, ["offload"]) == rows[::-1] and rows_to_measure(bounds, ["offload"]) == bounds


def test_the_cheapest_by_the_token_where_all_speeds_are_known(candidate):
    dear, cheap = row(candidate, 8, 1e5, 20.0), row(candidate, 2, 1e4, 5.0)
    assert dear.usd_per_million_tokens == pytest.approx(20 / 3600 / 1e5 * 1e6)
    assert cheapest([dear, cheap]) is dear
    assert cheapest([dear, cheap, row(candidate, 1, None, 4.0)]).usd_per_hour == 4.0  # one speed is missing


def test_worth_measuring_is_what_no_other_beats(candidate):
    fast = row(candidate, 4, offload="none", checkpointing="none")
    large = row(candidate, 16, offload="none", checkpointing="full")
    beaten = row(candidate, 16, offload="optimizer", checkpointing="full")
    nothing = row(candidate, 0, offload="optimizer", checkpointing="none")
    assert rows_to_measure([fast, large, nothing, beaten], ["offload", "checkpointing"]) == [fast, large]


def test_of_two_allocators_the_one_with_the_larger_batch(candidate):
    rows = [
        row(candidate, batch, zero_stage="zero2", allocator=name) for name, batch in (("default", 3), ("expandable", 4))
    ]
    assert rows_to_measure(rows, ["zero_stage"]) == rows[1:]
    tied = [replace(each, batch=4) for each in rows]
    assert rows_to_measure(tied, ["zero_stage"]) == tied[:1]


def test_the_fastest_first_where_all_speeds_are_known(candidate):
    rows = [row(candidate, 4, 1e4, offload="none"), row(candidate, 2, 2e4, offload="all")]
    assert rows_to_measure(rows, ["offload"]) == rows[::-1]


def test_single_changes_are_ordered_and_say_what_they_save(config):
    def plan(micro):
        return make_plan(config({"batch.micro": micro}), {})

    changes = [Change(told, "", {}, plan=plan(size)) for told, size in (("a", 12), ("b", 7), ("c", 9), ("d", 11))]
    base, found = single_changes(plan(11), changes, Formula(lambda b: 100 * b))
    assert (base.used, base.verdict) == (1100, DOES_NOT_FIT)
    assert [(change.word, change.saved, fits(change.outcome)) for change in found] == [
        ("b", 400, True),
        ("c", 200, True),
        ("d", 0, False),
        ("a", -100, False),
    ]
