"""What a forked copy of the process leaves as it was: what this process reads; what others write meanwhile stays."""

import os

import pytest

from memlab.simulator.rank import forked_copy

pytestmark = pytest.mark.shadow


def test_files_that_are_read_are_put_back_and_output_that_is_shared_goes_on(tmp_path):
    (tmp_path / "rows").write_text("first\nsecond\n")
    with (tmp_path / "rows").open() as rows, (tmp_path / "log").open("wb", buffering=0) as log:

        def read() -> str:
            os.write(log.fileno(), b"read ahead\n")
            return os.read(rows.fileno(), 6).decode()

        assert forked_copy.call(read, 5) == "first\n"
        assert rows.read() == "first\nsecond\n"
        log.write(b"trained\n")
    assert (tmp_path / "log").read_text() == "read ahead\ntrained\n"
