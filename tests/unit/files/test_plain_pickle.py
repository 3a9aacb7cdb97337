"""The reader of pickle files: plain data comes back, and no file can make it run, allocate or crash."""

import os
import pickle
import pickletools
import random
import resource
import time
import tracemalloc

import pytest

from memlab.core.errors import RecordError
from memlab.files.plain_pickle import read_plain_pickle

SNAPSHOT = {
    "segments": [
        {"address": 140_652_440_485_888, "total_size": 2**21, "blocks": [{"state": "inactive", "frames": []}]}
    ],
    "device_traces": [[{"action": "alloc", "size": 512, "stream": 0, "time_us": 1795331261980529}] * 3],
    "allocator_settings": {"expandable_segments": False, "threshold": 0.5, "pool": (0, 1), "none": None, 7: -1},
}


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("was_run",)


def write(path, content: bytes):
    path.write_bytes(content)
    return path


def reads(path) -> bool:
    try:
        read_plain_pickle(path)
    except RecordError as error:
        assert str(path) in str(error) and "\n" not in str(error)[:200]
        return False
    return True


def test_plain_data_comes_back(tmp_path):
    for protocol in (4, 5):
        assert read_plain_pickle(write(tmp_path / "a.pickle", pickle.dumps(SNAPSHOT, protocol=protocol))) == SNAPSHOT
    for protocol in range(4):  # they write PUT, which torch's files do not have
        with pytest.raises(RecordError, match="only plain data is read"):
            read_plain_pickle(write(tmp_path / "b.pickle", pickle.dumps(SNAPSHOT, protocol=protocol)))


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for protocol in range(6):
        path = write(tmp_path / "hostile.pickle", pickle.dumps({"segments": [Hostile()]}, protocol=protocol))
        with pytest.raises(RecordError, match="only plain data is read"):
            read_plain_pickle(path)
    assert not (tmp_path / "was_run").exists()


NESTED = b"\x80\x04)" + b"\x85" * 200_000
HOSTILE = {
    "deep tuple as a key": b"\x80\x04}" + NESTED[2:] + b"K\x01s.",
    "deep tuple as keys": b"\x80\x04}(" + NESTED[2:] + b"K\x01u.",
    "memo index of 4 billion": b"\x80\x04Nr\xff\xff\xff\xff.",
    "text of 4 GiB in 20 bytes": b"\x80\x04X\xff\xff\xff\xffab.",
    "marks only": b"\x80\x04" + b"(" * 100_000,
    "items of a number": b"\x80\x04K\x01(K\x02K\x03u.",
    "odd items": b"\x80\x04}(K\x02u.",
    "pop of nothing": b"\x80\x04a.",
    "unknown memo": b"\x80\x04h\x09.",
    "extension": b"\x80\x04\x82\x01.",
    "persistent": b"\x80\x04K\x01Q.",
    "empty": b"",
    "protocol of the future": b"\x80\x09N.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_in_one_line_and_little_memory(tmp_path, content):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = write(tmp_path / "hostile.pickle", content)
    assert not reads(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024  # KiB


def test_lengths_that_lie_cost_nothing(tmp_path):
    frame = b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"N."
    assert read_plain_pickle(write(tmp_path / "frame.pickle", frame)) is None


BOMBS = {
    "dictionaries": (b"", b"}"),
    "lists in one another": (b"", b"]"),
    "marks": (b"", b"("),
    "memo entries": (b"N", b"\x94"),
    "tuples in one another": (b")", b"\x85"),
    "short texts": (b"", b"\x8c\x02ab"),
    "small numbers": (b"", b"\x8a\x02\x01\x01"),
}


@pytest.mark.parametrize(("begin", "repeated"), BOMBS.values(), ids=BOMBS)
def test_memory_and_time_are_bounded_by_the_size_of_the_file(tmp_path, begin, repeated):
    content = b"\x80\x04" + begin + repeated * (200_000 // len(repeated)) + b"."
    path = write(tmp_path / "bomb.pickle", content)
    began = time.process_time()
    tracemalloc.start()
    try:
        reads(path)
        assert tracemalloc.get_traced_memory()[1] < 30 * len(content)
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 20  # some 100 ns a byte, and ten times that to trace the memory


def frame(content: bytes, nbytes: int | None = None) -> bytes:
    return b"\x95" + (len(content) if nbytes is None else nbytes).to_bytes(8, "little") + content


FRAMES = {
    "in one another": b"\x80\x04" + frame(frame(b"N.")),
    "inside an instruction": b"\x80\x04" + frame(b"X\x04\x00") + frame(b"\x00\x00abcd."),
    "larger than any file": b"\x80\x04" + frame(b"N.", 2**64 - 1),
    "without content": b"\x80\x04" + frame(b"") * 3,
}


@pytest.mark.parametrize("content", FRAMES.values(), ids=FRAMES)
def test_frames_that_do_not_fit_are_refused(tmp_path, content):
    assert not reads(write(tmp_path / "frames.pickle", content))


def test_a_list_within_itself_is_read_and_not_walked_through(tmp_path):
    within: list = []
    within.append(within)
    found = read_plain_pickle(write(tmp_path / "within.pickle", pickle.dumps(within, protocol=4)))
    assert found[0] is found


def test_a_truncated_file_is_called_so(tmp_path):
    content = pickle.dumps(SNAPSHOT, protocol=4)
    for length in range(len(content)):
        assert not reads(write(tmp_path / "short.pickle", content[:length]))
    with pytest.raises(RecordError, match="it ends too early"):
        read_plain_pickle(tmp_path / "short.pickle")


def test_a_thousand_damaged_files(tmp_path):
    sound, chance = pickle.dumps(SNAPSHOT, protocol=4), random.Random(0)
    codes = [code.code.encode("latin1") for code in pickletools.opcodes]
    for _ in range(1000):
        content = bytearray(sound)
        for _ in range(chance.randint(1, 6)):
            where = chance.randrange(len(content))
            content[where : where + chance.randint(0, 3)] = chance.choice([chance.choice(codes), chance.randbytes(2)])
        reads(write(tmp_path / "damaged.pickle", bytes(content[: chance.randint(1, 2 * len(content))])))


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "absent", "."):
        assert not reads(tmp_path / name)
