"""The lifeline of a rank: the rank ends itself when memlab is gone, even if memlab and its deadman were killed.

The variable MEMLAB_LIFELINE says what the rank watches:

``stdin``: for a rank on another host, which memlab cannot signal. pdsh holds one ssh connection to each host, and the
rank's standard input is the far end of the connection. Nothing is ever sent. The input closes when memlab, pdsh or ssh
is killed, or when the connection is lost.
``pid:N``: for a rank on memlab's own host; N is memlab's process id.
"""

import os
import select
import signal
import threading


def end_with_memlab() -> None:
    """Start a thread that ends the rank, or on another host all processes of the launch, when the lifeline breaks."""
    kind, _, pid = os.environ.get("MEMLAB_LIFELINE", "").partition(":")
    if kind == "stdin":
        threading.Thread(target=_end_with_connection, daemon=True).start()
    elif kind == "pid":
        threading.Thread(target=_end_with_process, args=(int(pid),), daemon=True).start()


def _end_with_connection() -> None:
    while os.read(0, 4096):
        pass
    os.write(2, b"memlab: the connection to the launching host has closed; ending\n")
    # sshd made this process group for the connection: it holds DeepSpeed's launch.py, its ranks and compilers.
    os.killpg(0, signal.SIGKILL)


def _end_with_process(pid: int) -> None:
    """End this rank when process ``pid`` is gone. DeepSpeed's launcher ends by itself once its ranks are gone."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        pass
    except OSError:  # Linux before 5.3 has no pidfd_open(2): the next memlab that uses the run folder ends this rank
        return
    else:
        select.select([process], [], [])
    os.write(2, b"memlab: the memlab that started this rank is gone; ending\n")
    os.kill(os.getpid(), signal.SIGKILL)
