"""Advice: the ranking, what it costs, what is left out, and what to measure next."""

import pytest
from folders import MIB, make_config, make_record, write

from memlab.analyse.advise import TrainingGoal, advise, how_to_train
from memlab.analyse.collect import collect
from memlab.core.config import Offload
from memlab.core.errors import MemlabError


def add(folder, micro, seconds, offload="none", status="ok", allocated=100 * MIB):
    config = make_config(512, micro, offload=Offload(optimizer=offload))
    choices = {"zero_stage": "zero2", "offload": "none" if offload == "none" else "optimizer"}
    figures = {"seconds": seconds, "allocated": allocated} if status == "ok" else {}
    write(folder, make_record(config, choices, status, **figures))


@pytest.fixture
def runs(tmp_path):
    add(tmp_path, 1, 0.5)
    add(tmp_path, 2, 0.8)
    add(tmp_path, 3, 1.6, allocated=78 * 1024 * MIB)
    add(tmp_path, 4, 1.0, status="gpu_oom")
    add(tmp_path, 8, 8.0, offload="cpu")
    return collect([tmp_path]).runs


def test_the_ranking(runs):
    advice = advise(runs, TrainingGoal(samples=1000, epochs=2, tokens=512))
    best = advice.best
    assert (best.micro, best.run.choices["offload"]) == (2, "none")
    assert best.seconds == pytest.approx(2000 / (4 / 0.8))
    assert best.usd == pytest.approx(best.seconds / 3600 * 3.6)
    assert best.headroom_bytes == 80 * 2**30 - 120 * MIB
    assert [each.micro for each in advice.projections] == [2, 1, 3, 8]
    assert [reason for _, reason in advice.excluded] == ["ended as gpu_oom"]


def test_thrashing_and_tight_runs_carry_a_caution(runs):
    three = next(each for each in advise(runs, TrainingGoal(1000, 1, 512)).projections if each.micro == 3)
    assert three.cautions[0].startswith("thrashes: 25 % fewer samples/s")
    assert three.cautions[1].startswith("tight: 2.5 % of the memory")


def test_an_effective_batch_sets_the_accumulation(runs):
    advice = advise(runs, TrainingGoal(1000, 1, 512, effective_batch=8))
    assert {(each.micro, each.accumulation) for each in advice.projections} == {(1, 4), (2, 2)}
    words, deepspeed = how_to_train(advice.best)
    assert "batch.accumulation=2" in words and deepspeed["gradient_accumulation_steps"] == 2


def test_a_smaller_gpu_leaves_out_what_does_not_fit(runs):
    reasons = [reason for _, reason in advise(runs, TrainingGoal(1000, 1, 512, memory_gib=40)).excluded]
    assert "does not fit in 40 GiB" in reasons


def test_the_headroom_is_what_the_driver_has_left(runs):
    for run in runs:
        run.summary["device_used_bytes"] = {"max": 60 * 2**30}
    assert advise(runs, TrainingGoal(1000, 1, 512)).best.headroom_bytes == 20 * 2**30
    with pytest.raises(MemlabError, match="does not fit in 40 GiB"):
        advise(runs, TrainingGoal(1000, 1, 512, memory_gib=40))


def test_a_run_that_does_not_last_is_left_out(runs):
    for run in runs:
        run.summary["verdict"] = "does_not_last" if run.config["batch"]["micro"] == 2 else "fits"
    advice = advise(runs, TrainingGoal(1000, 1, 512))
    assert advice.best.micro == 1 and "does not last: its memory grows with each step" in dict(advice.excluded).values()


def test_the_price_can_be_given(runs):
    advice = advise(runs, TrainingGoal(1000, 1, 512, usd_per_gpu_hour=18.0))
    assert advice.best.usd == pytest.approx(advice.best.seconds / 100)


def test_what_to_measure_next(tmp_path):
    add(tmp_path, 1, 0.5)
    add(tmp_path, 2, 0.8)
    at_the_edge = advise(collect([tmp_path]).runs, TrainingGoal(1000, 1, 512))
    assert at_the_edge.next[0].startswith("batch.micro=3: 2 is the largest batch tried")
    add(tmp_path, 6, 1.0, status="gpu_oom")
    assert (
        advise(collect([tmp_path]).runs, TrainingGoal(1000, 1, 512))
        .next[0]
        .startswith("batch.micro=4: nothing was tried")
    )
    add(tmp_path, 3, 1.0, status="gpu_oom")
    assert advise(collect([tmp_path]).runs, TrainingGoal(1000, 1, 512)).next == ()


def test_nothing_can_do_it(runs):
    with pytest.raises(MemlabError, match="No run has a sequence length of 4,096 tokens; the nearest have 512"):
        advise(runs, TrainingGoal(1000, 1, 4096))
    with pytest.raises(MemlabError, match="None of the 5 runs at 512 tokens can do this training"):
        advise(runs, TrainingGoal(1000, 1, 512, effective_batch=7))
