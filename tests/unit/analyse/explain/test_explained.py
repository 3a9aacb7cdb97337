"""A prediction explained: its moments are those of the phases, also where waits of the host are in the trace."""

from types import SimpleNamespace

from memlab.analyse.explain.explained import explain
from memlab.core.config import Allocator, Config, Hardware
from memlab.predict.trace.events import Alloc, BeginPhase, Free, RecordStream, Synchronize
from memlab.predict.trace.trace_format import Piece, Site, Trace
from memlab.predict.trace.work_items import KernelLaunch

MIB = 1 << 20
HARDWARE = Hardware(
    gpu="a round one", gpus=2, bf16_tflops=100.0, fp32_tflops=10.0, memory_gb_per_s=1000.0, link_gb_per_s=100.0,
    host_gb_per_s=10.0,
)  # fmt: skip
LINES = ("train.py:3", "train.py:5")


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
        work=[KernelLaunch(0, 0, 0, True, 0, (0,))],
        events_before=[2],
    )
    trace.save(tmp_path / "rank0.trace.json")
    config = Config(hardware=HARDWARE, allocator=Allocator(conf=""))
    record = SimpleNamespace(source="predicted", command={}, config=config)
    (rank,) = explain(SimpleNamespace(path=tmp_path, read_record=lambda: record))
    assert (rank.phase, rank.where, rank.peak.requested) == ("backward", LINES[1], 3 * MIB)
    assert [(run.part.phase, run.end.requested) for run in rank.phases] == [("forward", 0), ("backward", 0)]
