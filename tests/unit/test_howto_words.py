"""Words of other libraries: what memlab answers is what docs/howto/words.md says, and what memlab composes."""

import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from memlab.core.config import GROUPS, Config
from memlab.core.deepspeed_json import applies
from memlab.core.foreign_words import ELSEWHERE, OF_DEEPSPEED, OF_TRAINING_ARGUMENTS, foreign_word
from memlab.core.plan import Plan, make_plan
from memlab.files.conf_files import config_of, default_options, parse_yaml

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "words.md"

COMPOSED, OTHERS = PAGE.read_text(encoding="utf-8").split("Words of other")

ROWS = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", COMPOSED, re.MULTILINE)
"""(words of memlab, cell of the TrainingArguments, cell of the DeepSpeed JSON)."""

USED = set(GROUPS) - {"training", "hardware", "predict", "sweep"}
"""Groups whose default options are composed; the files of the others hold defaults, or ask the machine."""

TOLD = {"max_steps", "num_train_epochs", "train_batch_size", "output_dir", "cpu_offload", "cpu_offload_param"}
TOLD |= {"cpu_offload_use_pin_memory", "stage3_gather_fp16_weights_on_model_save", "activation_checkpointing"}
"""Words whose answer says where to look, and DeepSpeed's old words: memlab composes no value of theirs."""


def plan_of(words: str) -> Plan:
    """The plan of words for launch.py on one GPU, without the time that Hydra takes."""
    given = dict(word.split("=", 1) for word in ["hardware=h200_x1", *words.split()])
    options = {key: option for key, option in given.items() if key in GROUPS}
    values = {key: parse_yaml(value) for key, value in given.items() if key not in GROUPS}
    choices = {key: option for key, option in default_options().items() if key in USED} | options
    return make_plan(config_of(choices, values), choices)


def at(composed: dict, path: str):
    """The value at a dotted path; empty if the path is not there."""
    return reduce(lambda values, key: values.get(key, {}), path.split("."), composed)


@pytest.mark.parametrize("words, arguments, json", ROWS, ids=[row[0] for row in ROWS])
def test_each_row_is_what_memlab_answers(words, arguments, json):
    for cell, table in ((arguments, OF_TRAINING_ARGUMENTS), (json, OF_DEEPSPEED)):
        for path, value in re.findall(r"`([\w.]+): (.+?)`", cell):
            assert foreign_word(path, value) == words and path in table


def test_each_row_of_the_other_words_is_what_memlab_answers():
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", OTHERS, re.MULTILINE)
    told = [(here, *word) for here, there in rows for word in re.findall(r"`([\w]+)=([^`]+)`", there)]
    assert [(here, foreign_word(name, value)) for here, name, value in told if name in ELSEWHERE] == [
        (here, here) for here, name, _ in told if name in ELSEWHERE
    ]
    assert {name for _, name, _ in told} - {"zero_stage"} == set(ELSEWHERE)


def test_the_page_names_every_word():
    of_zero = {key for key in OF_DEEPSPEED if key.startswith(("zero_optimization.", "activation_checkpointing."))}
    assert len(of_zero) > 40
    for word in {*OF_TRAINING_ARGUMENTS, *OF_DEEPSPEED} - of_zero:
        assert f"`{word}" in COMPOSED, word


def another(default: Any) -> str:
    """A value of a field as typed on the command line, other than its default."""
    others = {bool: str(not default).lower(), int: "7", float: "0.5", dict: "{a:1}"}
    return others.get(type(default), "elsewhere")


def samples() -> Iterator[tuple[str, str, str]]:
    """Each word with a value that it has on the page, or that is not the default of the field here."""
    on_page = dict(re.findall(r"`([\w.]+): (.+?)`", COMPOSED))
    for name, table in (("training_args", OF_TRAINING_ARGUMENTS), ("deepspeed", OF_DEEPSPEED)):
        for path, here in table.items():
            if set(path.split(".")) & TOLD and name == "deepspeed":
                continue
            if isinstance(here, dict):
                yield from ((name, path, value) for value, words in here.items() if words != "hardware=auto")
            elif path not in TOLD:
                group, _, field = here.rpartition("=")[0].rpartition(".")
                yield name, path, on_page.get(path) or another(getattr(getattr(Config(), group), field))


@pytest.mark.parametrize(("part", "path", "value"), [*samples()])
def test_the_words_here_compose_the_value_there(part, path, value):
    """Every word of the two tables, on the page or not, with what makes DeepSpeed read it."""
    words, key = foreign_word(path, value), path.rpartition(".")[2]
    stage = 2 if applies(key, 2) and "offload" not in path else 3
    needed = f"zero_stage=zero{stage}" if stage == 3 or path.startswith("zero_optimization.") else ""
    offload = "" if key == "device" or "offload" not in path else "offload=all_nvme"
    found = at(
        getattr(plan_of(f"{needed} {offload} {words}"), part), path.replace("activation_", "gradient_")
    )  # transformers' older name
    assert found == parse_yaml(value) or str(found) == value or (not found and value in ("false", "none"))


@pytest.mark.parametrize(
    ("word", "here"),
    [
        ("gradient_accumulation_steps=4", "batch.accumulation=4"),
        ("stage=2,3", "zero_stage=zero2,zero3"),
        ("lora_target_modules=[q_proj,v_proj]", "adapter=lora adapter.target_modules=[q_proj,v_proj]"),
        ("torch_dtype=auto", "precision=bf16 or precision=fp16 or precision=fp32"),
        ("optimizer.learning_rate=1e-4", "optimizer.lr=1e-4"),
        ("overlap_comm=false", "zero_stage.overlap_comm=false"),
        ("path=x", "model.path=x or data.path=x"),
        ("offload_optimizer.device=cpu", "offload=optimizer"),
        ("offload_param.pin_memory=true", "offload.pin_memory=true"),
    ],
)
def test_a_word_of_another_library_has_its_word_here(word, here):
    assert foreign_word(*word.split("=")) == here


def test_other_words_have_none():
    assert foreign_word("zero_stge") is None and foreign_word("accelerator.device") is None
