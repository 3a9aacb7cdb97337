"""A trace written as torch's snapshot: memlab's own reader gets the same moments back."""

import pickletools
import random
from collections import Counter
from functools import partial
from types import MappingProxyType

import pytest

from memlab.analyse.explain.explained import History
from memlab.analyse.explain.exports import NO_CATEGORY, write_memory_viz
from memlab.analyse.explain.snapshot import read_snapshot
from memlab.analyse.explain.snapshot_trace import Marks, trace_of
from memlab.core.errors import WriteError
from memlab.core.sizes import UNLIMITED
from memlab.files.plain_pickle import read_plain_pickle
from memlab.prediction.memory.ledger import by_kind, moments
from memlab.simulator.allocator import CachingAllocator, RecordingAllocator, parse
from memlab.simulator.trace.events import Alloc, BeginPhase, EmptyCache, Free, RecordStream, Synchronize
from memlab.simulator.trace.trace_format import Piece, Site, Trace, apply

MIB = 1 << 20
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:20")
MODEL = "transformers/models/llama/modeling_llama.py"
SITES = [
    Site("activations", "aten.mm.default", f"{MODEL}:7", "forward", "layers.0.mlp", (4, 4), "train.py:3"),
    Site("activation gradients", "aten.mm.default", "MmBackward0", "", "layers.0.mlp", (4, 4), "train.py:4"),
    Site("optimizer states", "aten.zeros_like.default", "torch/optim/adamw.py:9", "_init_group", "", (4, 4)),
]
PHASES = ["forward", "backward", "optimizer_step"]


