"""Runs explained: moments are those of the phases, with waits of the host in a trace, and readings of the driver."""

import io
import json
from types import SimpleNamespace

import pytest
from recordings import CONTEXT, keep, marks, snapshot
from rich.console import Console

from memlab.analyse.explain import explained
from memlab.analyse.explain.explained import explain_prediction
from memlab.analyse.explain.explained_run import explain
from memlab.analyse.explain.recorded_ranks import RecordedRanks
from memlab.core.config import Allocator, Config, Hardware, Measure
from memlab.core.errors import RecordError, ShadowError
from memlab.report.explain_text import show_explained
from memlab.runs.folder import RunFolder
from memlab.simulator.trace.events import Alloc, BeginPhase, BeginPoint, EmptyCache, Free, RecordStream, Synchronize
from memlab.simulator.trace.trace_format import Piece, Site, Trace
from memlab.simulator.trace.work_items import HALF, KernelLaunch

MIB = 1 << 20
HARDWARE = Hardware(
    gpu="a round one", gpus=2, bf16_tflops=100.0, fp32_tflops=10.0, memory_gb_per_s=1000.0, link_gb_per_s=100.0,
    host_gb_per_s=10.0,
)  # fmt: skip
COMMAND = {"words": ["python", "train.py"]}
LINES = ("train.py:3", "train.py:5")


def printed(rank) -> str:
    out = Console(width=200, record=True, file=io.StringIO())
    show_explained(rank, out, depth=3)
    return out.export_text()


def test_phases_and_the_peak_are_found_beside_waits_of_the_host(tmp_path):
    """With the speeds of the hardware, the waits become release delays, and all later events move forward."""
    events = [
        *(BeginPhase(0), Alloc(0, MIB, 1, 0), RecordStream(0, 0), Synchronize(1), Synchronize(1), Free(0)),
        *(BeginPhase(1), Alloc(1, 3 * MIB, 0, 1), Synchronize(2), Synchronize(2), Synchronize(2), Free(1)),
    ]
    trace = Trace(
        *(0, 2),
        events=events,
        phases=["forward", "backward"],
        pieces=[Piece(1, line, True) for line in LINES],
        sites=[Site("activations", "aten.mm.default", "model.py:7", "forward", "mlp", (MIB,), line) for line in LINES],
        steps=[0],
        work=[KernelLaunch(0, 0, 0, HALF, 0, (0,))],
        events_before=[2],
    )
    trace.save(tmp_path / "rank0.trace.json")
    config = Config(hardware=HARDWARE, allocator=Allocator(conf=""))
    record = SimpleNamespace(source="predicted", status="ok", command=COMMAND, config=config, environment={}, ranks=[])
    (rank,) = explain(SimpleNamespace(path=tmp_path, read_record=lambda: record)).ranks
    assert (rank.at.phase, rank.at.line, rank.peak.requested) == ("backward", LINES[1], 3 * MIB)
    assert [(run.part.phase, run.end.requested) for run in rank.phases] == [("forward", 0), ("backward", 0)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda trace: trace.pop("earlier_work"),
        lambda trace: trace.update(gone=1),
        lambda trace: trace["events"]["BeginPhase"]["phase"].clear(),
        lambda trace: trace["events"].update(kinds="?"),
    ],
)
def test_a_trace_of_another_memlab_is_refused_in_one_line(tmp_path, damage):
    place = tmp_path / "rank0.trace.json"
    values = Trace(0, 1, events=[BeginPhase(0)], phases=["forward"]).to_json()
    damage(values)
    place.write_text(json.dumps(values))
    record = SimpleNamespace(source="predicted", status="ok", command=COMMAND)
    with pytest.raises(RecordError, match=r"rank0.trace.json: not a trace of this version of memlab.*predict again"):
        explain(SimpleNamespace(path=tmp_path, read_record=lambda: record))


