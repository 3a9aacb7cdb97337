"""Data sets for trainers: random texts and pairs in a file that points share, or a link to a file."""

import json

import pytest

from memlab.core.errors import ConfigError
from memlab.files.training_data import check_data, training_data


@pytest.fixture
def point(config, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def build(place: str, **changes):
        command = {"training.loop": "command", "training.command": f"train {{{place}}}", "seq_len.tokens": 16}
        return config(command | {key.replace("__", "."): value for key, value in changes.items()})

    return build


def rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "train.json").read_text().splitlines()]


def test_random_texts_have_a_word_for_each_token_and_enough_rows_for_all_steps(point):
    steps = {"measure__warmup": 2, "measure__steps": 3, "data__text_field": "body"}
    folder = training_data(point("data_dir", batch__micro=3, **steps))
    found = rows(folder)
    assert len(found) == 32  # 3 samples on 2 ranks for 5 steps, rounded up to a power of two
    assert {len(row["body"].split()) for row in found} == {16}
    assert training_data(point("data_dir", batch__micro=2, **steps)) == folder
    assert training_data(point("batch.micro")).name == ""


def test_pairs_are_longer_than_a_sample(point):
    row = rows(training_data(point("pairs_dir")))[0]
    assert row.keys() == {"prompt", "chosen", "rejected"} and len(row["chosen"].split()) == 16


def test_pairs_and_texts_of_any_field_have_folders_of_their_own_in_the_cache(point, tmp_path):
    texts = [point("data_dir", data__text_field=field) for field in ("pairs", "../text")]
    folders = [training_data(each) for each in (*texts, point("pairs_dir", data__text_field="pairs"))]
    assert len(set(folders)) == 3 and len({folder.parent for folder in folders}) == 1
    assert rows(folders[2])[0].keys() == {"prompt", "chosen", "rejected"}


def test_a_file_is_linked_under_the_name_that_trainers_know(point, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text": "a"}\n')
    made = point("data_dir", data__source="jsonl", data__path=str(file))
    for _ in range(2):
        assert rows(training_data(made)) == [{"text": "a"}]
    assert len(rows(training_data(point("data_dir", data__source="sample")))) > 100
    file.unlink()
    with pytest.raises(ConfigError, match=r"data\.path="):
        check_data(made)
