"""Values of scripts as JSON, without secrets."""

import math
from pathlib import Path

import pytest

from memlab.meters.plain import BLANK, plain


def test_values_become_plain():
    assert plain({"a": (1, 2.5, math.nan), "b": Path("x"), 3: {None}}) == {"a": [1, 2.5, None], "b": "x", "3": [None]}


@pytest.mark.parametrize(
    "name", ["hub_token", "push_to_hub_token", "wandb_api_key", "password", "client_secret", "token"]
)
def test_secrets_are_blank(name):
    assert plain({"values": {name: "hf_abc"}}) == {"values": {name: BLANK}}


@pytest.mark.parametrize(
    "name", ["eos_token", "pad_token", "max_new_tokens", "tokenizer", "include_num_input_tokens_seen"]
)
def test_tokens_of_a_vocabulary_stay(name):
    assert plain({name: "</s>"}) == {name: "</s>"}


def test_a_value_that_holds_itself_ends():
    loop: dict = {}
    loop["loop"] = loop
    assert "loop" in plain(loop)