def test_a_prediction_that_cannot_be_made_again_is_named(tmp_path, monkeypatch):
    def fails(plans):
        raise ShadowError("the model is gone")

    monkeypatch.setattr(explained, "traces_in_launch", fails)
    record = SimpleNamespace(source="predicted", status="ok", command={})
    folder = RunFolder(tmp_path)
    monkeypatch.setattr(RunFolder, "read_record", lambda self: record)
    monkeypatch.setattr(RunFolder, "read_plan", lambda self: None)
    with pytest.raises(RecordError, match=f"{tmp_path}: .*the model is gone"):
        explain(folder)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "there is nothing to explain"),
        ([BeginPhase(0)], "there is nothing to explain"),
        ([Alloc(0, 1 << 50, 0, 0)], "its first request, 1,125,899,906,842,624 bytes, finds no room"),
    ],
)
def test_a_command_that_got_no_memory_is_told_in_one_line(events, reason):
    config = Config(hardware=HARDWARE, allocator=Allocator(conf=""))
    trace = Trace(0, 2, events=events, phases=["load"], pieces=[Piece(None, None, True)])
    with pytest.raises(RecordError, match=f"rank 0 got no memory on the GPU: {reason}"):
        explain_prediction(config, trace, 1 << 40)


def test_a_step_whose_first_request_finds_no_room_is_explained():
    """The peak of the steps is then what is there when they begin."""
    sites = [
        Site("weights", "aten.empty.memory_format", "model.py:7", "load", "mlp", (MIB,)),
        Site("activations", "aten.mm.default", "model.py:9", "forward", "mlp", (MIB,)),
    ]
    events = [
        *(BeginPhase(0), Alloc(0, 30 * MIB, 0, 0), Alloc(1, 40 * MIB, 0, 1), Free(1), EmptyCache(), BeginPoint()),
        *(BeginPhase(1), Alloc(2, 80 * MIB, 0, 1)),
    ]
    trace = Trace(0, 1, events=events, phases=["engine_init", "forward"], sites=sites, steps=[6])
    rank = explain_prediction(Config(hardware=HARDWARE, allocator=Allocator(conf="")), trace, 100 * MIB)
    assert {held.site.kind: held.nbytes for held in rank.peak.holdings} == {"weights": 30 * MIB}
    assert rank.oom.part.phase == "forward"
    assert (rank.oom.request.nbytes, rank.oom.request.free_on_device) == (80 * MIB, 70 * MIB)
    assert rank.oom.request.site is sites[1] and not rank.oom.is_fragmentation
    assert [(event.action, event.nbytes // MIB) for event in rank.oom.last] == [
        *(("requested", 30), ("requested", 40), ("freed", 40), ("given back to the device", 40))
    ]
    text = " ".join(printed(rank).split())
    assert text.startswith(
        "Rank 0 would run out of memory (forward, step 1): 80.0 MiB requested by mm in mlp (model.py:9)."
    )
    assert "memory when it ran out, rank 0" in text


def test_a_command_without_steps_is_explained():
    events = [BeginPhase(0), Alloc(0, 3 * MIB, 0, 0)]
    site = Site("weights", "aten.empty.memory_format", "model.py:7", "load", "mlp", (MIB,))
    trace = Trace(0, 2, events=events, phases=["load"], sites=[site], pieces=[Piece(None, None, True)])
    rank = explain_prediction(Config(hardware=HARDWARE, allocator=Allocator(conf="")), trace)
    assert (rank.at.phase, rank.at.step, rank.peak.requested) == ("load", None, 3 * MIB)


@pytest.mark.parametrize(("protocol", "cached"), [("steps", 0), ("cold", 50 * MIB)])
def test_the_cache_is_emptied_before_the_first_step_as_in_the_measurement(protocol, cached):
    events = [
        *(BeginPhase(0), Alloc(0, 50 * MIB, 0, 0), Free(0), EmptyCache(), BeginPoint()),
        *(BeginPhase(1), Alloc(1, 20 * MIB, 1, 0), Alloc(2, 60 * MIB, 1, 0)),
    ]
    site = Site("activations", "aten.mm.default", "model.py:7", "forward", "mlp", (MIB,))
    trace = Trace(0, 1, events=events, phases=["engine_init", "forward"], sites=[site], steps=[5])
    config = Config(hardware=HARDWARE, allocator=Allocator(conf=""), measure=Measure(protocol=protocol))
    peak = explain_prediction(config, trace).peak
    assert (peak.allocated, peak.slack.releasable, peak.reserved) == (80 * MIB, cached, 80 * MIB + cached)


def test_at_the_end_of_a_phase_the_driver_was_read(tmp_path):
    """The reading that a phase ends with comes after its last request, and before the first one of the next phase."""
    keep(RunFolder(tmp_path), 0, snapshot(), marks())
    rank = RecordedRanks(RunFolder(tmp_path), []).explain(0)
    build = rank.phases[0].end
    assert rank.used(build).nbytes == CONTEXT + 2 * MIB
    assert [share.nbytes for share in rank.device.outside(build.event)] == [CONTEXT]
