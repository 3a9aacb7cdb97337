"""Every kind of figure: PNG and SVG, units on the axes, the same colours everywhere, and sense in odd cases."""

import json
from dataclasses import replace

import pytest
from folders import make_config
from sweeps import add_point, small_sweep

from memlab.analyse.collect import collect
from memlab.cli.main import main
from memlab.core.config_values import to_dict
from memlab.report.figures import KINDS, canvas, draw
from memlab.report.figures.by_point import _bars, front, stack
from memlab.report.figures.canvas import NothingToDraw, sheets
from memlab.report.palette import styles
from memlab.runs.folder import RunFolder

LABELS = {
    "memory_over_seq_len": ("sequence length, tokens", "GiB per GPU"),
    "memory_over_batch": ("micro batch, samples per GPU", "GiB per GPU"),
    "reserved_against_allocated": ("peak allocated, GiB, highest rank", "peak reserved, GiB, highest rank"),
    "speed_over_seq_len": ("sequence length, tokens", "iterations/s"),
    "speed_over_batch": ("micro batch, samples per GPU", "iterations/s"),
    "overlay": ("", "GiB per GPU"),
    "phases": ("", "GiB, highest rank"),
    "step_memory": ("allocations and frees since the step began", "GiB"),
    "predicted_against_measured": ("measured, GiB, highest rank", "predicted, GiB, highest rank"),
    "fit": ("tokens of one forward (micro batch x sequence length)", "peak allocated, GiB"),
    "cost": ("USD per million tokens", ""),
    "pareto": ("peak reserved, GiB, highest rank", "tokens/s, all GPUs"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = small_sweep(tmp_path_factory.mktemp("sweep"))
    keep_curve(add_point(folder, 2048, mode="predict"))
    return collect([folder]).runs


def keep_curve(path):
    """What a prediction keeps of one step."""
    file = RunFolder(path).path / RunFolder.RECORD
    record = json.loads(file.read_text())
    curve = {"event": [0, 5, 9], "allocated_bytes": [2**30, 3 * 2**30, 2**30], "reserved_bytes": [2**30, 2**32, 2**32]}
    record["ranks"][0]["curve"] = {**curve, "phases": [[0, "forward"], [5, "backward"]]}
    file.write_text(json.dumps(record))


def figures_of(runs, kind):
    with canvas.style():
        return [figure for sheet in sheets(runs) for _, figure in KINDS[kind](sheet)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_as_png_and_svg(runs, kind, tmp_path):
    [(name, files), *_] = draw(runs, tmp_path, [kind])
    assert name == kind
    assert [file.suffix for file in files] == [".png", ".svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_axes_have_names_and_units(runs, kind):
    axes = figures_of(runs, kind)[0].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == LABELS[kind]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fit"])
def test_what_a_figure_shows_begins_at_zero(runs, kind):
    """A difference panel excepted, which is below."""
    assert figures_of(runs, kind)[0].axes[0].get_ylim()[0 if kind != "cost" else 1] <= 0


def test_a_configuration_has_one_colour_in_all_figures(runs):
    [sheet] = sheets(runs)
    label = next(label for label in sheet.configurations if "expandable" in label)
    found = set()
    for kind in ("memory_over_seq_len", "speed_over_batch", "pareto", "reserved_against_allocated"):
        for line in figures_of(runs, kind)[0].axes[0].get_lines():
            if line.get_label().startswith(sheet.short(label)):
                found.add(line.get_color())
    assert found == {sheet.styles[label].color}


def test_styles_follow_from_the_place_and_never_recur():
    looks = styles(f"zero_stage=zero{number}" for number in range(28))
    assert len({(look.color, look.dash) for look in looks.values()}) == 28
    assert looks == styles(looks)


def test_an_out_of_memory_is_marked(runs):
    figure = figures_of(runs, "memory_over_batch")[0]
    crosses = [line for line in figure.axes[0].get_lines() if line.get_marker() == "X" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in crosses] == [[4]]


@pytest.mark.parametrize("kind", ["cost", "pareto"])
def test_a_speed_that_is_only_a_bound_ranks_no_configuration(tmp_path, kind):
    path = add_point(tmp_path, 512, mode="predict")
    file = RunFolder(path).path / RunFolder.RECORD
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "source": "predicted", "steps": {"basis": "lower bound"}}))
    with pytest.raises(NothingToDraw):
        figures_of(collect([tmp_path]).runs, kind)


def test_one_point_is_no_line_but_a_pareto_front(tmp_path):
    add_point(tmp_path, 128)
    told = dict(draw(collect([tmp_path]).runs, tmp_path, ["memory_over_seq_len", "overlay", "fit", "pareto"]))
    assert "no configuration has two points along seq_len.tokens" in told["memory_over_seq_len"]
    assert "three" in told["overlay"] and "three" in told["fit"]
    assert [file.name for file in told["pareto"]] == ["pareto.png", "pareto.svg"]


def test_thirty_configurations_have_a_legend_below_the_axes(tmp_path):
    for number in range(30):
        config = make_config()
        config.zero_stage.reduce_bucket_size = 1000 + number
        for tokens in (128, 256):
            values = {**to_dict(config), "seq_len": {"tokens": tokens}}
            add_point(tmp_path, tokens, config=values, run_id=f"run-{number}-{tokens}")
    [figure] = figures_of(collect([tmp_path]).runs, "memory_over_seq_len")
    figure.draw_without_rendering()
    [legend] = figure.legends
    assert len(legend.get_texts()) >= 30
    lowest = min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert legend.get_window_extent().y1 <= lowest + 1
    assert legend.get_window_extent().y0 >= 0


def test_a_run_without_phases_has_no_bars(runs):
    _, panels = canvas.new_figure()
    _bars(panels[0][0], replace(runs[0], detail="[{}, []]"))
    assert not panels[0][0].patches


def test_the_parts_of_a_phase_add_up_to_what_was_reserved():
    sizes = {"end_allocated_bytes": 3, "peak_allocated_bytes": 5, "peak_reserved_bytes": 9}
    assert stack({key: {"max": size, "min": 0} for key, size in sizes.items()}) == [3, 2, 4]


def test_the_front_is_what_nothing_beats_in_both(runs):
    ok = [run for run in runs if run.status == "ok" and run.source == "measured"]
    best = front(ok)
    for run in best:
        speed, memory = run.summary["tokens_per_second"], run.summary["peak_reserved_bytes"]["max"]
        assert not any(
            other.summary["tokens_per_second"] > speed and other.summary["peak_reserved_bytes"]["max"] <= memory
            for other in ok
        )


def test_runs_without_figures_are_a_reason_not_an_error(tmp_path):
    add_point(tmp_path, 128, status="gpu_oom")
    [sheet] = sheets(collect([tmp_path]).runs)
    for kind in KINDS.values():
        with pytest.raises(NothingToDraw), canvas.style():
            list(kind(sheet))


def test_the_command_writes_what_was_asked_for(tmp_path, capsys):
    small_sweep(tmp_path / "runs")
    with pytest.raises(SystemExit) as end:
        main(["figures", str(tmp_path / "runs"), "--output", str(tmp_path / "out"), "--kind", "pareto"])
    assert end.value.code == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["pareto.png", "pareto.svg"]
    with pytest.raises(SystemExit) as end:
        main(["figures", str(tmp_path / "runs"), "--output", str(tmp_path / "out"), "--kind", "paretto"])
    assert end.value.code == 2
    assert "Did you mean 'pareto'?" in capsys.readouterr().err


def test_a_link_in_the_place_of_a_figure_is_replaced(runs, tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "cost.png").symlink_to("precious")
    dict(draw(runs, tmp_path, ["cost"]))
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "cost.png").is_symlink()


