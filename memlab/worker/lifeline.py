"""A rank must not outlive memlab, however memlab and its deadman were killed: it watches its lifeline, MEMLAB_LIFELINE.

``stdin``: a rank on another host, which nobody can signal from here. pdsh holds one ssh connection to each host, and a
rank's standard input is the far end of it: nothing is ever sent, but it closes when memlab, pdsh or ssh is killed, or
the connection is lost. ``pid:N``: a rank on memlab's own host; N is memlab's process.
"""

import os
import select
import signal
import threading


def end_with_memlab() -> None:
    """End the rank, and all that the launch runs on another host, when the lifeline breaks."""
    kind, _, pid = os.environ.get("MEMLAB_LIFELINE", "").partition(":")
    if kind == "stdin":
        threading.Thread(target=_end_with_connection, daemon=True).start()
    elif kind == "pid":
        threading.Thread(target=_end_with_process, args=(int(pid),), daemon=True).start()


def _end_with_connection() -> None:
    while os.read(0, 4096):
        pass
    os.write(2, b"memlab: the connection to the launching host has closed; ending\n")
    # The process group is the one that sshd made for this connection: DeepSpeed's launch.py, its ranks, compilers.
    os.killpg(0, signal.SIGKILL)


def _end_with_process(pid: int) -> None:
    """DeepSpeed's launcher ends once its ranks are gone, so the rank ends itself alone."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        pass
    except OSError:  # a kernel without pidfd_open(2), before Linux 5.3: the next memlab in the folder ends this rank
        return
    else:
        select.select([process], [], [])
    os.write(2, b"memlab: the memlab that started this rank is gone; ending\n")
    os.kill(os.getpid(), signal.SIGKILL)
