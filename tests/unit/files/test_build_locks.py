"""Locks of torch's builds: which are stale, and who says so."""

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from memlab.files import build_locks
from memlab.files.build_locks import holder, is_stale, stale_locks, told
from memlab.system.environment import sweep_locks_of_commands


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """A lock in the folder where torch builds the extensions of commands, older than any that a build has just made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setattr(build_locks, "file_system", lambda folder: "overlay")
    lock = tmp_path / "cache" / "torch_extensions" / "py311_cu130" / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (0, time.time() - 2 * build_locks.STALE_S))
    return lock


@contextmanager
def ninja(folder: Path, tmp_path: Path):
    """A process that the kernel calls ninja."""
    program = tmp_path / "ninja"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "60"], cwd=folder) as process:
        try:
            while Path(f"/proc/{process.pid}/comm").read_text().strip() != "ninja":  # the kernel sets it last
                time.sleep(0.01)
            yield
        finally:
            process.kill()


def test_a_lock_without_a_build_is_removed_by_the_doctor(lock, tmp_path):
    with ninja(lock.parent, tmp_path):
        assert not is_stale(lock) and sweep_locks_of_commands() == []
    with ninja(tmp_path, tmp_path):  # of another extension
        assert stale_locks(tmp_path) == [lock]
    assert sweep_locks_of_commands() == [lock] and not lock.exists()


def test_the_process_that_has_the_lock_open_holds_it(lock):
    """Torch keeps it open from its making to its removal, also while nothing is compiled."""
    with lock.open():
        assert holder(lock) == os.getpid() and not is_stale(lock)
        assert f"{lock}: process {os.getpid()} (" in told(lock) and f"kill {os.getpid()}" in told(lock)
    assert holder(lock) is None and is_stale(lock)


def test_a_build_of_another_user_holds_only_that_users_locks(lock, tmp_path, monkeypatch):
    def refused(self, other):
        raise PermissionError

    monkeypatch.setattr(Path, "samefile", refused)
    with ninja(tmp_path, tmp_path):
        assert not is_stale(lock)  # of the same user: its folder cannot be seen
        its_owner = os.stat_result([0o644, 0, 0, 1, os.getuid() + 1, 0, 0, 0, lock.stat().st_mtime, 0])
        stat = Path.stat
        monkeypatch.setattr(Path, "stat", lambda self, **how: its_owner if self == lock else stat(self, **how))
        assert is_stale(lock)


@pytest.mark.parametrize(("kind", "namespace"), [("nfs4", build_locks.ALL_PROCESSES), ("ext4", "pid:[4026532201]")])
def test_a_lock_whose_build_may_be_out_of_sight_is_removed_after_an_hour(lock, monkeypatch, kind, namespace):
    monkeypatch.setattr(build_locks, "file_system", lambda folder: kind)
    monkeypatch.setattr(os, "readlink", lambda path: namespace)
    assert sweep_locks_of_commands() == [] and stale_locks(lock.parents[1]) == [lock]
    os.utime(lock, (0, time.time() - build_locks.FOREIGN_S - 1))
    assert sweep_locks_of_commands() == [lock]


def test_the_file_system_is_that_of_the_deepest_mount(tmp_path, monkeypatch):
    mounts = [("/", "ext4"), (tmp_path, "tmpfs"), (tmp_path / "a b", "nfs4"), (tmp_path / "a b", "xfs")]
    lines = [f"22 27 0:21 / {at} rw shared:1 - {kind} dev rw" for at, kind in mounts]
    monkeypatch.setattr(Path, "read_text", lambda self: "\n".join(lines).replace("a b", r"a\040b"))
    places = [Path("/"), tmp_path, tmp_path / "a", tmp_path / "a b" / "c"]
    assert [build_locks.file_system(place) for place in places] == ["ext4", "tmpfs", "tmpfs", "xfs"]


def test_a_lock_that_was_just_made_is_left_alone(lock):
    lock.touch()
    assert not is_stale(lock) and sweep_locks_of_commands() == [] and lock.exists()


def test_the_folder_that_the_user_named_is_looked_at(lock, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "none"))
    assert sweep_locks_of_commands() == []
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(lock.parents[1]))
    assert sweep_locks_of_commands() == [lock]
