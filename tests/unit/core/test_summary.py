"""The figures of a run, from what its ranks say."""

import pytest

from memlab.core.summary import peak_flops, slowest, summarise

H200X2 = {
    **{"hardware.device": "cuda", "hardware.gpu": "H200", "hardware.gpus": 2, "hardware.usd_per_gpu_hour": 3.6},
    **{"hardware.bf16_tflops": 1000.0, "hardware.fp32_tflops": 60.0, "batch.micro": 2, "batch.accumulation": 3},
}


def test_the_keys_are_frozen(config, rank, golden):
    keys = sorted(summarise(config(H200X2), [rank(0), rank(1)], 60.0))
    golden("summary_keys.json", keys, "the keys of Record.summary changed: older records lack them; a CHANGELOG line.")


def test_memory_is_never_summed_over_ranks(config, rank):
    ranks = [rank(0, peak_allocated_bytes=10), rank(1, peak_allocated_bytes=20), rank(2, peak_allocated_bytes=60)]
    assert summarise(config(), ranks, None)["peak_allocated_bytes"] == {"max": 60, "mean": 30, "min": 10}


def test_a_figure_that_no_rank_has_is_left_out_and_one_that_some_have_is_kept(config, rank):
    ranks = [rank(0, peak_active_bytes=None, parameters=None), rank(1, peak_active_bytes=None, process_used_bytes=None)]
    summary = summarise(config(), ranks, None)
    assert "peak_active_bytes" not in summary and "usd" not in summary
    assert summary["process_used_bytes"]["min"] == 4 * 2**30
    assert summary["parameters"] == 1000


def test_a_run_without_a_result_has_no_figures(config):
    assert summarise(config(), [], 10.0) == {}


def test_a_step_takes_as_long_as_its_slowest_rank():
    assert slowest([{"s": [1, 5, 1]}, {"s": [2, 4, 1]}, {"s": []}, {}], "s") == [2, 5, 1]
    assert slowest([], "s") == []


def test_speed(config, rank):
    ranks = [rank(0, step_seconds=[0.5, 0.5, 9.0]), rank(1, step_seconds=[0.1, 0.4, 0.5])]
    summary = summarise(config(H200X2), ranks, None)
    assert (summary["step_seconds"], summary["step_seconds_min"], summary["step_seconds_max"]) == (0.5, 0.5, 9.0)
    assert summary["step_seconds_mean"] == pytest.approx(10 / 3)
    assert summary["iterations_per_second"] == 2
    assert summary["samples_per_second"] == 2 * 3 * 2 / 0.5  # micro x accumulation x ranks
    assert summary["tokens_per_second"] == 24 * 512
    assert summary["tokens_per_second_per_gpu"] == 12 * 512


def test_utilisation_is_of_one_rank_against_one_gpu(config, rank):
    summary = summarise(config(H200X2), [rank(0, step_seconds=[0.5]), rank(1, step_seconds=[0.5])], None)
    assert summary["model_flops_per_second_per_gpu"] == 2e12
    assert summary["model_flops_utilization"] == pytest.approx(2e12 / 1000e12)
    unknown = summarise(config(H200X2 | {"hardware.bf16_tflops": None}), [rank(0)], None)
    assert "model_flops_utilization" not in unknown and "model_flops_per_second_per_gpu" in unknown


@pytest.mark.parametrize(("dtype", "flops"), [("bf16", 1000e12), ("fp16", 1000e12), ("fp32", 60e12)])
def test_the_peak_is_that_of_the_precision(config, dtype, flops):
    assert peak_flops(config(H200X2 | {"precision.dtype": dtype})) == flops


def test_cost_counts_the_whole_run_and_the_price_of_tokens_the_steps(config, rank):
    ranks = [rank(0, step_seconds=[0.5]), rank(1, step_seconds=[0.5])]
    summary = summarise(config(H200X2), ranks, total_s=100.0)
    assert summary["usd"] == pytest.approx(0.2)
    assert summary["usd_per_million_tokens"] == pytest.approx(7.2 / 3600 * 0.5 / (2 * 3 * 2 * 512) * 1e6)


def test_energy_is_told_only_when_every_gpu_told_its_own(config, rank):
    tokens = 3 * 2 * 3 * 2 * 512  # steps x micro x accumulation x ranks x length
    both = summarise(config(H200X2), [rank(0), rank(1)], None)
    assert both["joules_per_token"] == pytest.approx(600 / tokens)
    assert "joules_per_token" not in summarise(config(H200X2), [rank(0), rank(1, energy_joules=None)], None)


def test_losses_and_skipped_steps(config, rank):
    summary = summarise(config(), [rank(0, losses=[]), rank(1, skipped_steps=2)], None)
    assert (summary["first_loss"], summary["last_loss"], summary["skipped_steps"]) == (7.0, 6.5, 0)
