"""Compiled graphs are copied whole from a sandbox into memlab's cache."""

from memlab.system.sandbox import kept_data
from memlab.system.sandbox.kept_data import graphs_in_use, keep_graphs


def written(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_graphs_and_their_code_are_kept_and_nothing_else(tmp_path):
    graphs = {"fxgraph/ab/key/entry", "aotautograd/key/entry", "ab/code.py"}
    new = written(tmp_path / "new", *graphs, "cache/times", "dynamo/state.pkl", "fxgraph/x.lock")
    keep_graphs(new, tmp_path / "graphs" / "digest")
    assert files(tmp_path / "graphs" / "digest") == graphs
    keep_graphs(None, tmp_path / "graphs" / "digest")
    assert files(tmp_path / "graphs" / "digest") == graphs


def test_a_full_cache_starts_anew_unless_it_is_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_data, "MOST_GRAPHS", 3)
    folder, older = tmp_path / "graphs" / "new", tmp_path / "graphs" / "old"
    with graphs_in_use(folder):
        written(older, "ab/code.py")
        with graphs_in_use(folder):
            assert files(older)
    with graphs_in_use(folder):
        assert not files(older)
