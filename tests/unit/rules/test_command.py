"""What a trainer of conf/training/ does not take is unsupported: the reason names key, trainer and another value."""

import sys

import pytest

from memlab.launch.preflight import check
from memlab.rules.unsupported import unsupported

TRAINERS = {"trl_sft": [], "trl_dpo": [], "hf_run_clm": ["training.script=run_clm.py"], "accelerate_fsdp2": []}
MODEL = ["model=hf", "model.path=owner/name", "hardware=h200_x8"]


def reasons(composed, trainer: str, *words: str) -> list[str]:
    return unsupported(composed(f"training={trainer}", *TRAINERS[trainer], *MODEL, *words)[0], None)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_a_trainer_takes_is_supported(composed, trainer):
    taken = ["zero_stage=zero3", "batch.micro=4", "seq_len.tokens=64", "checkpointing=full", "allocator=expandable"]
    assert (
        reasons(composed, trainer, *taken, "optimizer=adafactor", "optimizer.lr=1e-4", "seed=3", "kernels=liger") == []
    )
    assert reasons(composed, trainer) == []


@pytest.mark.parametrize(
    ("trainer", "word", "reason"),
    [
        ("hf_run_clm", "attention=eager", "hf_run_clm has no word for attention.implementation=eager; instead: "),
        ("hf_run_clm", "data.text_field=body", "no word for data.text_field=body; instead: data.text_field=text"),
        ("trl_dpo", "data=sample", "no word for data.source=sample; instead: data.source=random,jsonl"),
        ("trl_sft", "model.overrides.num_hidden_layers=2", 'no word for model.overrides={"num_hidden_layers": 2}'),
        ("trl_sft", "adapter.rank=8", "no word for adapter.rank=8; instead: adapter.rank=16"),
        ("accelerate_fsdp2", "zero_stage=zero1", "no word for zero_stage.stage=1; instead: zero_stage.stage=2,3"),
        ("accelerate_fsdp2", "offload.optimizer=cpu", "no word for offload.optimizer=cpu; instead: "),
        ("accelerate_fsdp2", "deepspeed.steps_per_print=3", 'no word for deepspeed={"steps_per_print": 3}'),
    ],
)
def test_what_it_does_not_take_is_unsupported(composed, trainer, word, reason):
    [found] = reasons(composed, trainer, word)
    assert reason in found


def test_a_shape_of_memlabs_own_is_no_model_of_a_trainer(composed):
    assert unsupported(composed("training=trl_sft")[0], None) == [
        "no folder holds memlab/tiny; instead: model=hf model.path=<id of the hub, or a folder>"
    ]


def test_a_value_without_words_ends_its_own_points_alone(composed):
    words = ["training.script=-m train", f"training.command={sys.executable}", *MODEL]
    points = [composed("training=hf_run_clm", *words, word)[0] for word in ("attention=sdpa", "attention=eager")]
    check(points)
    assert [bool(unsupported(point, None)) for point in points] == [False, True]


def test_a_plain_command_says_nothing_about_values(composed):
    words = ("training=command", "training.command='python train.py'", *MODEL, "attention=eager")
    assert unsupported(composed(*words)[0], None) == []
