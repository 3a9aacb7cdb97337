"""The table of explained runs. Its columns are part of the public surface: scripts and notebooks use them."""

from types import SimpleNamespace

from folders import make_record, write

from memlab.analyse.collect import collect
from memlab.analyse.explain import table
from memlab.analyse.explain.accounting import Share, used
from memlab.analyse.explain.explained import Explained, History, Position
from memlab.analyse.explain.explained_run import ExplainedRun
from memlab.analyse.explain.snapshot_trace import OTHER
from memlab.prediction.memory.ledger import Holding, Moment, Slack
from memlab.simulator.allocator import RecordingAllocator
from memlab.simulator.trace.trace_format import Site, Trace

COLUMNS = """
run_id path source rank phase step
used_bytes reserved_bytes outside_bytes unexplained_bytes requested_bytes slack_bytes unexplained unexplained_most
requested_activations_bytes requested_of_unknown_origin_bytes outside_CUDA_context_bytes
"""
NOTHING = Slack(0, 0, 0, 0)


def moment(activations: int, other: int) -> Moment:
    holdings = (
        Holding(Site("activations", "aten.mm", "model.py:7", "forward", "mlp", ()), activations, 1),
        Holding(Site(OTHER, "", "", "", "", ()), other, 1),
    )
    return Moment(0, activations + other, activations + other, holdings, NOTHING)


def explained(peak: Moment, end: Moment, driver: int) -> Explained:
    """A rank with 100 bytes outside the allocator."""
    run = SimpleNamespace(end=end)
    outside = (Share("CUDA context", 100),)
    device = SimpleNamespace(outside=lambda event: outside, driver=lambda event: driver)
    history = History(Trace(0, 1), "", RecordingAllocator)
    return Explained("measured", history, device, peak, Position("backward", 2, None), (run,))


def test_the_row_of_a_rank(tmp_path, monkeypatch):
    """Unexplained: 10 bytes without a cause, and 5 that the driver counts and no part does."""
    peak, end = moment(885, 10), moment(100, 50)
    run = ExplainedRun(None, None, [explained(peak, end, driver=1000)])
    monkeypatch.setattr(table, "explain", lambda folder: run)
    write(tmp_path, make_record())
    frame, problems = table.explained_table(collect([tmp_path]).runs)
    assert list(frame) == COLUMNS.split() and not problems
    row = frame.iloc[0]
    assert used(peak, [Share("CUDA context", 100)], 1000).nbytes == row["used_bytes"] == 1000
    assert (row["unexplained_bytes"], row["unexplained"]) == (15, 0.015)
    assert row["unexplained_most"] == (50 + 750) / 1000  # at the end of the phase


def test_a_run_without_a_history_is_told(tmp_path):
    write(tmp_path, make_record())
    frame, problems = table.explained_table(collect([tmp_path]).runs)
    assert frame.empty
    assert len(problems) == 1 and "no memory history is in this folder" in problems[0]
