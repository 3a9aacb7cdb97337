"""Figure of reserved against allocated memory: the bytes that the caching allocator holds beyond the tensors."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from memlab.analyse.identity import tokens_of
from memlab.analyse.run_view import peak
from memlab.core.sizes import GIB
from memlab.report import units
from memlab.report.figures.canvas import OOM_COLOR, counted, finish, from_zero, is_cloud, marker_size, new_figure, plain
from memlab.report.figures.sheet import NothingToDraw, Sheet


def reserved_against_allocated(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    """Draw reserved against allocated memory with the line of equality; right of it, the difference over tokens."""
    held = sheet.held
    figure, panels = new_figure(1, 2)
    against, gap = panels[0]
    highest = 0.0
    for label, members in sheet.configurations.items():
        points = sorted(
            (tokens_of(run), peak(run, held) / GIB, peak(run, "peak_reserved_bytes") / GIB)
            for run in members
            if run.status == "ok" and peak(run, held) is not None and peak(run, "peak_reserved_bytes") is not None
        )
        if not points:
            continue
        look = sheet.styles[label]
        tokens, used, reserved = zip(*points, strict=True)
        highest = max(highest, *reserved, *used)
        marks = {"color": look.color, "marker": look.marker, "linestyle": "none", "alpha": 0.8}
        marks |= {"markeredgewidth": 0, "markersize": marker_size(points), "rasterized": is_cloud(points)}
        against.plot(used, reserved, label=plain(sheet.short(label)) or "runs", **marks)
        gap.plot(tokens, [high - low for low, high in zip(used, reserved, strict=True)], **marks)
    if not highest:
        raise NothingToDraw("no run has both allocated and reserved memory")
    against.plot([0, highest], [0, highest], color=OOM_COLOR, linewidth=0.9, label=f"reserved = {_word(held)}")
    against.set_xlabel(f"{units.name(held)}, GiB, highest rank")
    against.set_ylabel("peak reserved, GiB, highest rank")
    against.set_xlim(0, highest * 1.06)
    from_zero([against])
    counted(gap, "tokens of one forward (micro batch x sequence length)")
    gap.set_ylabel(f"reserved beyond {_word(held)}, GiB")
    from_zero([gap])
    yield "", finish(figure, sheet, f"Reserved against {_word(held)} memory")


def _word(key: str) -> str:
    return units.name(key).removeprefix("peak ")