def random_trace(seed: int) -> Trace:
    chance, alive, events = random.Random(seed), [], []
    for key in range(600):
        phase = key // 100 % 3
        if key % 100 == 0:
            events.append(BeginPhase(phase))
        nbytes = chance.choice([MIB // 8, MIB - 1, 3 * MIB, 21 * MIB + 5])
        events.append(Alloc(key, nbytes, chance.choice([0, 0, 1]), phase))
        alive.append(key)
        if chance.random() < 0.1:
            events.append(RecordStream(key, 2))
        while alive and chance.random() < 0.45:
            events.append(Free(alive.pop(chance.randrange(len(alive))), chance.choice([None, 0, 40])))
        if chance.random() < 0.02:
            events.append(chance.choice([EmptyCache(), Synchronize(key // 2)]))
    pieces = [Piece(step, None, True) for step in (1, 1, 1, 2, 2, 2)]
    return Trace(0, 1, events=events, sites=SITES, phases=PHASES, pieces=pieces)


def peak_of(trace, new_allocator):
    found = moments(trace, range(len(trace.events)), new_allocator())
    return max(found.values(), key=lambda moment: moment.allocated)


def write(path, trace, settings="", capacity=UNLIMITED, times=MappingProxyType({})):
    recorder = partial(RecordingAllocator, parse(settings), capacity)
    write_memory_viz(path, History(trace, settings, recorder), times)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_the_reader_gets_the_same_peak_back(tmp_path, settings, seed):
    trace, options = random_trace(seed), parse(settings)
    write(tmp_path / "viz.pickle", trace, settings)
    snapshot = read_snapshot(tmp_path / "viz.pickle")
    assert snapshot.settings["PYTORCH_CUDA_ALLOC_CONF"] == settings
    marks = Marks([(PHASES[index % 3], piece) for index, piece in enumerate(trace.pieces)])
    read = trace_of(snapshot, 0, 1, marks)

    written = peak_of(trace, lambda: CachingAllocator(options))
    again = peak_of(read.trace, lambda: CachingAllocator(options, addresses=read.segments))
    assert (again.allocated, again.reserved, again.slack) == (written.allocated, written.reserved, written.slack)
    assert by_kind(again.holdings) == by_kind(written.holdings)
    places = {(held.site.module, held.site.where, held.nbytes, held.count) for held in written.holdings}
    assert {(held.site.module, held.site.where, held.nbytes, held.count) for held in again.holdings} == places
    assert (read.trace.phases, read.trace.pieces) == (PHASES, trace.pieces)

    allocator = CachingAllocator(options, addresses=read.segments)
    for event, reserved in zip(read.trace.events, read.reserved, strict=True):
        apply(event, allocator)
        assert allocator.reserved == reserved
    assert allocator.reserved == snapshot.reserved


def test_entries_have_the_times_that_are_known(tmp_path):
    events = [BeginPhase(0), Alloc(0, MIB, 0, 0), BeginPhase(1), Alloc(1, 30 * MIB, 0, 1), Free(1)]
    trace = Trace(0, 1, events=events, sites=SITES, phases=PHASES)
    file = tmp_path / "new_folder" / "viz.pickle"
    write(file, trace, times={2: 0.0, 3: 1e-3, 4: 2.5e-3})
    content = read_plain_pickle(file)
    assert [(entry["action"], entry.get("time_us")) for entry in content["device_traces"][0]] == [
        *(("segment_alloc", None), ("alloc", None), ("segment_alloc", 1000), ("alloc", 1000)),
        *(("free_requested", 2500), ("free_completed", 2500)),
    ]
    assert content["external_annotations"] == [
        {"stage": "START", "name": "backward", "device": 0, "time_us": 0},
        {"stage": "END", "name": "backward", "device": 0, "time_us": 2500},
    ]


def test_the_page_can_read_the_pickle(tmp_path):
    """The reader of the page is its own (``unpickle`` in torch/utils/viz/MemoryViz.js), and knows these opcodes."""
    known = {
        *("PROTO", "FRAME", "MEMOIZE", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_TUPLE", "TUPLE", "TUPLE1"),
        *("TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"),
        *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    }
    trace = random_trace(7)
    times = {index: index * 3.1 for index in range(len(trace.events))}
    write(tmp_path / "viz.pickle", trace, times=times)
    with (tmp_path / "viz.pickle").open("rb") as file:
        opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(file)]
    assert {name for name, _ in opcodes} <= known
    assert all(2 <= version <= 4 for name, version in opcodes if name == "PROTO")


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_entries_lead_to_the_segments_of_the_end(tmp_path, settings):
    """The page starts from the segments and undoes one entry after the other."""
    write(tmp_path / "viz.pickle", random_trace(5), settings)
    content = read_plain_pickle(tmp_path / "viz.pickle")
    (entries,) = content["device_traces"]
    in_use, reserved = {}, Counter()
    for entry in entries:
        match entry["action"]:
            case "alloc":
                assert entry["addr"] not in in_use
                in_use[entry["addr"]] = ("active_allocated", entry["size"])
            case "free_requested":
                assert in_use[entry["addr"]] == ("active_allocated", entry["size"])
                in_use[entry["addr"]] = ("active_pending_free", entry["size"])
            case "free_completed":
                assert in_use.pop(entry["addr"]) == ("active_pending_free", entry["size"])
            case "segment_alloc" | "segment_map":
                reserved[entry["stream"]] += entry["size"]
            case "segment_free" | "segment_unmap":
                reserved[entry["stream"]] -= entry["size"]
    assert NO_CATEGORY in {entry["category"] for entry in entries}
    blocks = [block for segment in content["segments"] for block in segment["blocks"]]
    assert in_use == {
        block["address"]: (block["state"], block["requested_size"]) for block in blocks if block["state"] != "inactive"
    }
    held = Counter()
    for segment in content["segments"]:
        held[segment["stream"]] += segment["total_size"]
        end = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == end
            end += block["size"]
        assert end == segment["address"] + segment["total_size"] < 2**53  # JavaScript's largest exact number
    assert held == reserved


def test_frames_are_named_as_torch_names_them(tmp_path):
    trace = Trace(0, 1, events=[Alloc(0, MIB, 0, 0), Alloc(1, MIB, 0, 1)], sites=SITES, phases=PHASES)
    write(tmp_path / "viz.pickle", trace)
    first, second = (block.stack for block in read_snapshot(tmp_path / "viz.pickle").live)
    assert first == (("??", 0, "at::_ops::mm::call"), (MODEL, 7, "forward"), ("train.py", 3, "??"))
    assert second == (("??", 0, "at::_ops::mm::call"), ("??", 0, "torch::autograd::MmBackward0::apply"))


def test_an_out_of_memory_ends_the_entries(tmp_path):
    events = [Alloc(0, 30 * MIB, 0, 0), Alloc(1, 30 * MIB, 0, 1), Free(0)]
    trace = Trace(0, 1, events=events, sites=SITES, phases=PHASES)
    write(tmp_path / "viz.pickle", trace, capacity=40 * MIB)
    (entries,) = read_plain_pickle(tmp_path / "viz.pickle")["device_traces"]
    assert [entry["action"] for entry in entries] == ["segment_alloc", "alloc", "oom"]
    assert (entries[-1]["size"], entries[-1]["device_free"]) == (30 * MIB, 10 * MIB)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(WriteError, match=str(tmp_path)):
        write(tmp_path, Trace(0, 1))
