"""The findings of the study that memlab comes from, reproduced from its data, which is not part of this repository."""

import os
from pathlib import Path

import pytest

from memlab.analyse.advise import TrainingGoal, advise
from memlab.analyse.collect import collect
from memlab.analyse.diff import compare
from memlab.analyse.effects import effects_by, effects_of_sets
from memlab.analyse.fit import fit_all, longest
from memlab.analyse.identity import point_of, select
from memlab.analyse.run_view import view_of
from memlab.importers.csv_table import write_records
from memlab.importers.gpjt_study import guess_configuration, to_records

BESIDE = Path(__file__).resolve().parents[4] / "shared" / "reference" / "gpjt"

DATA = Path(os.environ.get("MEMLAB_STUDY_DATA", BESIDE))

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the study's data is not beside this repository")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All 8B files as run folders."""
    output = tmp_path_factory.mktemp("study")
    for file in sorted(DATA.glob("8b-*.csv")):
        write_records(to_records(file, guess_configuration(file)), output)
    collection = collect([output])
    assert not collection.skipped
    assert not any(run.incomplete for run in collection.runs)
    return collection.runs


@pytest.fixture
def zero3(runs):
    return select(runs, ["zero_stage=zero3", "checkpointing=none", "batch.micro=1"])


def test_expandable_segments_lower_reserved_memory_at_long_sequences_only(zero3):
    pairs = {pair.tokens: pair for pair in effects_by(zero3, "allocator").pairs}
    at_1, at_2001 = pairs[1], pairs[2001]
    assert (at_1.interpolated, at_2001.interpolated) == (None, "base")  # the two grids are offset
    reserved = at_1.differences["peak_reserved_bytes"], at_2001.differences["peak_reserved_bytes"]
    assert reserved[0].relative == pytest.approx(0.006, abs=0.001)
    assert reserved[0].within_noise
    assert reserved[1].relative == pytest.approx(-0.109, abs=0.001)
    assert reserved[1].within_noise is False


def test_allocated_memory_stays_within_noise(zero3):
    (allocated,) = (each for each in effects_by(zero3, "allocator").ranges if each.key == "peak_active_bytes")
    assert allocated.within_noise == allocated.pairs


def test_offload_against_no_offload_is_confounded_by_three_axes(runs, zero3):
    offloaded = select(runs, ["offload=optimizer", "batch.micro=1"])
    sides = [select(each, ["allocator=expandable"]) for each in (zero3, offloaded)]
    told = "3 axes differ (zero_stage, offload, checkpointing)"
    assert effects_of_sets(*sides, names=("ZeRO-3", "offload")).warnings[0].startswith(told)
    pair = [next(run for run in side if point_of(run) == (1, 2001)) for side in sides]
    assert compare(pair).warnings[0].startswith(told)


def test_from_batch_13_to_14_it_thrashes(runs):
    study_file = select(runs, ["zero_stage=zero3", "checkpointing=full", "allocator=expandable"])
    thirteen, fourteen = (next(run for run in study_file if point_of(run)[0] == micro) for micro in (13, 14))
    rows = {row.key: row.differences[0].relative for row in compare([thirteen, fourteen]).quantities}
    assert rows["iterations_per_second"] == pytest.approx(-0.38, abs=0.005)
    assert rows["samples_per_second"] == pytest.approx(-0.33, abs=0.005)


def test_no_offload_beats_offload_over_two_epochs(runs):
    advice = advise(runs, TrainingGoal(samples=9846, epochs=2, tokens=2048))
    assert (advice.best.micro, advice.best.run.choices["offload"]) == (2, "none")
    assert advice.best.seconds == pytest.approx(1725, abs=2)
    assert advice.best.usd == pytest.approx(6.87, abs=0.01)
    offloaded = next(each for each in advice.projections if each.run.choices["offload"] == "optimizer")
    assert offloaded.micro == 16
    assert offloaded.seconds == pytest.approx(2309, abs=2)
    at_14 = [each for each in advice.projections if each.micro == 14 and each.run.choices["zero_stage"] == "zero3"]
    assert at_14[0].cautions[0].startswith("thrashes: 35 %")  # against batch 10


def test_memory_is_linear_in_tokens_and_tells_the_largest_batch(runs):
    fits, _ = fit_all(select(runs, ["checkpointing=full", "zero_stage=zero3"]), "peak_active_bytes")
    for fit in fits:
        assert fit.line.slope / 2**20 == pytest.approx(1.75, abs=0.02)
        assert fit.median_error < 0.02
    expandable, default = sorted(fits, key=lambda fit: fit.oom_tokens is not None)
    assert longest(expandable, 79.25).batch(2048) == 14
    assert longest(default, 79.25).batch(2048) == 12  # 13 was an out-of-memory


def test_the_small_model_is_flat_to_918_tokens():
    file = DATA / "0.5b-seq-default.csv"
    points = [view_of(record, record.run_id) for record in to_records(file, guess_configuration(file))]
    (fit,), _ = fit_all(points, "peak_active_bytes")
    assert fit.flat_until == 918
    assert fit.line.hinge == pytest.approx(925, abs=2)
    assert fit.line.slope / 2**20 == pytest.approx(2.96, abs=0.01)
    assert fit.line.r2 > 0.999
    assert fit.largest_error < 0.02
