"""A server on this machine that notes who connects."""

import contextlib
import socket
import threading


@contextlib.contextmanager
def listening():
    """Yield a port of this machine, and the list of what connects to it, which is complete after the block."""
    connected = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        done = threading.Event()

        def accept() -> None:
            is_last = False
            while not is_last:
                is_last = done.is_set()
                with contextlib.suppress(TimeoutError):
                    connected.append(server.accept())

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1], connected
        finally:
            done.set()
            thread.join()
