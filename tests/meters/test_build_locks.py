"""A lock that a killed build left: torch's wait for it is said once, and goes on."""

import threading
import time

from memlab.files import build_locks
from memlab.meters.listeners import build_locks as listener


def test_a_wait_for_the_lock_of_a_killed_build_names_the_file(tmp_path, monkeypatch, capsys):
    from torch.utils import file_baton

    monkeypatch.setattr(build_locks, "STALE_S", 0.2)
    monkeypatch.setattr(file_baton.FileBaton, "wait", file_baton.FileBaton.wait)  # restored after the test
    listener.listen(file_baton, None)
    lock = tmp_path / "fused_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()  # a process that is alive would have it open
    waiting = threading.Thread(target=file_baton.FileBaton(str(lock)).wait)
    waiting.start()
    time.sleep(1)
    assert waiting.is_alive()
    lock.unlink()
    waiting.join(10)
    assert capsys.readouterr().err == f"memlab: {build_locks.told(lock)}\n" and str(lock) in build_locks.told(lock)
