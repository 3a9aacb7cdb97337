"""Advice begins with what to use, by short names, and ends with a command that can be copied."""

import io
import shlex
from dataclasses import replace

import pytest
from folders import make_config, make_record, write
from sweeps import add_point, small_sweep

from memlab.analyse.advise import TrainingGoal, advise, how_to_train
from memlab.analyse.collect import collect
from memlab.core.config import Hardware, Training
from memlab.core.errors import MemlabError
from memlab.core.sizes import GIB
from memlab.report.advice_text import sentences, show_advice
from memlab.report.text import console


def test_the_first_sentence_is_the_recommendation_and_the_command_is_whole(tmp_path, monkeypatch):
    advice = advise(collect([small_sweep(tmp_path)]).runs, TrainingGoal(samples=1000, epochs=1, tokens=512))
    monkeypatch.setenv("COLUMNS", "80")
    out = console(io.StringIO())
    show_advice(advice, out)
    text = out.file.getvalue()
    assert " ".join(text.split()).startswith(sentences(advice)[0])
    assert max(map(len, text.splitlines())) <= 80
    (command,) = [part for part in text.split("\n\n") if part.startswith("python launch.py")]
    assert shlex.split(command.replace("\\\n", "")) == shlex.split(" ".join(how_to_train(advice.best)[0]))


def test_of_several_models_it_says_how_to_ask_about_one(tmp_path):
    training, told = TrainingGoal(samples=1000, epochs=1, tokens=512), "The runs have 2 models"
    assert told not in " ".join(sentences(advise(collect([small_sweep(tmp_path / "a")]).runs, training)))
    add_point(tmp_path / "b", 512, choices={"model": "large", "zero_stage": "zero2", "allocator": "default"})
    add_point(tmp_path / "c", 512, choices={"model": "small", "zero_stage": "zero2", "allocator": "default"})
    both = collect([tmp_path / "b", tmp_path / "c"]).runs
    assert sentences(advise(both, training))[-1].startswith(told)


@pytest.fixture
def bounds(tmp_path):
    """Two predictions without a calibration. The one that would be faster needs more memory."""
    for micro, allocated, seconds in ((1, 10 * GIB, 2.0), (2, 60 * GIB, 3.0)):
        record = make_record(
            make_config(512, micro), {"zero_stage": "zero2"}, "ok", seconds=seconds, allocated=allocated
        )
        record.source, record.steps = "predicted", {"basis": "lower bound", "basis_reason": "no calibration for A100"}
        record.summary["step_seconds_max"] = None
        write(tmp_path, record)
    return collect([tmp_path]).runs


def test_a_bound_is_written_at_least_and_ranks_nothing(bounds):
    advice = advise(bounds, TrainingGoal(samples=1000, tokens=512))
    assert [each.micro for each in advice.projections] == [1, 2]  # the most free memory first
    assert advice.cheapest is None
    first, _, why, *_ = sentences(advice)
    assert first.endswith("1,000 samples of 512 tokens take at least 16 min 40 s and cost at least $1.00.")
    assert why.startswith(
        "Which way is the fastest is not known, since times are lower bounds (no calibration for A100)"
    )


def test_the_price_of_a_machine_that_is_rented_whole_is_there_too(tmp_path):
    config = make_config(512, 1)
    config = replace(config, hardware=replace(config.hardware, gpu="A100-SXM4-80GB", gpus=4, usd_per_gpu_hour=1.79))
    write(tmp_path, make_record(config, {"zero_stage": "zero2"}, "ok", seconds=1.0, allocated=GIB))
    advice = advise(collect([tmp_path]).runs, TrainingGoal(samples=3600 * 4))
    assert advice.best.usd == pytest.approx(4 * 1.79)
    assert "The price is $7.16 an hour for 4 GPUs; Lambda rents 8, for $14.32." in sentences(advice)


@pytest.mark.parametrize(("given", "usd"), [(None, 3.5), (1.0, 1.0)])
def test_a_list_price_is_named_where_the_record_has_none(tmp_path, given, usd):
    config = make_config(512, 1, hardware=Hardware(gpu="NVIDIA H200", memory_gib=140.0))
    write(tmp_path, make_record(config, {"zero_stage": "zero2"}, "ok", seconds=1.0, allocated=GIB))
    advice = advise(collect([tmp_path]).runs, TrainingGoal(samples=3600, usd_per_gpu_hour=given))
    told = "The price is $3.50 an hour: the list price of NVIDIA H200 (Nebius, by 2026-11-21)."
    assert advice.best.usd == pytest.approx(usd) and (told in sentences(advice)) == (given is None)


def test_a_command_knows_its_samples_its_length_and_whether_it_was_measured(tmp_path):
    config = make_config(512, 1, training=Training(loop="command", command="python train.py"))
    record = make_record(config, {"zero_stage": "zero2"}, "ok", seconds=1.0, allocated=GIB)
    record.source, record.command = "predicted", {"words": ["python", "train.py"]}
    record.ranks[0]["attached"] = {"training_arguments": {"values": {"max_steps": 500}}}
    write(tmp_path, record)
    advice = advise(collect([tmp_path]).runs, TrainingGoal())
    assert (advice.training.samples, advice.training.tokens) == (1000, 512)  # two GPUs, a sample each, 500 steps
    out = console(io.StringIO())
    show_advice(advice, out)
    assert "The command that was predicted;" in out.file.getvalue()


def test_runs_that_do_not_know_their_samples_are_answered_with_the_option(tmp_path):
    with pytest.raises(MemlabError, match="do not say how many samples the training set has: give the number"):
        advise(collect([small_sweep(tmp_path)]).runs, TrainingGoal(tokens=512))
