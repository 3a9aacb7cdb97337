"""torch's own readers of memory snapshots read what memlab writes, as they read a recorded one. No shadow run."""

import gzip
import pickle
import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from torch.cuda import _memory_viz

from memlab.analyse.explain.explained import History
from memlab.analyse.explain.exports import write_memory_viz
from memlab.analyse.explain.snapshot import read_snapshot
from memlab.analyse.explain.snapshot_trace import trace_of
from memlab.simulator.allocator import RecordingAllocator, parse

pytestmark = pytest.mark.shadow

RECORDED = Path(__file__).parents[1] / "data" / "memory_snapshot_h200.pickle.gz"


@pytest.fixture(scope="module")
def recorded():
    """A snapshot that torch 2.11 recorded on an H200."""
    return pickle.loads(gzip.decompress(RECORDED.read_bytes()))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The same history, read by memlab, replayed and written."""
    folder = tmp_path_factory.mktemp("viz")
    (folder / "recorded.pickle").write_bytes(gzip.decompress(RECORDED.read_bytes()))
    read = trace_of(read_snapshot(folder / "recorded.pickle"), 0, 1)
    history = History(read.trace, "", partial(RecordingAllocator, parse(""), addresses=read.segments))
    write_memory_viz(folder / "viz.pickle", history, dict(enumerate(read.seconds)))
    return pickle.loads((folder / "viz.pickle").read_bytes())


def test_it_has_the_fields_of_a_recorded_one(recorded, written):
    assert recorded.keys() == written.keys()
    for part in ("segments", "device_traces", "external_annotations"):
        fields = [{key for entry in _flat(snapshot[part]) for key in entry} for snapshot in (recorded, written)]
        if part == "device_traces":
            assert fields[0] | {"category"} == fields[1]
        elif fields[1]:
            assert fields[0] == fields[1]
    blocks = [segment["blocks"][0].keys() for snapshot in (recorded, written) for segment in snapshot["segments"][:1]]
    assert blocks[0] == blocks[1]


def test_it_has_the_actions_of_the_recorded_one(recorded, written):
    actions = [Counter(entry["action"] for entry in snapshot["device_traces"][0]) for snapshot in (recorded, written)]
    own = {name: actions[1][name] for name in ("alloc", "free_requested", "free_completed")}
    assert own == {name: actions[0][name] for name in own}
    times = [
        [entry["time_us"] for entry in snapshot["device_traces"][0] if entry["action"] in ("alloc", "free_requested")]
        for snapshot in (recorded, written)
    ]
    assert times[1] == sorted(times[1])
    assert times[1][-1] - times[1][0] == pytest.approx(times[0][-1] - times[0][0], abs=1)


def test_torch_sums_it_up_as_the_recorded_one(recorded, written):
    for number in ("total_reserved", "total_allocated"):
        of_both = [re.search(rf"{number}: (.*)", _memory_viz.segsum(each))[1] for each in (recorded, written)]
        assert of_both[0] == of_both[1]


def test_torch_lists_and_draws_it(written):
    assert f"{len(written['device_traces'][0])} entries" in _memory_viz.trace(written)
    for draw in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "MemoryViz.js" in draw(written)
    reserved = sum(segment["total_size"] for segment in written["segments"])
    for flames in (_memory_viz.segments, _memory_viz.memory):
        lines = flames(written, format_flamegraph=str.splitlines)
        assert sum(int(line.rpartition(" ")[2]) for line in lines) == reserved


def _flat(entries):
    return [each for entry in entries for each in (entry if isinstance(entry, list) else [entry])]
