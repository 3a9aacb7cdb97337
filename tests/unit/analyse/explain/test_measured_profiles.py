"""Profiles of steps on H200s: each kernel is of the right kind."""

import tarfile
from pathlib import Path

import pytest

from memlab.analyse.explain.time_by_kind import profiled, profiled_kind
from memlab.prediction.time.work_kinds import ATTENTION, COMMUNICATION, COPIES, MATRIX_PRODUCTS, OPTIMIZER, OTHER
from memlab.runs.operator_profile import OperatorProfile, read_operators

RECORDS = Path(__file__).parents[4] / "results" / "profile" / "records.tgz"
PARTS = {
    "nccl": COMMUNICATION,
    "nvjet": MATRIX_PRODUCTS,
    "cutlass": MATRIX_PRODUCTS,
    "sdpa": ATTENTION,
    "AdamFunctor": OPTIMIZER,
    "HtoD": COPIES,
    "DtoH": COPIES,
}
"""Part of a kernel's name -> its kind."""


@pytest.fixture(scope="module")
def profiles(tmp_path_factory) -> dict[str, OperatorProfile]:
    folder = tmp_path_factory.mktemp("records")
    with tarfile.open(RECORDS) as archive:
        archive.extractall(folder)  # ours; the argument filter came with Python 3.11.4
    return {path.parent.name: read_operators(path) for path in folder.glob("measured/*/rank0.operators.json")}


def test_kernels_are_of_the_kind_that_their_names_tell(profiles):
    seen = set()
    for profile in profiles.values():
        for row in profile.on_device:
            kinds = [kind for part, kind in PARTS.items() if part in row.kernel]
            assert not kinds or kinds == [profiled_kind(row)], row
            seen.update(kinds)
    assert seen == set(PARTS.values())


def test_the_kinds_add_up_to_the_device_s_time(profiles):
    assert len(profiles) == 6
    for name, profile in profiles.items():
        step = profiled(profile)
        assert step.total.seconds == pytest.approx(sum(row.seconds for row in profile.on_device))
        assert step.busy_seconds <= step.total.seconds * (1 + 1e-4)  # the trace is rounded to nanoseconds
        assert (COMMUNICATION in step.kinds) == (name in ("qwen25_zero3", "trl_sft_zero2"))  # of two GPUs
        assert (OTHER in step.kinds) == name.startswith("trl")  # Triton kernels of TRL
