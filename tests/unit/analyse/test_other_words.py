"""What a command used where conf/ has no word for it: known, shown, and never a ZeRO stage or DeepSpeed's precision."""

from dataclasses import replace

import pytest
from folders import make_config, make_record, write

from memlab.analyse.collect import read_run
from memlab.analyse.command_facts import other_words
from memlab.analyse.diff import compare
from memlab.analyse.identity import subject_of
from memlab.analyse.table import points_table
from memlab.cli.main import main
from memlab.core.config import Measure, Training
from memlab.core.record import Record

UNKNOWN = ["model", "zero_stage", "offload", "precision", "data"]


def command_record(**facts) -> Record:
    training = Training(loop="command", command="python train.py")
    config = make_config(stage=0, training=training, measure=Measure(steps=4, protocol="cold"))
    record = make_record(config, {"training": "command"})
    words = {"words": ["python", "train.py"], "exit_code": 0, "steps": None, "disagreements": []}
    ranks = [{**rank, "attached": facts} for rank in record.ranks]
    return replace(record, run_id="a-command", unknown_config=UNKNOWN, command=words, ranks=ranks)


def model(*wrappers: str) -> dict:
    return {"trained": True, "parameters": 8, "dtypes": {"float32": 8}, "wrappers": list(wrappers)}


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (
            {"models": [model("DistributedDataParallel")]},
            {
                "zero_stage": "no DeepSpeed, DistributedDataParallel",
                "precision": "float32 parameters, perhaps torch.autocast",
                "offload": "no DeepSpeed",
            },
        ),
        (
            {"models": [model("FSDPModule")], "accelerate": {"mixed_precision": "no"}},  # FSDP may offload
            {"zero_stage": "no DeepSpeed, FSDPModule", "precision": "float32 parameters, no mixed precision"},
        ),
        (
            {
                "models": [model()],
                "accelerate": {"mixed_precision": "bf16"},
                "datasets": [{"name": "train.jsonl", "bytes": 9}],
            },
            {
                "zero_stage": "no DeepSpeed",
                "precision": "float32 parameters, mixed precision bf16",
                "offload": "no DeepSpeed",
                "data": "train.jsonl",
            },
        ),
        ({"models": [model("DeepSpeedEngine")], "deepspeed": [{"zero": {}}]}, {}),
        ({}, {}),
    ],
    ids=["ddp", "fsdp2", "accelerate", "deepspeed", "nothing found"],
)
def test_words_from_the_facts_of_a_rank(facts, told):
    assert other_words(command_record(**facts)) == told


def test_only_of_what_the_configuration_lacks():
    record = replace(command_record(models=[model()]), unknown_config=["precision"])
    assert list(other_words(record)) == ["precision"]
    assert other_words(make_record()) == {}


def test_a_diff_compares_them_and_does_not_call_them_unknown(tmp_path):
    own = read_run(write(tmp_path, make_record()))
    command = read_run(write(tmp_path, command_record(models=[model("DistributedDataParallel")])))
    comparison = compare([own, command])
    changes = {change.key: change.values for change in comparison.values}
    assert changes["zero_stage"] == (own.choices["zero_stage"], "no DeepSpeed, DistributedDataParallel")
    unknown = next(warning for warning in comparison.warnings if "Not known of a-command" in warning)
    assert "model" in unknown and "zero_stage" not in unknown and "precision" not in unknown


def test_a_table_of_commands_whose_model_is_not_known(tmp_path):
    run = read_run(write(tmp_path, command_record(deepspeed=[{"zero": {}}])))
    stage3 = replace(run, config={**run.config, "zero_stage": {"stage": 3}})  # DeepSpeed's formula asks for the layers
    assert points_table([stage3])["estimate_deepspeed_bytes"].isna().all()
    assert subject_of(run).startswith("unknown model on")


def test_a_table_with_a_command_names_the_folders(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    write(tmp_path, make_record())
    write(tmp_path, command_record(models=[model()]))
    with pytest.raises(SystemExit):
        main(["table", str(tmp_path)])
    assert "a-command" in capsys.readouterr().out
