"""Import tests read run folders back without the user's cache."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """No test reads or writes the user's cache of runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def csv_file(tmp_path):
    def write(text, name="8b-zero3-ckpt-batch-default.csv"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write
