"""The table. Its column names are part of the public surface: scripts and notebooks use them."""

from folders import MIB, make_config, make_record, write

from memlab.analyse.collect import collect
from memlab.analyse.identity import select
from memlab.analyse.table import phases_table, points_table, ranks_table, steps_table
from memlab.core.config import Offload
from memlab.runs.folder import RunFolder

COLUMNS = """
run_id path source status reason isolation fingerprint
model zero_stage offload allocator checkpointing seq_len batch precision attention optimizer adapter kernels data
training hardware measure predict sweep
model.path seq_len.tokens batch.micro batch.accumulation hardware.gpu hardware.gpus hardware.memory_gib
hardware.usd_per_gpu_hour
offload.optimizer
environment_torch
peak_allocated_bytes_max peak_allocated_bytes_mean peak_allocated_bytes_min
peak_reserved_bytes_max peak_reserved_bytes_mean peak_reserved_bytes_min
parameters first_loss last_loss
step_seconds step_seconds_mean step_seconds_min step_seconds_max step_seconds_spread
iterations_per_second samples_per_second tokens_per_second tokens_per_second_per_gpu usd_per_million_tokens
usd timing_total_s
estimate_deepspeed_bytes estimate_deepspeed_error estimate_accelerate_bytes estimate_accelerate_error
incomplete
"""

PHASE_COLUMNS = [
    "run_id",
    "path",
    "rank",
    "phase",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "end_allocated_bytes",
]

STEP_COLUMNS = ["run_id", "path", "rank", "step", "warmup", "seconds", "loss"]


def runs_in(folder):
    write(folder, make_record())
    other = make_record(make_config(offload=Offload(optimizer="cpu")), {"zero_stage": "zero2", "offload": "optimizer"})
    other.environment["torch"] = "2.8.0"
    write(folder, other)
    return collect([folder]).runs


def test_a_key_of_ones_own_with_the_name_of_a_column_is_named_apart(tmp_path):
    for number in (1, 2):
        write(tmp_path, make_record(make_config(own={"status": f"draft {number}", "step_seconds": 9, "mine": number})))
    runs = collect([tmp_path]).runs
    table = points_table(runs)
    assert list(table["own.status"]) == ["draft 1", "draft 2"] and list(table["status"]) == ["ok", "ok"]
    assert list(table["mine"]) == [1, 2] and {0.5} == {*table["step_seconds"]}
    assert select(runs, ["own.status=draft 2", "mine=2", "status=ok"]) == runs[1:]


def test_the_columns_are_frozen(tmp_path):
    assert list(points_table(runs_in(tmp_path))) == COLUMNS.split()


def test_the_long_forms_are_frozen(tmp_path):
    runs = runs_in(tmp_path)
    ranks, problems = ranks_table(runs)
    assert not problems
    assert {"run_id", "path", "rank", "peak_reserved_bytes", "num_alloc_retries"} <= set(ranks)
    assert len(ranks) == 4
    assert list(phases_table(runs)[0]) == PHASE_COLUMNS
    steps, _ = steps_table(runs)
    assert list(steps) == STEP_COLUMNS
    assert len(steps) == 2 * 2 * 6
    assert steps["warmup"].sum() == 2 * 2 * 2


def test_values(tmp_path):
    frame = points_table(runs_in(tmp_path))
    row = frame[frame["offload"] == "none"].iloc[0]
    assert row["peak_reserved_bytes_max"] == 120 * MIB
    assert row["peak_reserved_bytes_min"] == 118 * MIB
    assert row["usd"] == 0.06
    # ZeRO-2 on 2 GPUs: 2 bytes a parameter, and 18 over 2 GPUs; accelerate: twice the fp32 size.
    assert row["estimate_deepspeed_bytes"] == 11_000_000
    assert row["estimate_accelerate_bytes"] == 8_000_000
    assert row["estimate_accelerate_error"] == 8_000_000 / (120 * MIB) - 1


def test_a_failed_run_has_a_row_with_empty_figures(tmp_path):
    write(tmp_path, make_record())
    write(tmp_path, make_record(make_config(tokens=4096), status="gpu_oom"))
    frame = points_table(collect([tmp_path]).runs)
    assert sorted(frame["status"]) == ["gpu_oom", "ok"]
    assert frame["peak_reserved_bytes_max"].notna().sum() == 1


def test_a_folder_that_vanished_is_told(tmp_path):
    runs = runs_in(tmp_path)
    (RunFolder(runs[0].path).path / RunFolder.RECORD).unlink()
    frame, problems = ranks_table(runs)
    assert len(frame) == 2
    assert "no such file" in problems[0]
