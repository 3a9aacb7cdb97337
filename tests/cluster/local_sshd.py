"""An sshd on two loopback addresses, with keys of its own, for as long as a block runs."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import ADMIN_PATH, wait_until

from memlab.launch.launcher_line import free_port

PROGRAMS = ("sshd", "ssh-keygen")


@contextmanager
def sshd(folder: Path) -> Iterator[dict[str, str]]:
    """The variables with which pdsh and mpirun reach both addresses."""
    port = free_port()
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd's unprivileged half lives
    config, log = folder / "sshd_config", folder / "sshd.log"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\nPasswordAuthentication no\nUsePAM no\nStrictModes no\n"
    )
    program = shutil.which("sshd", path=ADMIN_PATH)
    server = subprocess.Popen([program, "-D", "-f", str(config), "-E", str(log)])
    try:
        wait_until(lambda: log.exists() and log.read_text().count("Server listening") == 2, 10)
        quiet = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        options = f"-p {port} -i {folder / 'user_key'} {quiet}"
        yield {"PDSH_SSH_ARGS_APPEND": options, "OMPI_MCA_plm_rsh_args": options}
    finally:
        server.terminate()
        server.wait()
