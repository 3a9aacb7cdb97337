"""The Chrome trace of a predicted step: valid, as long as the step, without overlaps in a row; and of a history."""

import gzip
import json
import random
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from memlab.analyse.explain.explained_run import ExplainedRun, explain
from memlab.analyse.explain.exports import HOST, STEP, STREAMS, write_chrome_trace
from memlab.analyse.explain.placements import timeline
from memlab.core.config import Allocator, Config, Hardware
from memlab.core.errors import RecordError
from memlab.prediction.time.clocks import LOWER_BOUND, step_seconds
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.trace_format import Piece, Site, Trace
from memlab.simulator.trace.work_items import (
    EVERYTHING,
    HALF,
    PINNED,
    BeginWorkPhase,
    Collective,
    Copy,
    HostWaits,
    HostWork,
    KernelLaunch,
    Launcher,
    RecordEvent,
    StreamWaitsForCollective,
)

MIB = 1 << 20
WEIGHTS = 64 * MIB
HARDWARE = Hardware(
    gpu="a round one", gpus=2, bf16_tflops=100.0, fp32_tflops=10.0, memory_gb_per_s=1000.0, link_gb_per_s=100.0,
    host_gb_per_s=10.0,
)  # fmt: skip
CONFIG = Config(hardware=HARDWARE, allocator=Allocator(conf=""))
PHASES = ["first_forward", "forward", "backward", "optimizer_step"]
LAUNCHERS = [Launcher("aten.mm.default", "layers.0.mlp"), Launcher("aten.add.Tensor", "layers.1.mlp")]
COMMAND = {"words": ["python", "train.py"]}
STEPS = {"basis": "lower bound", "basis_reason": "no calibration for a round one"}


