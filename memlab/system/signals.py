"""Handlers of SIGINT, SIGTERM and SIGHUP: each ends memlab like Ctrl-C, with a record and with no process left."""

import contextlib
import os
import signal
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_on_signals() -> None:
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP: leave it so
            signal.signal(number, interrupt)


def interrupt(number: int, frame: FrameType | None) -> None:
    """End the run by KeyboardInterrupt, whose argument is the signal's number.

    Later signals only print a message: they must not interrupt the clean-up.
    """
    for ending in ENDING:
        signal.signal(ending, _go_on_ending)
    raise KeyboardInterrupt(number)


def _go_on_ending(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"memlab: ending what was started; a moment\n")
