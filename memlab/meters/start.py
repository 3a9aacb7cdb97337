"""Begin and end to measure in this process."""

import atexit
import os
import sys
from typing import NoReturn

from .facts import gather
from .listeners import listen_to_all
from .listeners.adoption import adopt
from .memory import Memory
from .memory_history import MemoryHistory
from .options import MeterOptions
from .out_of_memory import FailedRequest, OutOfMemoryKeeper
from .own_errors import contained
from .profiler import StepsProfiler
from .rank_file import RUNNING, RankFile, rank_number
from .session import Session

_file: RankFile | None = None
"""Of this process, once it has begun to measure."""


def begin(options: MeterOptions, memory: Memory | None = None) -> RankFile:
    """Measure from now on. Libraries are listened to from the first time on. ``memory``: other meters than those of the
    GPU and the host."""
    global _file
    if _file is not None:
        _file.session.begin_anew(options)
        return _file
    session = Session(options, memory or Memory())
    _file = RankFile(session)
    session.memory.install()
    session.callbacks.first_step = lambda: gather(session)
    session.callbacks.save = lambda: _file.write(RUNNING)
    os.register_at_fork(after_in_child=session.begin_in_child)
    listen_to_all(session)
    _file.before_end.append(_keep_out_of_memory(session, _file).end)
    if options.explains(rank_number()):
        _file.before_end.append(_record(session, _file, options).end)
    if options.profile:
        _file.before_end.append(_profile(session, _file).end)
    _end_with_the_process(_file)
    return _file


def begin_by_hand(options: MeterOptions) -> RankFile:
    """Measure from now on in a process that may have made its model and its optimizer before."""
    file = begin(options)
    file.session.memory.turn()  # peaks so far are not this training's
    adopt(file.session)
    return file


def _keep_out_of_memory(session: Session, file: RankFile) -> OutOfMemoryKeeper:
    """Keep what the allocator holds when memory runs out. Until then, note the parts of the run alone."""
    keeper = OutOfMemoryKeeper(file.place)

    def runs_out_of_memory(request: FailedRequest, where: str | None) -> None:
        phase, step, _ = _at(session)
        keeper.keep(request, phase, step, where)
        if session.is_rank:  # a process that never trains has no files
            keeper.end()

    session.callbacks.piece.append(keeper.piece_ends)
    session.callbacks.starts_over = keeper.forget_parts
    session.callbacks.out_of_memory = runs_out_of_memory
    return keeper


def _record(session: Session, file: RankFile, options: MeterOptions) -> MemoryHistory:
    """Record the memory history until the end of the optimizer step ``options.explain``. An out-of-memory until then
    has its history; with ``options.explain_oom``, a later one as well."""
    history = MemoryHistory(file.place, lambda: session.objects.optimizers, lambda: _at(session), options.explain_oom)
    callbacks = session.callbacks
    on_out_of_memory = callbacks.out_of_memory

    def step_ends() -> None:
        if options.explain is not None and session.steps_done >= options.explain:
            history.keep()

    def runs_out_of_memory(request: FailedRequest, where: str | None) -> None:
        if history.records:
            history.out_of_memory(request)
        else:
            on_out_of_memory(request, where)

    callbacks.piece.append(lambda phase, step, piece: history.piece_ends(phase, step, piece.where, piece.ends_phase))
    callbacks.step.append(step_ends)
    callbacks.out_of_memory = runs_out_of_memory
    callbacks.is_recorded = lambda: history.records
    return history


def _at(session: Session) -> tuple[str | None, int | None, str | None]:
    """Return phase, step (from 1) and line of what runs now."""
    now = session.at
    return session.figures.key(now["phase"], session.steps_done), now["step"], now["where"]


def _profile(session: Session, file: RankFile) -> StepsProfiler:
    """Run torch's profiler on rank 0, in the steps after the optimizer step ``options.profile``."""
    profiler = StepsProfiler(file.place)

    @contained
    def step_ends() -> None:
        profiler.step_ends()
        if session.steps_done == session.options.profile and file.rank == 0:
            profiler.begin()

    session.callbacks.piece.append(profiler.piece_ends)
    session.callbacks.step.append(step_ends)
    return profiler


def _end_with_the_process(file: RankFile) -> None:
    """Write the rank's file when the interpreter ends, and when the script ends the process without it."""
    session = file.session

    @contained
    def write() -> None:
        error = getattr(sys, "last_value", None)
        if os.getpid() == session.pid and session.is_worth_a_file(error):
            file.write_at_the_end(error)

    atexit.register(write)
    exit_at_once = os._exit

    def write_and_exit(code: int) -> NoReturn:
        session.exits(code)
        write()
        exit_at_once(code)

    os._exit = write_and_exit  # type: ignore[assignment]  # the parameter has another name