def random_trace(seed: int) -> Trace:
    """Two steps; the work of the second one is counted. The script goes on after them, and frees its weights."""
    chance, events, work, before, key, collectives = random.Random(seed), [], [], [], 0, 0
    for number in range(len(PHASES)):
        if number == 1:
            begin = len(events)
        events += [BeginPhase(number), *([] if number else [Alloc(-1, WEIGHTS, 0, 0)])]
        items = [BeginWorkPhase(2, 1, number)]
        for index in range(40):
            events.append(Alloc(key, chance.randrange(1, 30) * MIB, 0, chance.randrange(2)))
            launcher, ahead = chance.randrange(2), chance.randrange(3)
            items.append(KernelLaunch(ahead, 0, 0, HALF, chance.randrange(10**11), (MIB,), launcher))
            if index % 9 == 0:
                items.append(Collective(1, 0, 0, 2, 2, chance.randrange(10**8)))
            if number == 2 and index % 11 == 0:
                items += [RecordEvent(0, 0, 0, index // 11), HostWaits(0, 0, index // 11)]
            if index % 13 == 0:
                items += [Copy(0, 0, chance.choice([0, 5]), False, PINNED, 10**7), HostWork(1, 0, (MIB,))]
            events.append(Free(key))
            key += 1
            if number:
                before += [len(events)] * (len(items) - len(before) + len(work))
        if number:
            collectives += sum(isinstance(item, Collective) for item in items)
            work += [*items, StreamWaitsForCollective(0, 0, 0, collectives - 1)]
            before.append(len(events))
    events += [BeginPhase(2), Free(-1)]
    work += [BeginWorkPhase(0, 0, 0), HostWaits(0, 0, EVERYTHING)]
    before += [len(events) - 1, len(events)]
    site = Site("activations", "aten.mm.default", "model.py:7", "forward", "mlp", (MIB,), "train.py:3")
    pieces = [Piece(step, "train.py:3", True) for step in (1, 2, 2, 2, 3)]
    return Trace(
        *(0, 2), events=events, phases=PHASES, sites=[site] * 2, steps=[0, begin], work=work, events_before=before,
        launchers=LAUNCHERS, pieces=pieces,
    )  # fmt: skip


def predicted(tmp_path, **facts) -> ExplainedRun:
    """Explain the command whose traces lie in a folder."""
    values = {"run_id": "mine", "source": "predicted", "command": COMMAND, "config": CONFIG, "steps": STEPS, **facts}
    record = SimpleNamespace(status="ok", environment={}, ranks=[], **values)
    return explain(SimpleNamespace(path=tmp_path, read_record=lambda: record))


def written(tmp_path, trace: Trace, name: str = "new_folder/trace.json", **facts) -> dict:
    trace.save(tmp_path / "rank0.trace.json")
    write_chrome_trace(tmp_path / name, predicted(tmp_path, **facts))
    content = (tmp_path / name).read_bytes()
    return json.loads(gzip.decompress(content) if name.endswith(".gz") else content)


@pytest.mark.parametrize("seed", range(3))
def test_the_trace_is_as_long_as_the_predicted_step_and_nothing_overlaps_in_a_row(tmp_path, seed):
    trace = random_trace(seed)
    found = written(tmp_path, trace)
    seconds = step_seconds(CONFIG, {0: trace}, LOWER_BOUND)
    rows = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            begin, length = (1000 * event[key] for key in ("ts", "dur"))
            assert begin == pytest.approx(round(begin), abs=1e-3) and length == pytest.approx(round(length), abs=1e-3)
            rows[event["tid"]].append((round(begin), round(begin) + round(length)))
    assert rows[STEP] == [(0, round(1e9 * seconds))]
    names = {event["tid"] for event in found["traceEvents"] if event["name"] == "thread_name"}
    assert names == set(rows)
    for row, slices in rows.items():
        assert min(slices)[0] >= 0 and max(end for _, end in slices) <= round(1e9 * seconds)
        assert all(end > begin for begin, end in slices)
        if row != HOST:
            assert all(end <= begin for (_, end), (begin, _) in pairwise(sorted(slices)))
    around: list[tuple[int, int]] = []  # phases hold modules, and these hold operators
    for begin, end in sorted(rows[HOST], key=lambda slice: (slice[0], -slice[1])):
        while around and around[-1][1] <= begin:
            around.pop()
        assert not around or end <= around[-1][1]
        around.append((begin, end))
    assert found["otherData"] == {
        **{"run": "mine", "source": "predicted", "rank": 0, "step": 2},
        **{"step_seconds": pytest.approx(seconds), "step_time": "lower bound: no calibration for a round one"},
    }


def test_every_kernel_of_the_step_is_in_its_stream_with_its_name(tmp_path):
    trace = random_trace(4)
    events = written(tmp_path, trace)["traceEvents"]
    streams = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert set(streams) == {
        *("step", "host: phase, module, operator", "link between GPUs", "link to the host"),
        *("GPU stream 0", "GPU stream 5", "GPU collectives"),
    }
    kernels = [event for event in events if event["ph"] == "X" and event["tid"] == streams["GPU stream 0"]]
    assert {event["name"] for event in kernels} >= {launcher.operator for launcher in LAUNCHERS}
    assert {event["args"]["phase"] for event in kernels} >= {"forward", "backward", "optimizer_step"}
    assert sum("flops" in event["args"] for event in kernels) >= sum(
        isinstance(item, KernelLaunch) for item in trace.work
    )
    reductions = [event for event in events if event["ph"] == "X" and event["tid"] == streams["GPU collectives"]]
    assert {(event["name"], event["args"]["kind"]) for event in reductions} == {("all_reduce", "communication")}


@pytest.mark.parametrize("seed", range(3))
def test_an_arrow_leads_from_each_launch_to_what_it_launches(tmp_path, monkeypatch, seed):
    costs = replace(LOWER_BOUND, operator_s=1e-5)
    monkeypatch.setattr("memlab.analyse.explain.exports.LOWER_BOUND", costs)
    events = written(tmp_path, random_trace(seed))["traceEvents"]
    names = defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            names[event["tid"], event["ts"]].add(event["name"])
    begins, ends = ({event["id"]: event for event in events if event["ph"] == kind} for kind in "sf")
    assert begins.keys() == ends.keys()
    streams = [event for event in events if event["ph"] == "X" and event["tid"] >= STREAMS]
    assert 0.5 * len(streams) < len(ends) <= len(streams)  # a third is launched without an operator before it
    for number, begin in begins.items():
        end = ends[number]
        assert begin["tid"] == HOST and begin["ts"] <= end["ts"]
        assert names[HOST, begin["ts"]] & names[end["tid"], end["ts"]]


def test_the_counters_reach_the_peak_of_the_step(tmp_path):
    trace = random_trace(5)
    events = written(tmp_path, trace)["traceEvents"]
    memory = timeline(predicted(tmp_path).shown)
    counted = [event["args"]["bytes"] for event in events if event["name"] == "allocated"]
    assert max(counted) == max(memory.allocated[trace.steps[-1] :])
    assert min(counted) == WEIGHTS, "what the script frees after its last step is not of the step"
    times = [event["ts"] for event in events if event["ph"] == "C"]
    assert times == sorted(times) and times[0] >= 0


def test_what_follows_the_step_has_the_name_of_its_own_phase(tmp_path):
    """The work of the step ends with the beginning of a phase that has no name yet (number 0)."""
    found = [event for event in written(tmp_path, random_trace(6))["traceEvents"] if event["ph"] == "X"]
    phases = [event for event in found if event["tid"] == HOST and event["name"] in PHASES]
    assert max(phases, key=lambda event: event["ts"])["name"] == "backward"


def test_a_name_with_gz_is_compressed(tmp_path):
    assert written(tmp_path, random_trace(0), "trace.json.gz")["displayTimeUnit"] == "ns"


def test_without_a_step_time_there_is_no_trace(tmp_path):
    with pytest.raises(RecordError, match="no step time"):
        written(tmp_path, random_trace(0), steps={})


def test_the_memory_of_a_measured_run(tmp_path):
    random_trace(1).save(tmp_path / "rank0.trace.json")
    rank = predicted(tmp_path).shown
    measured = ExplainedRun(None, SimpleNamespace(run_id="mine", source="measured"), [rank])
    with pytest.raises(RecordError, match="no clock"):
        write_chrome_trace(tmp_path / "trace.json", measured)
    seconds = [index * 1e-3 for index in range(len(rank.history.trace.events))]
    clocked = replace(rank, history=replace(rank.history, seconds=seconds))
    write_chrome_trace(tmp_path / "trace.json", replace(measured, ranks=[clocked]))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    memory = timeline(rank)
    parts = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["args"]["step"]) for event in parts] == [part[:2] for part in memory.parts]
    assert max(event["args"]["bytes"] for event in events if event["ph"] == "C") == max(memory.reserved)
