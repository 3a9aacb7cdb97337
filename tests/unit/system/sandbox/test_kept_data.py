"""Prepared data that a prediction keeps for later ones of the same script: seen below the real folder, never in it."""

import os
import shutil

import pytest
from sandboxed import contents, run_python

from memlab.system.locks import hold
from memlab.system.sandbox import NAMESPACES, Sandbox, SandboxError, kept_data
from memlab.system.sandbox.kept_data import KeptData, drop_all

PREPARES = """
import os, pathlib
folder = pathlib.Path(os.environ["HF_DATASETS_CACHE"])
print((folder / "json" / "cache-1.arrow").exists())
for name in ("json", "old"):
    (folder / name).mkdir(parents=True, exist_ok=True)
for name in ("json/cache-1.arrow", "json/a.lock", "json/tmpabc", "old/cache-0.arrow"):
    (folder / name).write_text("prepared")
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf" / "datasets"))
    (tmp_path / "hf" / "datasets" / "old").mkdir(parents=True)
    (tmp_path / "hf" / "datasets" / "old" / "cache-0.arrow").write_text("of a real training")
    (tmp_path / "train.py").write_text("train()")
    (tmp_path / "rows.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kept(*words: str) -> KeptData:
    return KeptData(["python", "train.py", *words], os.environ)


def of_script(place, text: str) -> KeptData:
    (place / "train.py").write_text(text)
    return kept()


def layers_of(data: KeptData) -> list[list[str]]:
    with data.layers() as layers:
        return [sorted(str(path.relative_to(layer)) for path in layer.rglob("*.*")) for layer in layers]


def written(place, name: str = "cache-1.arrow", text: str = "prepared"):
    """A folder as the sandbox leaves it."""
    folder = place / "written"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / name).write_text(text)
    return folder


def prepare(variables, place) -> str:
    """Run the script once as a prediction does. Returns what it printed."""
    data = kept()
    (place / "run").mkdir(exist_ok=True)
    try:
        with data.layers() as layers, Sandbox(place / "run", variables, NAMESPACES, (data.folder, layers)) as sandbox:
            printed = run_python(sandbox, PREPARES, place)
            data.keep(sandbox.written_in(data.folder), [str(place / "rows.jsonl")])
            return printed.strip()
    except SandboxError as error:
        pytest.skip(str(error))


def test_the_second_prediction_finds_what_the_first_one_prepared(variables, place):
    before = contents(place / "hf")
    assert [prepare(variables, place) for _ in range(2)] == ["False", "True"]
    assert contents(place / "hf") == before
    assert layers_of(kept()) == [["json/cache-1.arrow"]], "neither what is not finished, nor what is there for real"


def test_a_machine_without_a_folder_of_datasets_gets_none(variables, place):
    shutil.rmtree(place / "hf")
    assert [prepare(variables, place) for _ in range(2)] == ["False", "True"]
    assert not (place / "hf").exists()


def test_data_files_that_changed_end_what_was_made_of_them(place):
    data = kept()
    with data.layers():
        data.keep(written(place), [str(place / "rows.jsonl")])
    assert layers_of(kept("--batch", "8")) == [["cache-1.arrow"]]
    (place / "rows.jsonl").write_text("{} {}")
    assert layers_of(kept()) == []
    (place / "train.py").write_text("train(2)")
    assert layers_of(kept()) == []


@pytest.mark.parametrize("text", ["{", "[]", "\udcff"])
def test_a_layer_whose_sources_are_damaged_is_none(place, text):
    data = kept()
    with data.layers():
        data.keep(written(place), [str(place / "rows.jsonl")])
    [sources] = place.glob("cache/**/sources.json")
    sources.write_text(text, errors="surrogateescape")
    assert layers_of(kept()) == [] and not sources.exists()


def test_the_cache_has_a_limit_and_the_oldest_script_loses_its_data(place, monkeypatch):
    monkeypatch.setattr(kept_data, "LIMIT", 300)
    for text in ("one", "two", "three"):
        data = of_script(place, text)
        with data.layers():
            data.keep(written(place, text=100 * "x"), [])
        assert layers_of(data) == [["cache-1.arrow"]]
    assert [bool(layers_of(of_script(place, text))) for text in ("one", "two", "three")] == [False, True, True]
    data = kept()
    with data.layers():
        data.keep(written(place, "cache-2.arrow", 301 * "x"), [])
    assert layers_of(data) == [["cache-1.arrow"]]


def test_what_a_prediction_uses_is_not_removed(place):
    data = kept()
    with data.layers():
        data.keep(written(place), [])
        assert drop_all() == 0
    assert layers_of(data) and drop_all() > 0 and layers_of(data) == []


def test_a_failure_to_keep_is_silent(place, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    data = kept()
    monkeypatch.setattr(kept_data.shutil, "move", full)
    with data.layers():
        data.keep(written(place), [])
    assert layers_of(data) == []
    with hold(next((place / "cache").rglob("lock"))), data.layers() as layers:
        assert layers == []
    monkeypatch.setattr(kept_data, "hold", full)
    with data.layers() as layers:
        assert layers == []
