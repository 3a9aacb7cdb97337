"""docs/howto/words.md says what memlab composes: each row of its first table."""

import re
from functools import reduce
from pathlib import Path

import pytest
import yaml

from memlab.cli import compose
from memlab.core.plan import make_plan

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "words.md"

COMPOSED = PAGE.read_text(encoding="utf-8").partition("Words that")[0]

ROWS = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", COMPOSED, re.MULTILINE)
"""(words of memlab, cell of the TrainingArguments, cell of the DeepSpeed JSON)."""


@pytest.mark.parametrize("words, arguments, json", ROWS, ids=[row[0] for row in ROWS])
def test_each_row_is_what_memlab_composes(words, arguments, json):
    config, choices = compose.compose_config(["hardware=h200_x1", *words.split()])
    plan = make_plan(config, choices)
    for cell, composed in ((arguments, plan.training_args), (json, plan.deepspeed)):
        for path, value in re.findall(r"`([\w.]+): (.+?)`", cell):
            found = reduce(lambda at, key: at[key], path.split("."), composed)
            assert found == yaml.safe_load(value) or str(found) == value


def test_the_table_is_read():
    assert len(ROWS) > 12
