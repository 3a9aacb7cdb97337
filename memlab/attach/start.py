"""Begin to measure in this process, now that torch has been imported."""

import atexit
import os

from .facts import gather
from .failures import contained
from .listeners import listen_to_all
from .memory import Memory
from .options import Options
from .rank_file import RUNNING, RankFile
from .session import Session


def start(folder: str) -> Session:
    """Measure from now on. ``folder``: the one with options.json."""
    return begin(Options.read(folder))


def begin(options: Options) -> Session:
    session = Session(options, Memory())
    file = RankFile(session)
    session.memory.install()
    session.on_first_step = lambda: gather(session)
    session.on_save = lambda: file.write(RUNNING)
    os.register_at_fork(after_in_child=session.begin_again)
    listen_to_all(session)
    _write_at_the_end(session, file)
    return session


def _write_at_the_end(session: Session, file: RankFile) -> None:
    """Write the rank's file when the interpreter ends, and when the script ends the process without it."""

    @contained
    def write() -> None:
        if os.getpid() == session.pid and session.is_worth_a_file:
            file.write_at_the_end()

    atexit.register(write)
    exit_at_once = os._exit

    def write_and_exit(code: int) -> None:
        session.exits(code)
        write()
        exit_at_once(code)

    os._exit = write_and_exit