def test_words_that_name_no_run_leave_no_folder(tmp_path):
    small_sweep(tmp_path / "runs")
    for words in (
        ["--where", "zero_stage=zero7"],
        ["--where", "x"],
        ["--slices", "zero_stage=zero7", "source=measured"],
    ):
        with pytest.raises(SystemExit) as end:
            main(["figures", str(tmp_path / "runs"), *words, "--output", str(tmp_path / "out")])
        assert end.value.code != 0
    assert not (tmp_path / "out").exists()


def test_two_slices_are_laid_over_each_other(tmp_path):
    small_sweep(tmp_path / "runs")
    words = [f"allocator={allocator},source=measured" for allocator in ("default", "expandable")]
    with pytest.raises(SystemExit) as end:
        main(["figures", str(tmp_path / "runs"), "--output", str(tmp_path), "--slices", *words])
    assert end.value.code == 0
    assert (tmp_path / "slices-batch-1.svg").is_file()


def test_hostile_names_stay_text(tmp_path):
    """A dollar sign is mathematics to matplotlib, and a slash a folder."""
    choices = {"model": "small", "zero_stage": "$\\frac{1$ <b> ../../x", "allocator": "default"}
    for tokens in (128, 256):
        add_point(tmp_path / "runs", tokens, choices=choices)
        add_point(tmp_path / "runs", tokens, allocator="expandable")
    for _, files in draw(collect([tmp_path / "runs"]).runs, tmp_path, KINDS):
        if not isinstance(files, str):
            assert all(file.parent == tmp_path for file in files)


def test_a_run_that_does_not_last_is_in_no_figure(tmp_path):
    for tokens in (128, 256, 512):
        add_point(tmp_path, tokens)
    runs = collect([tmp_path]).runs
    for run in runs:
        run.summary["verdict"] = "does_not_last"
    told = dict(draw(runs, tmp_path, [*KINDS]))
    assert [kind for kind, found in told.items() if not isinstance(found, str)] == []


def test_speeds_that_are_only_bounds_are_in_no_figure(tmp_path):
    steps = {"basis": "lower bound", "basis_reason": "no calibration for A100"}
    for tokens in (128, 256, 512):
        add_point(tmp_path, tokens, mode="predict", steps=steps)
    told = dict(
        draw(collect([tmp_path]).runs, tmp_path, ["cost", "pareto", "speed_over_seq_len", "memory_over_seq_len"])
    )
    for kind in ("cost", "pareto", "speed_over_seq_len"):
        assert "known speed; speed: not known (no calibration for A100)" in told[kind]
    assert [file.suffix for file in told["memory_over_seq_len"]] == [".png", ".svg"]
