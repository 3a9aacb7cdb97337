"""A run folder explained: a rank that cannot be explained does not end the others, and is told with what to do."""

import shutil

import pytest
from folders import make_config, make_record, write
from recordings import MIB, keep, marks, snapshot

from memlab.analyse.explain.explained_run import explain
from memlab.core.errors import RecordError
from memlab.core.record import Record
from memlab.prediction.traces.store import code_digest
from memlab.runs.folder import RunFolder
from memlab.simulator.trace.events import Alloc, BeginPhase
from memlab.simulator.trace.trace_format import Site, Trace

COMMAND = {"words": ["python", "my train.py"], "exit_code": 0}
AGAIN = "Measure again: memlab measure --explain -- python 'my train.py'"


@pytest.fixture
def folder(tmp_path):
    """A measured command of two ranks; rank 0 has a history."""
    return kept(tmp_path, make_record())


def kept(place, record: Record) -> RunFolder:
    record.command = COMMAND
    folder = RunFolder(write(place, record))
    keep(folder, 0, snapshot(), marks())
    return folder


def empty(folder: RunFolder) -> None:
    keep(folder, 1, {**snapshot(), "device_traces": [[]], "segments": []}, marks())


def truncated(folder: RunFolder) -> None:
    keep(folder, 1, snapshot(), marks())
    folder.snapshot_file(1).write_bytes(folder.snapshot_file(1).read_bytes()[:-9])


def older(folder: RunFolder) -> None:
    keep(folder, 1, snapshot(), {key: value for key, value in marks().items() if key != "outside"})


def half(folder: RunFolder) -> None:
    keep(folder, 1, snapshot(), marks())
    folder.memory_marks(1).unlink()


