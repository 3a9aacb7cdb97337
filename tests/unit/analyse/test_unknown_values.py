"""Runs of commands of which not every key is known: what is not known is never shown, compared or drawn as a value."""

import json
from dataclasses import replace

import pytest
from folders import make_config, make_record, write

from memlab.analyse.collect import read_run
from memlab.analyse.diff import compare
from memlab.analyse.identity import has_point, labels
from memlab.analyse.table import points_table, steps_table
from memlab.cli.main import main
from memlab.core.config import Measure, Training
from memlab.core.record import Record
from memlab.runs.folder import RunFolder

COMMAND = {
    "training": Training(loop="command", command="python train.py"),
    "measure": Measure(steps=4, protocol="cold"),
}


def command_record(*unknown: str, **changes) -> Record:
    record = make_record(make_config(stage=0, **COMMAND), {"training": "command"})
    words = {"words": ["python", "train.py"], "exit_code": 0, "steps": None, "disagreements": []}
    return replace(record, run_id="a-command", unknown_config=list(unknown), command=words, **changes)


def test_the_file_lacks_what_is_not_known_and_names_it(tmp_path):
    path = write(tmp_path, command_record("zero_stage", "precision.dtype"))
    values = json.loads((path / RunFolder.RECORD).read_text())
    assert "zero_stage" not in values["config"] and "dtype" not in values["config"]["precision"]
    assert values["unknown_config"] == ["zero_stage", "precision.dtype"]
    assert RunFolder(path).read_record().unknown_config == values["unknown_config"]


def test_a_cell_of_what_is_not_known_is_empty(tmp_path):
    runs = [read_run(write(tmp_path, command_record("zero_stage"))), read_run(write(tmp_path, make_record()))]
    frame = points_table(runs)
    assert frame["zero_stage"].isna().tolist() == [True, False]
    assert "zero_stage.stage" not in frame  # known of one run alone: nothing to compare


def test_a_diff_names_what_is_not_known_and_the_other_protocol(tmp_path):
    base = read_run(write(tmp_path, make_record()))
    comparison = compare([base, read_run(write(tmp_path, command_record("zero_stage", "precision.dtype")))])
    assert "zero_stage.stage" not in {change.key for change in comparison.values}
    assert any("perhaps different too: zero_stage, precision.dtype" in warning for warning in comparison.warnings)
    assert any("protocol cold" in warning for warning in comparison.warnings)


@pytest.mark.parametrize("words", [["fit"], ["advise", "--samples", "8", "--seq-len", "512", "--effective-batch", "2"]])
def test_what_needs_the_length_leaves_out_runs_without_one(tmp_path, capsys, words):
    write(tmp_path, command_record("seq_len"))
    assert not has_point(read_run(tmp_path / "a-command"))
    with pytest.raises(SystemExit):
        main([words[0], str(tmp_path), *words[1:]])
    told = capsys.readouterr().err
    assert "a-command: left out, since its batch or length is not known" in told
    assert "of no run are batch and length known" in told and "no readable run" not in told


def test_the_steps_of_a_command_show_their_batches(tmp_path):
    record = command_record()
    ranks = [{**rank, "attached": {}, "warmup_seconds": [1.0]} for rank in record.ranks[:1]]
    path = write(tmp_path, replace(record, ranks=ranks))
    rows = [{"step": step, "seconds": 0.5, "tokens": 10 * step, "longest_sample": step} for step in (1, 2)]
    RunFolder(path).step_rows(0).write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame, problems = steps_table([read_run(path)])
    assert problems == [] and frame["tokens"].tolist() == [10, 20]
    assert frame["step"].tolist() == [1, 2] and frame["warmup"].tolist() == [True, False]


def test_configurations_of_several_scripts_are_named_by_them(tmp_path):
    record = command_record()
    runs = []
    for script in ("ddp.py", "fsdp.py"):
        training = replace(record.config.training, command=f"torchrun tests/{script} --steps 4")
        config = replace(record.config, training=training)
        runs.append(read_run(write(tmp_path / script, replace(record, config=config))))
    assert [label.split()[0] for label in labels(runs)] == ["ddp.py", "fsdp.py"]
    assert not any(label.startswith("ddp.py") for label in labels(runs[:1]))
