"""Figures of the memory of a run, from a history whose sums are known."""

from dataclasses import replace

import pytest

from memlab.analyse.collect import collect
from memlab.analyse.explain.explained_run import explain
from memlab.core.sizes import GIB
from memlab.prediction.traces.store import code_digest
from memlab.report.figures import canvas
from memlab.report.figures.canvas import NothingToDraw
from memlab.report.figures.explained import (
    SLACK,
    SMALLER,
    DrawnRun,
    by_phase,
    draw_explained,
    layers,
    over_ranks,
    over_step,
    overlaid,
)
from memlab.runs.folder import RunFolder
from memlab.simulator.trace.events import Alloc, BeginPhase, Free, HostAlloc, HostFree
from memlab.simulator.trace.trace_format import Piece, Site, Trace

KINDS = ("weights", "activations", "optimizer states")
PHASES = ("model_build", "forward", "optimizer_step")


def trace(activations: int, phases: tuple[str, ...] = PHASES) -> Trace:
    """2 GiB of weights stay, activations come and go, 3 GiB of optimizer states come. Sizes in GiB."""
    events = [
        *(BeginPhase(0), Alloc(0, 2 * GIB, 0, 0), HostAlloc(8, GIB, True)),
        *(BeginPhase(1), Alloc(1, activations * GIB, 0, 1), HostAlloc(9, 2 * GIB, False), Free(1)),
        *(BeginPhase(2), Alloc(2, 3 * GIB, 0, 2), HostFree(9)),
    ]
    sites = [Site(kind, "aten.empty", "model.py:7", "forward", "mlp", (1,)) for kind in KINDS]
    pieces = [Piece(step, "train.py:3", True) for step in (None, 1, 1)]
    return Trace(0, 2, 1, 512, events, list(phases), sites, steps=[3], pieces=pieces)


@pytest.fixture
def write(tmp_path, record, rank, config):
    """``write("name", trace)``: a run folder of a predicted command on two GPUs."""

    def build(name: str, of_rank: Trace, **changes):
        folder = RunFolder(tmp_path / name)
        folder.claim()
        hardware = {"hardware.device": "cuda", "hardware.gpu": "NVIDIA H200", "hardware.memory_gib": 140.0}
        command = {"words": ["python", "train.py"]}
        values = {"source": "predicted", "config": config(hardware), "command": command, **changes}
        ranks = [rank(number, peak_allocated_bytes=8 * GIB) for number in (0, 1)]
        folder.finish(record(ranks=ranks, environment={"predictor": code_digest()}, **values))
        of_rank.save(folder.path / "rank0.trace.json")
        return folder.path

    return build


def drawn(*paths) -> list[DrawnRun]:
    explained = [(view, explain(RunFolder(view.path))) for view in collect(paths).runs]
    return [DrawnRun(view, run.record, run.shown) for view, run in explained]


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_layers_add_up_to_reserved_memory_and_small_kinds_are_one():
    kinds = {"weights": [600, 600], "gradients": [0, 300], "activations": [3, 0], "logits and loss": [0, 5]}
    found = layers(kinds, [700, 1000], outside=[50, 50])
    assert [layer.name for layer in found][:2] == ["weights", "gradients"]
    assert {layer.name: layer.sizes for layer in found[2:4]} == {SMALLER: [3, 5], SLACK: [97, 95]}
    assert [sum(sizes) for sizes in zip(*(layer.sizes for layer in found), strict=True)] == [750, 1050]


def test_a_step_is_a_stack_with_its_phases_and_its_peak_and_the_host_below(write):
    with canvas.style():
        device, host = over_step(drawn(write("run", trace(6)))[0]).axes
    assert (device.get_ylabel(), host.get_ylabel()) == ("GiB", "host, GiB")
    assert host.get_xlabel() == "allocations, frees and other events since the step began"
    assert texts(device) == ["peak 8.00 GiB", "forward", "optimizer step"]
    assert {"weights", "activations", "optimizer states", SLACK} <= set(device.get_legend_handles_labels()[1])
    assert host.get_ylim()[1] == pytest.approx(1.15 * 3)  # 1 page-locked, 2 pageable


