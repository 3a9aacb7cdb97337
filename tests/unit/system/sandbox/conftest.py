"""A sandbox in each of the two protections, and a folder with results that a program must not lose."""

import uuid

import pytest

from memlab.system import deadman
from memlab.system.sandbox import LANDLOCK, NAMESPACES, Sandbox, SandboxError


@pytest.fixture
def project(tmp_path):
    """A folder with the results of an earlier training."""
    project = tmp_path / "project"
    for name in ("out", "old", "older"):
        (project / name / "checkpoint-1").mkdir(parents=True)
        (project / name / "checkpoint-1" / "model.bin").write_bytes(bytes(1000))
        (project / name / "config.json").write_text("{}")
    (project / "log.txt").write_text("first\n")
    (project / "latest").symlink_to("out")
    return project


@pytest.fixture(params=[NAMESPACES, LANDLOCK])
def protection(request):
    return request.param


@pytest.fixture
def variables():
    """Variables of the launch."""
    return {deadman.TOKEN_VARIABLE: uuid.uuid4().hex}


@pytest.fixture
def sandbox(protection, variables, tmp_path, project):
    keep = tmp_path / "run"
    keep.mkdir()
    try:
        with Sandbox(keep, variables, protection) as sandbox:
            yield sandbox
    except SandboxError as error:
        pytest.skip(str(error))
