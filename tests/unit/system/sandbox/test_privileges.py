"""What a program in namespaces may do to the machine, as root and as an ordinary user."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from memlab.system import deadman
from memlab.system.sandbox import namespaces

AS_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
PYTHON = "/usr/bin/python3"
"""An interpreter that every user may run."""

ATTACKS = (
    "mount -t proc proc /mnt",
    "mount -o remount,bind,rw /proc/sys",
    "umount /proc/sys",
    "mount -o remount,bind,rw /sys",
    "unshare -Ur true",
    "unshare -Urmpf mount -t proc proc /mnt",
    "unshare -m true",
    "chroot / true",
)
SETTINGS = ("/proc/sys/vm/swappiness", "/proc/sys/user/max_user_namespaces", "/sys/kernel/mm/ksm/sleep_millisecs")


@pytest.fixture(params=[[], AS_USER], ids=["own", "user"])
def run(request):
    """Return what a shell prints in namespaces, for this user and, if it is root, for one without privileges."""
    if request.param and (os.geteuid() != 0 or not shutil.which("setpriv") or not os.path.exists(PYTHON)):
        pytest.skip("only root can become another user, with setpriv")
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    (place / "scratch" / namespaces.UPPER).mkdir(parents=True)
    program = shutil.copy(namespaces.__file__, place)  # the user may not read the folders that hold memlab
    owner = 65534 if request.param else os.geteuid()
    for each in (place / "scratch", place / "scratch" / namespaces.UPPER):
        os.chown(each, owner, -1)

    def run(script: str) -> str:
        words = [*request.param, PYTHON, "-I", "-S", program, str(place / "scratch"), "--", "sh", "-c", script]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=60)
        if done.returncode == namespaces.FAILED:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    deadman.remove_folder(place)


def test_settings_of_the_machine_stay_out_of_reach(run):
    tries = [f"{words} > /dev/null 2>&1 && echo '{words}'" for words in ATTACKS]
    tries += [f"(cat {path} > {path}) 2> /dev/null && echo {path}" for path in SETTINGS]
    assert run("\n".join([*tries, "true"])) == ""


def test_nothing_that_a_program_executes_gets_privileges_back(run):
    lines = run("grep -E '^(CapBnd|CapEff|NoNewPrivs)' /proc/self/status").splitlines()
    status = dict(line.split(":\t") for line in lines)
    kept = sum(1 << number for number in namespaces.CAPABILITIES.values())
    assert int(status["CapBnd"], 16) == kept and status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) in (0, kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("run", [[]], indirect=True)
def test_root_still_reads_and_owns_the_files_of_others(run):
    script = "touch own && chmod 0 own && chown 65534:65534 own && cat own && stat -c %u own && rm own && echo removed"
    assert run(script).split() == ["65534", "removed"]
