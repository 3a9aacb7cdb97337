"""The unit that is run: what it is equal to, when it is over, and what it writes."""

import pytest

from memlab.core.plan import engine_key
from memlab.core.record import STATUSES
from memlab.files.json_file import read_json
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job, by_kind
from memlab.system.machine import Machine

CPU = Machine()
ELSEWHERE = Machine(driver="580.1")


@pytest.mark.parametrize("status", STATUSES)
def test_only_what_would_come_out_the_same_counts_as_finished(job, status):
    written = job().record_without_running(CPU, status, "because")
    is_final = status in ("ok", "gpu_oom", "host_oom")  # whether it is supported is asked anew
    assert job().finished(CPU) == (written if is_final else None)
    assert job().finished(ELSEWHERE) is None


@pytest.mark.parametrize(
    ("status", "reason", "seen"), [("gpu_oom", "implied by x", False), ("gpu_oom", "rank 0", True)]
)
def test_what_was_only_implied_may_count_as_not_finished(job, status, reason, seen):
    written = job().record_without_running(CPU, status, reason)
    assert job().finished(CPU) == written
    assert job().finished(CPU, also_implied=False) == (written if seen else None)


@pytest.mark.parametrize("text", [None, "", "{", '{"schema_version": 99}'])
def test_a_folder_without_a_readable_record_is_not_finished(job, text):
    if text is not None:
        job().folder.path.mkdir(parents=True)
        (job().folder.path / "record.json").write_text(text)
    assert job().finished(CPU) is None


def test_the_record_of_another_configuration_is_not_its_own(job):
    job({"seed": 1}, name="same").record_without_running(CPU, "ok", "")
    assert job({"seed": 1}, name="same").finished(CPU) is not None
    assert job({"seed": 2}, name="same").finished(CPU) is None


@pytest.mark.parametrize(
    ("changes", "same_engine", "same_subject"),
    [
        ({"seq_len.tokens": 7}, True, False),
        ({"batch.micro": 7}, True, False),
        ({"measure.timeout_s": 7, "name": "x", "sweep.prune": False}, True, True),
        ({"measure.repeat": 2}, False, True),
        ({"batch.accumulation": 2}, False, False),
        ({"zero_stage.stage": 3}, False, False),
        ({"seed": 1}, False, False),
    ],
)
def test_what_may_share_a_launch_and_what_is_a_repeat(job, changes, same_engine, same_subject):
    assert (engine_key(job(changes).config) == engine_key(job().config)) is same_engine
    assert (job(changes).subject_key == job().subject_key) is same_subject


def test_jobs_of_commands_come_after_those_of_memlabs_own_training(job):
    command = {"training.loop": "command", "training.command": "train"}
    own, first, second = job(), job(command), job({**command, "seed": 1})
    assert by_kind([first, own, second]) == [[own], [first, second]] and by_kind([second]) == [[second]]


def test_its_size_is_the_tokens_of_a_forward_pass(job):
    assert job({"seq_len.tokens": 100, "batch.micro": 3, "batch.accumulation": 9}).size == 300


def test_what_is_recorded_without_running_has_everything_but_figures(job):
    record = job().record_without_running(CPU, "gpu_oom", "implied by x")
    assert job().folder.read_record() == record
    assert (record.status, record.reason, record.isolation, record.ranks) == ("gpu_oom", "implied by x", "fresh", [])
    assert (record.run_id, record.choices) == (job().plan.run_id, {"model": "tiny"})
    assert read_json(job().folder.path / "plan.json")["command"] == []


def test_what_composed_it_is_saved_before_it_starts_and_not_earlier(job, tmp_path):
    prepared = []
    one = Job(job().plan, RunFolder(tmp_path / "new"), lambda: prepared.append((tmp_path / "new").is_dir()))
    assert prepared == [] and not (tmp_path / "new").exists()
    one.start(["words"])
    assert prepared == [True]
    assert read_json(tmp_path / "new" / "plan.json")["command"] == ["words"]


def test_a_measured_record_is_of_the_slowest_rank_and_says_which_repeat(job, rank):
    ranks = [rank(0, timing={"init_s": 1.0}), rank(1, timing={"init_s": 3.0}, step_seconds=[0.9, 0.1, 0.1])]
    record = job({"measure.repeat": 2}).measured_record(CPU, ranks, 9.0, status="ok", isolation="shared")
    assert record.timing == {"init_s": 3.0, "total_s": 9.0}
    assert record.steps["seconds"] == [0.9, 0.4, 0.6]
    assert (record.steps["repeat"], record.isolation) == (2, "shared")
    assert record.environment["cuda"] == "13.0" and "runtime" not in record.ranks[0]


def test_ranks_that_measured_nothing_make_a_record_too(job):
    record = job().measured_record(CPU, [], 9.0, status="failed")
    assert (record.ranks, record.steps["seconds"], record.timing) == ([], [], {"total_s": 9.0})
