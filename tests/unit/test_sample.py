"""The sample set that ships: well-formed, and covered by its own tokenizer."""

import json
import re
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers")

FOLDER = Path(__file__).parents[2] / "memlab" / "training" / "sample"
VOCABULARY = 2048  # vocab_size of conf/model/tiny.yaml: a larger token id would be outside its embedding


@pytest.fixture(scope="module")
def samples() -> list[dict]:
    return [json.loads(line) for line in (FOLDER / "instructions.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def test_every_sample_is_one_question_and_one_answer(samples):
    for sample in samples:
        assert set(sample) == {"text"}
        assert re.fullmatch(r"### Human: \S[^\n]*\n### Assistant: \S.*", sample["text"], re.DOTALL)
        assert sample["text"] == sample["text"].strip()
        assert sample["text"].count("###") == 2


def test_there_are_enough_samples_of_many_lengths_and_none_twice(samples):
    texts = [sample["text"] for sample in samples]
    assert len(set(texts)) == len(texts) >= 200
    words = sorted(len(text.split()) for text in texts)
    assert words[0] >= 10 and words[-1] <= 200
    assert words[-1] >= 10 * words[0]


def test_the_tokenizer_fits_the_tiny_model(tokenizer):
    assert tokenizer.get_vocab_size(with_added_tokens=True) <= VOCABULARY
    assert max(tokenizer.get_vocab(with_added_tokens=True).values()) < VOCABULARY


def test_every_sample_survives_the_tokenizer(samples, tokenizer):
    for sample in samples:
        encoding = tokenizer.encode(sample["text"])
        assert max(encoding.ids) < VOCABULARY
        assert tokenizer.decode(encoding.ids) == sample["text"]


def test_any_other_text_survives_it_too(tokenizer):
    text = "Grüße, 漢字 and 🙂\n\t  with odd   spaces"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_settings_name_tokens_that_exist(tokenizer):
    settings = json.loads((FOLDER / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert tokenizer.token_to_id(settings["pad_token"]) == 0
    assert tokenizer.token_to_id(settings["eos_token"]) == 1
