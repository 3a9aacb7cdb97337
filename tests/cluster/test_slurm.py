"""A sweep as jobs of a real Slurm: it outlives the login process, and a cancelled job is run by the next start."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_slurm import PROGRAMS, slurm
from support import LAUNCH, ROOT, SHORT, need, wait_until

from memlab.system.deadman import marked_by

pytestmark = [pytest.mark.cluster, pytest.mark.long(100)]

LENGTHS = (32, 64, 96)
SWEEP = [*LAUNCH, "--multirun", *SHORT, "name=slurm", f"seq_len.tokens={','.join(map(str, LENGTHS))}"]
AS_JOBS = ["hydra/launcher=submitit_slurm", "hydra.launcher.array_parallelism=1"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    need(*PROGRAMS)
    pytest.importorskip("submitit")
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    if os.geteuid() != 0:
        pytest.skip("Slurm is set up by root")
    # Not below tmp_path: slurmd's sockets have paths of 108 letters at the most.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm(Path(folder)) as variables:
        # The jobs import memlab as an installed package would be.
        yield {**os.environ, **variables, "PYTHONPATH": str(ROOT), "MEMLAB_TEST_RUN": str(tmp_path)}
    for pid in marked_by("MEMLAB_TEST_RUN", str(tmp_path)):
        os.kill(pid, 9)


def start(folder: Path, environment: dict[str, str]) -> subprocess.Popen:
    with (folder / "login.out").open("a") as output:
        return subprocess.Popen(
            [*SWEEP, *AS_JOBS], env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )


def run_folder(folder: Path, length: int) -> Path | None:
    return next((folder / "outputs" / "slurm").glob(f"*-s{length}-*"), None)


def record(folder: Path, length: int) -> dict | None:
    path = run_folder(folder, length)
    return json.loads((path / "record.json").read_text()) if path and (path / "record.json").exists() else None


def statuses(folder: Path) -> list[str | None]:
    return [found and found["status"] for found in (record(folder, length) for length in LENGTHS)]


def queued(environment: dict[str, str]) -> list[str]:
    """The jobs that wait or run, as <array job>_<index>."""
    command = ["squeue", "--noheader", "--array", "--format=%i"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def test_jobs_outlive_the_login_process_and_a_cancelled_one_is_resumed(cluster, tmp_path):
    def story() -> str:
        logs = sorted(
            [*tmp_path.glob("outputs/slurm/.submitit/**/*.err"), *tmp_path.glob("outputs/slurm/*/logs/*.log")]
        )
        reasons = [str(found and found["reason"]) for found in (record(tmp_path, length) for length in LENGTHS)]
        return "\n".join([*reasons, *(f"{path}:\n{path.read_text()}" for path in [tmp_path / "login.out", *logs])])

    login = start(tmp_path, cluster)
    wait_until(lambda: len(queued(cluster)) == 3, 60, story)
    login.send_signal(signal.SIGKILL)
    login.wait()
    wait_until(lambda: (path := run_folder(tmp_path, 64)) and (path / "logs" / "launcher.log").exists(), 240, story)
    (middle,) = [job for job in queued(cluster) if job.endswith("_1")]
    subprocess.run(["scancel", middle], env=cluster, check=True)
    wait_until(lambda: queued(cluster) == [], 240, story)
    assert statuses(tmp_path) == ["ok", "interrupted", "ok"], story()
    before = [record(tmp_path, length) for length in LENGTHS]

    assert start(tmp_path, cluster).wait(240) == 0, story()
    assert statuses(tmp_path) == ["ok", "ok", "ok"], story()
    table = tmp_path / "outputs" / "slurm" / "table.csv"
    assert len(table.read_text().splitlines()) == 4 and table.with_name("report.html").exists(), story()
    after = [record(tmp_path, length) for length in LENGTHS]
    assert (after[0], after[2]) == (before[0], before[2])
    # The run folders are those of a sweep without Slurm, which so has nothing left to do.
    subprocess.run(SWEEP, cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=60, check=True)
    assert [record(tmp_path, length) for length in LENGTHS] == after
    assert list(marked_by("MEMLAB_TEST_RUN", str(tmp_path))) == []
