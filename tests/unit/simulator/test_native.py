"""The native library of the simulated GPUs: why it cannot be had is one line."""

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from memlab.simulator.rank import native


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


@pytest.mark.parametrize(
    ("found", "old"), [("2.10.1+cpu", True), ("2.11.0", False), ("2.12rc1", False), ("3.0", False)]
)
def test_versions_are_compared_by_their_numbers(monkeypatch, found, old):
    monkeypatch.setattr(native, "version", lambda name: found)
    if old:
        with pytest.raises(native.NativeLibraryError, match=r"is too old: predictions need 2\.11 or newer"):
            native.check_torch((2, 11))
    else:
        native.check_torch((2, 11))


def test_a_torch_without_metadata_is_named(monkeypatch):
    def unknown(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(native, "version", unknown)
    with pytest.raises(native.NativeLibraryError, match=r"^The version of torch of .* is unknown[^\n]*pip\.$"):
        native.check_torch((2, 11))


def test_a_compiler_that_does_not_end_is_named(tmp_path, monkeypatch):
    (tmp_path / "g++").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(native, "_COMPILE_S", 0.2)
    monkeypatch.delitem(sys.modules, "torch._C", raising=False)
    with pytest.raises(native.NativeLibraryError, match=r"was not built for torch .* within 0.2 s[^\n]*less busy\.$"):
        native.load(tmp_path / "cache")
