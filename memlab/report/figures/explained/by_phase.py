"""Figure of the phases: what holds the memory at the peak and at the end of each; host memory beside it."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from memlab.analyse.explain.phases import PhaseRun
from memlab.predict.memory.ledger import by_kind
from memlab.report import units
from memlab.report.figures.canvas import finish, gib, new_figure
from memlab.report.figures.explained.drawn_run import DrawnRun
from memlab.report.figures.explained.stack import layers
from memlab.report.palette import OKABE_ITO

APART = 0.2
"""Distance of a bar from the middle of its phase; a phase is 1 wide."""

FEWEST_ROWS = 6
"""Rows of the host's panel for which there is room at least, so that a single bar stays a bar."""

LOOK = {"edgecolor": "#555555", "linewidth": 0.4, "width": 0.36}


def by_phase(run: DrawnRun) -> Figure:
    """Draw two bars for each phase, of its run with the highest peak; the host's memory is the process's."""
    host = _host(run)
    columns = 2 if host else 1
    figure, panels = new_figure(1, columns, 4.0, gridspec_kw={"width_ratios": [3, 1][:columns]})
    _draw_device(panels[0][0], run)
    if host:
        _draw_host(panels[0][1], host)
    notes = [run.note, "at the peak of each phase (left bar) and at its end (right bar)"]
    return finish(figure, run.sheet, "What holds the memory in each phase", notes)


def _draw_device(axes: Any, run: DrawnRun) -> None:
    moments = [moment for phase in run.rank.phases for moment in (phase.peak, phase.end)]
    at = [number + side * APART for number in range(len(run.rank.phases)) for side in (-1, 1)]
    held = [by_kind(moment.holdings) for moment in moments]
    kinds = {kind: [each.get(kind, 0) for each in held] for kind in set().union(*held)}
    outside = [sum(share.nbytes for share in run.rank.device.outside(moment.event)) for moment in moments]
    base = [0.0] * len(moments)
    for layer in layers(kinds, [moment.reserved for moment in moments], outside):
        sizes = gib(layer.sizes)
        axes.bar(at, sizes, bottom=base, color=layer.color, hatch=layer.hatch, label=layer.name, **LOOK)
        base = [low + size for low, size in zip(base, sizes, strict=True)]
    axes.set_xticks(range(len(run.rank.phases)), [_name(phase) for phase in run.rank.phases], fontsize=7.5)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("GiB of the device")


def _name(phase: PhaseRun) -> str:
    name = phase.part.phase.replace("_", "\n")
    return f"{name}\n(of {phase.times})" if phase.times > 1 else name


def _host(run: DrawnRun) -> dict[str, int]:
    """Return the peaks of the host's memory that the record has, in bytes: by phase if it has these."""
    result: Mapping[str, Any] = next(rank for rank in run.record.ranks if rank["rank"] == run.rank.rank)
    phases = (result["attached"] or {}).get("phases") or {}
    names = dict.fromkeys([*(phase.part.phase for phase in run.rank.phases), *phases])
    known = {name: nbytes for name in names if (nbytes := phases.get(name, {}).get("host_peak_bytes"))}
    whole = {"whole run": result["host_peak_bytes"], "page-locked": result["host_pinned_bytes"]}
    return {**known, **{name: nbytes for name, nbytes in whole.items() if nbytes}}


def _draw_host(axes: Any, host: Mapping[str, int]) -> None:
    bars = axes.barh(range(len(host)), gib(list(host.values())), color=OKABE_ITO[2][0], height=0.6)
    axes.bar_label(bars, [units.about(nbytes) for nbytes in host.values()], padding=3, fontsize=7)
    axes.margins(x=0.2)
    axes.set_yticks(range(len(host)), [name.replace("_", " ") for name in host], fontsize=7.5)
    axes.set_ylim(max(len(host), FEWEST_ROWS) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("GiB of the host,\npeak of the process")