FAULTS = {
    empty: "rank1.memory_snapshot.pickle: the history is empty: nothing was allocated on the GPU",
    truncated: "rank1.memory_snapshot.pickle: unreadable as a pickle file",
    older: "rank1.memory_marks.json: not the marks of a memory history ('outside' is missing.)",
    half: "rank1.memory_marks.json: no such file",
    (lambda folder: None): "no memory history is in this folder",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_cannot_be_explained_is_left_out_and_told(folder, fault):
    fault(folder)
    run = explain(folder)
    assert [rank.rank for rank in run.ranks] == [0] and run.shown.peak.requested == 2 * MIB
    (line,) = run.problems
    assert line.startswith(f"{folder}: rank 1 is left out: {FAULTS[fault]}")


def test_a_rank_can_be_chosen(folder):
    keep(folder, 1, snapshot(), marks())
    assert [explain(folder, wanted).shown.rank for wanted in (None, 0, 1)] == [0, 0, 1]
    with pytest.raises(RecordError, match=r"rank 2 has no memory history\. Choose one of: 0, 1\."):
        explain(folder, 2)


@pytest.mark.parametrize("fault", FAULTS)
def test_where_no_rank_can_be_explained_the_line_says_how_to_measure_again(folder, fault):
    for file in (folder.snapshot_file(0), folder.memory_marks(0)):
        file.unlink()
    fault(folder)
    with pytest.raises(RecordError) as refused:
        explain(folder)
    line = str(refused.value)
    assert line.startswith(f"{folder}: ") and FAULTS[fault] in line and line.endswith(f". {AGAIN}")


def test_ranks_without_a_history_share_a_line(tmp_path):
    config = make_config()
    config.hardware.gpus = 12
    (line,) = explain(kept(tmp_path, make_record(config))).problems
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 more are left out: no memory history" in line


def test_a_history_without_a_record_of_its_rank_is_explained(tmp_path):
    """memlab was stopped before the ranks had written their files."""
    folder = kept(tmp_path, make_record(status="interrupted"))
    assert [rank.rank for rank in explain(folder).ranks] == [0]


def predicted_command(place, *requested: int, **environment) -> RunFolder:
    """A command of two ranks, predicted by this code. The trace of each rank requests so many bytes at once; the record
    says that each had 3 MiB."""
    record = make_record()
    record.source, record.command = "predicted", COMMAND
    record.environment |= {"predictor": code_digest(), **environment}
    for result in record.ranks:
        result["peak_allocated_bytes"] = 3 * MIB
    folder = RunFolder(write(place, record))
    site = Site("weights", "aten.empty.memory_format", "model.py:7", "load", "mlp", (MIB,))
    for rank, nbytes in enumerate(requested):
        events = [BeginPhase(0), *([Alloc(0, nbytes, 0, 0)] if nbytes else [])]
        trace = Trace(rank, 2, events=events, phases=["load"], sites=[site])
        trace.save(folder.path / f"rank{rank}.trace.json")
    return folder


def test_a_command_that_other_code_predicted_is_explained_with_a_warning(tmp_path):
    folder = predicted_command(tmp_path, 3 * MIB, 3 * MIB, predictor="of last month")
    assert explain(folder).problems == [
        f"{folder}: other code of memlab made this prediction; its traces are explained as they are. "
        "Predict the command again."
    ]


def test_a_trace_of_another_prediction_is_told(tmp_path):
    assert explain(predicted_command(tmp_path / "right", 3 * MIB, 3 * MIB)).problems == []
    folder = predicted_command(tmp_path / "wrong", 3 * MIB, 5 * MIB)
    assert explain(folder).problems == [
        f"{folder}: the trace of rank 1 has a peak of 5,242,880 bytes of allocated memory, and the record has one of "
        "3,145,728: they are of two predictions. Predict the command again."
    ]


def test_a_predicted_rank_without_memory_on_the_gpu_is_left_out(tmp_path):
    folder = predicted_command(tmp_path, 3 * MIB, 0)
    run = explain(folder)
    assert [rank.rank for rank in run.ranks] == [0]
    assert run.problems == [
        f"{folder}: rank 1 is left out: rank 1 got no memory on the GPU: there is nothing to explain."
    ]
    (folder.path / "rank0.trace.json").unlink()
    with pytest.raises(RecordError, match=r"rank 1 got no memory on the GPU: there is nothing to explain\.$"):
        explain(folder)


def test_a_folder_that_was_moved_is_explained(folder, tmp_path):
    shutil.move(folder.path, tmp_path / "elsewhere")
    assert explain(RunFolder(tmp_path / "elsewhere")).shown.rank == 0


def entries(snapshot: dict) -> list[dict]:
    return snapshot["device_traces"][0]


CONTRADICTIONS = {
    "damaged: the allocator gives more memory back than it has": lambda found: found["segments"].clear(),
    "damaged: the program holds more than the allocator has": lambda found: entries(found)[1].update(size=9 * MIB),
    "not a memory snapshot of torch (size: -5 is not possible)": lambda found: entries(found)[1].update(size=-5),
    "not a memory snapshot of torch (addr: 18446744073709551616 is not": lambda found: entries(found)[1].update(
        addr=2**64
    ),
    "rank0.memory_snapshot.pickle: 'allocator.conf': PyTorch's allocator has no option 'dance'": lambda found: found[
        "allocator_settings"
    ].update(PYTORCH_CUDA_ALLOC_CONF="dance:True"),
}


@pytest.mark.parametrize("problem", CONTRADICTIONS)
def test_a_history_that_contradicts_itself_is_refused(folder, problem):
    found = snapshot()
    CONTRADICTIONS[problem](found)
    keep(folder, 0, found, marks())
    with pytest.raises(RecordError) as refused:
        explain(folder)
    assert problem in str(refused.value) and str(refused.value).endswith(AGAIN)


def exchange(folder: RunFolder) -> None:
    first, second = (folder.snapshot_file(rank).read_bytes() for rank in (0, 1))
    folder.snapshot_file(0).write_bytes(second)
    folder.snapshot_file(1).write_bytes(first)


def test_the_histories_of_two_ranks_exchanged_are_refused(folder):
    """Both ranks did the same at the same time; the marks name the file that they were written with."""
    for rank in (0, 1):
        keep(folder, rank, snapshot() | {"process": rank}, marks())
    assert [rank.rank for rank in explain(folder).ranks] == [0, 1]
    exchange(folder)
    with pytest.raises(RecordError) as refused:
        explain(folder)
    for rank in (0, 1):
        files = f"rank{rank}.memory_marks.json: not from the recording of rank{rank}.memory_snapshot.pickle"
        assert files in str(refused.value)


ODD = {
    "a block is freed twice": lambda found: entries(found).extend(
        3 * [{**entries(found)[1], "action": "free_requested", "time_us": 50}]
    ),
    "an unknown action": lambda found: entries(found)[2].update(action="dance"),
    "a label that is no number": lambda found: entries(found)[2].update(user_metadata="²|x"),
    "a label of too many digits": lambda found: entries(found)[2].update(user_metadata="9" * 5000 + "|x"),
    "no settings": lambda found: found.pop("allocator_settings"),
}


@pytest.mark.parametrize("fault", ODD)
def test_an_odd_action_does_not_end_the_explanation(folder, fault):
    found = snapshot()
    ODD[fault](found)
    keep(folder, 0, found, marks())
    assert explain(folder).shown.rank == 0


def reading(marks: dict) -> dict:
    return marks["outside"]["devices"]["0"]["readings"][0]


DAMAGES = {
    "'pieces[0].phase' must be text, or null": lambda marks: marks["pieces"][0].update(phase=5),
    "'pieces[1].step' must be at least 0": lambda marks: marks["pieces"][1].update(step=-3),
    "'outside.devices.0.readings[0].used_bytes' must be a whole number": lambda marks: reading(marks).update(
        used_bytes=1e300
    ),
    "'outside.devices.0.readings[0].phase' must be text, or null": lambda marks: reading(marks).update(phase=["x"]),
    "list index out of range": lambda marks: marks["owners"].update(looks={"0": {"4096": 7}}),
    "'owners.list[0]' must be a list": lambda marks: marks["owners"].update(list=["weights"]),
}


@pytest.mark.parametrize("problem", DAMAGES)
def test_damaged_marks_are_told_by_the_key(folder, problem):
    damaged = marks()
    DAMAGES[problem](damaged)
    keep(folder, 0, snapshot(), damaged)
    with pytest.raises(RecordError) as refused:
        explain(folder)
    assert problem in str(refused.value) and str(refused.value).endswith(AGAIN)


def test_how_a_run_without_a_result_ended_is_told(tmp_path):
    record = make_record(status="failed")
    record.reason, record.command = "the script could not be imported.", COMMAND
    with pytest.raises(RecordError, match=r"folder\. The run ended as failed: the script could not be imported\. Meas"):
        explain(RunFolder(write(tmp_path, record)))
