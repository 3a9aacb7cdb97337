"""Whole sweeps through the real launcher: they finish whatever happens to their points, and go on where they were."""

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

SMALL = ("zero_stage.reduce_bucket_size=100000", "hydra.sweep.dir=sweep")


def records(folder: Path) -> dict[str, dict]:
    """The records of a sweep, by stage, offload and length."""
    found = [json.loads(path.read_text()) for path in (folder / "sweep").glob("*/record.json")]
    return {
        "{zero_stage} {offload} ".format(**record["choices"]) + str(record["config"]["seq_len"]["tokens"]): record
        for record in found
    }


@pytest.mark.long(140)
def test_a_sweep_finishes_whatever_happens_to_its_points(start, tmp_path):
    run = start(
        *("-m", *SMALL, "zero_stage=zero1,zero2", "offload=none,param", "seq_len.tokens=32,64,96"),
        "measure.timeout_s=60",
        fault="oom:1:1:zero1-s64,hang:0:1:zero2-s32,kill:1:1:zero2-s64",
    )
    assert run.wait() == 1, run.output  # what hung and what was killed would be tried again
    found = {name: record["status"] for name, record in records(tmp_path).items()}
    unsupported = {f"{stage} param {tokens}": "unsupported" for stage in ("zero1", "zero2") for tokens in (32, 64, 96)}
    assert found == unsupported | {
        "zero1 none 32": "ok",
        "zero1 none 64": "gpu_oom",
        "zero1 none 96": "gpu_oom",
        "zero2 none 32": "timeout",
        "zero2 none 64": "failed",
        "zero2 none 96": "ok",
    }
    assert "implied by" in records(tmp_path)["zero1 none 96"]["reason"]
    assert run.alive() == []

    again = start("-m", *SMALL, "zero_stage=zero1,zero2", "offload=none,param", "seq_len.tokens=32,64,96")
    before = records(tmp_path)
    assert again.wait() == 0, again.output
    after = records(tmp_path)
    assert {name for name in after if after[name] != before[name] and "none" in name} == {
        "zero2 none 32",
        "zero2 none 64",
    }
    assert Counter(record["status"] for record in after.values()) == {"ok": 4, "gpu_oom": 2, "unsupported": 6}


@pytest.mark.long(65)
def test_points_that_share_a_launch_measure_what_they_do_alone(start, tmp_path):
    """Allocated within 0.5 %; on a CPU, where reserved is the resident set, within 5 % as well."""
    words = ("-m", *SMALL, "zero_stage=zero2", "seq_len.tokens=64,256")
    assert start(*words).wait() == 0
    shared = records(tmp_path)
    time.sleep(0.1)
    assert start(*words, "sweep.isolation=fresh", "force=true").wait() == 0
    fresh = records(tmp_path)
    assert {record["isolation"] for record in shared.values()} == {"shared"}
    assert {record["isolation"] for record in fresh.values()} == {"fresh"}
    for name, record in fresh.items():
        for key, within in (("peak_allocated_bytes", 0.005), ("peak_reserved_bytes", 0.05)):
            assert shared[name]["summary"][key]["max"] == pytest.approx(record["summary"][key]["max"], rel=within), name


@pytest.mark.long(20)
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a small file system, which takes root")
def test_a_full_disk_is_one_clear_line(start, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=64k tmpfs {disk}"):
        pytest.skip("cannot mount a file system here")
    try:
        (disk / "filler").write_bytes(b"x" * 40_000)
        run = start(*SMALL[:1], "seq_len.tokens=32", f"hydra.run.dir={disk}/run")
        assert run.wait() == 1, run.output
        assert "No space left on device" in run.output and "Traceback" not in run.output
        assert not list(disk.glob("run/record.json")) and not list(disk.glob("run/.*.tmp"))
        assert run.alive() == []
    finally:
        os.system(f"umount {disk}")
