"""Computations in a copy of this process, on another core."""

import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from typing import Any


def computed_in_a_copy(compute: Callable[[], Any]) -> Callable[[], Any]:
    """Begin to compute in a fork of this process. Returns a function that waits for the result.

    A copy may end without a result, where memory runs out for example. Then the function computes it here.
    """
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def send() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process ends at an interrupt, and the copy with it
        sender.send(compute())

    context.Process(target=send, daemon=True).start()
    sender.close()  # so that the end of the copy ends the wait

    def result() -> Any:
        with suppress(EOFError):
            return receiver.recv()
        return compute()

    return result
