"""Torch's wait for the lock of another build: it would last forever, in silence, where that build was killed."""

import functools
import sys
import threading
from pathlib import Path
from types import ModuleType

from ...files import build_locks
from ..session import Session


def listen(module: ModuleType, session: Session) -> None:
    """Name the lock on standard error once no build holds it any more, and wait on."""
    wait = module.FileBaton.wait

    @functools.wraps(wait)
    def watched(baton) -> None:
        is_over = threading.Event()
        threading.Thread(target=_watch, args=(Path(baton.lock_file_path), is_over), daemon=True).start()
        try:
            wait(baton)
        finally:
            is_over.set()

    module.FileBaton.wait = watched


def _watch(lock: Path, is_over: threading.Event) -> None:
    while not is_over.wait(build_locks.STALE_S):
        if build_locks.is_stale(lock):
            print(f"memlab: {build_locks.told(lock)}", file=sys.stderr, flush=True)
            return
