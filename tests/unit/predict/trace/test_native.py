"""The native library of the simulated GPUs: why it cannot be had is one line."""

import sys

import pytest

from memlab.predict.trace.shadow import native


def test_a_missing_compiler_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch._C", raising=False)
    with pytest.raises(native.NativeLibraryError, match=r"^A prediction needs a C\+\+ compiler.*install g\+\+[^\n]*$"):
        native.load(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_the_first_error_of_the_compiler_is_shown(tmp_path, monkeypatch):
    (tmp_path / "guard.cpp").write_text("int wrong = ;\n")
    monkeypatch.setattr(native, "SOURCE", tmp_path / "guard.cpp")
    monkeypatch.delitem(sys.modules, "torch._C", raising=False)
    with pytest.raises(native.NativeLibraryError, match=r"guard.cpp cannot be built for torch .*error: expected"):
        native.load(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_torch_must_not_be_imported_before(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._C", object())
    with pytest.raises(native.NativeLibraryError, match="before torch is imported"):
        native.load(tmp_path)