def test_a_step_without_tensors_on_the_host_has_one_panel(write):
    alone = trace(6)
    alone.events = [event for event in alone.events if not isinstance(event, HostAlloc | HostFree)]
    with canvas.style():
        assert len(over_step(drawn(write("run", alone))[0]).axes) == 1


def test_bars_of_a_phase_reach_the_memory_that_is_used(write):
    run = drawn(write("run", trace(6)))[0]
    with canvas.style():
        device, host = by_phase(run).axes
    tops = {round(bar.get_x() + bar.get_width() / 2, 1): bar.get_y() + bar.get_height() for bar in device.patches}
    outside = sum(share.nbytes for share in run.rank.device.outside(run.rank.peak.event)) / GIB
    assert tops[0.8] == pytest.approx(8 + outside)  # forward, at its peak
    assert tops[2.2] == pytest.approx(8 + outside)  # what was freed stays reserved
    assert [label.get_text() for label in device.get_xticklabels()] == ["model\nbuild", "forward", "optimizer\nstep"]
    assert [label.get_text() for label in host.get_yticklabels()] == ["whole run", "page-locked"]


def test_ranks_are_rows_of_a_heat_map_with_numbers(write):
    with canvas.style():
        allocated = over_ranks(drawn(write("run", trace(6)))[0]).axes[0]
    assert [label.get_text() for label in allocated.get_yticklabels()] == ["0", "1"]
    assert [label.get_text() for label in allocated.get_xticklabels()] == ["first forward", "forward"]
    assert texts(allocated) == ["1.0", "2.0", "1.0", "2.0"]


def test_a_run_without_phases_has_no_figure_by_phase(write):
    bare = replace(trace(6), phases=[], steps=[], pieces=[])
    bare.events = [event for event in bare.events if not isinstance(event, BeginPhase)]
    [run] = drawn(write("run", bare))
    run = replace(run, record=replace(run.record, ranks=[{**rank, "phases": {}} for rank in run.record.ranks]))
    for make in (by_phase, over_ranks):
        with pytest.raises(NothingToDraw, match="phase"):
            make(run)


def test_two_runs_lie_over_each_other_phase_by_phase(write):
    first, second = drawn(write("a", trace(6)), write("b", trace(5)))
    with canvas.style():
        figure = overlaid(first, second)
    assert "(-12.5 %)" in figure.get_suptitle()
    assert [axes.get_ylabel() for axes in figure.axes] == ["allocated, GiB", "reserved, GiB"]
    assert [axes.get_xlim() for axes in figure.axes] == [(0, 7), (0, 7)]


def test_steps_of_other_phases_are_not_overlaid(write):
    other = replace(trace(6), phases=["model_build", "forward", "backward"])
    with pytest.raises(NothingToDraw, match="forward, optimizer_step; and forward, backward"):
        overlaid(*drawn(write("a", trace(6)), write("b", other)))


def test_steps_without_phases_are_not_overlaid(write):
    first, second = drawn(write("a", trace(6)), write("b", trace(6, phases=("", "", ""))))
    for pair in ((second, second), (first, second)):
        with pytest.raises(NothingToDraw, match="has no phases"):
            overlaid(*pair)


def test_the_figures_of_a_run_are_written_and_a_run_without_a_history_is_named(write, tmp_path):
    write("known", trace(6))
    (write("lost", trace(6)) / "rank0.trace.json").unlink()
    output = tmp_path / "out"
    output.mkdir()
    found = list(draw_explained(collect([tmp_path]).runs, output))
    names = [[file.name for file in files] for _, files in found if not isinstance(files, str)]
    assert names == [[f"explain-{part}.{ending}" for ending in ("png", "svg")] for part in ("step", "phases", "ranks")]
    (reason,) = [files for _, files in found if isinstance(files, str)]
    assert "the traces of this prediction are gone" in reason
