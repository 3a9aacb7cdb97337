"""A rank on another host must not outlive memlab, and nobody can signal it from there.

pdsh holds one ssh connection to each host, and a rank's standard input is the far end of it: nothing is ever sent, but
it closes when memlab, pdsh or ssh is killed, or the connection is lost.
"""

import os
import signal
import threading


def end_with_connection() -> None:
    """If standard input is the lifeline (MEMLAB_LIFELINE), end all that the launch runs on this host when it closes."""
    if os.environ.get("MEMLAB_LIFELINE") == "stdin":
        threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 4096):
        pass
    os.write(2, b"memlab: the connection to the launching host has closed; ending\n")
    # The process group is the one that sshd made for this connection: DeepSpeed's launch.py, its ranks, compilers.
    os.killpg(0, signal.SIGKILL)
