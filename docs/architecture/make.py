"""``make architecture``: write what the architecture pages derive from the code.

It writes the picture of the imports (docs/architecture/imports.svg) and a line for each module
(docs/architecture/modules.md). tests/unit/test_architecture.py compares both with the code.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from package_imports import MAY_IMPORT_HYDRA, MAY_IMPORT_TORCH, MODULES, ORDER, ROOT, imports_of_parts, is_in

PICTURE = ROOT / "docs" / "architecture" / "imports.svg"
MODULE_LIST = ROOT / "docs" / "architecture" / "modules.md"
COLUMNS = {
    **{part: 1.4 for part in ("core", "files", "system", "runs")},
    **{"importers": 0.0, "analyse": 1.0, "launch": 2.0, "training": 3.4, "meters": 2.9, "rules": 2.5},
    **{"simulator": 4.2, "simulator.trace": 4.2, "simulator.outside": 4.1, "simulator.allocator": 4.0},
    **{"simulator/*.py": 5.1, "prediction/*.py": 5.2, "prediction.traces": 3.9, "prediction.time": 4.3},
    **{"prediction.memory": 4.3, "prediction": 3.7, "planner": 3.1, "report": 2.3, "cli": 1.2},
}
"""Box -> its place from left to right in the picture. Its height follows from the imports."""

TITLES = {
    "core": "configuration, plan, record:\ntyped and pure",
    "files": "atomic writes, JSON,\nredaction",
    "system": "GPUs, processes, locks,\nsignals",
    "runs": "jobs and run folders",
    "importers": "other people's tables",
    "rules": "combinations that\ncannot run",
    "meters": "inside the ranks\nof any command",
    "training": "memlab's training loop,\nin each rank",
    "launch": "starts and ends ranks;\nsweeps, searches, doctor",
    "simulator/*.py": "constants",
    "simulator.allocator": "model of torch's\nallocator",
    "simulator.outside": "memory outside\nthe allocator",
    "simulator.trace": "format of traces",
    "simulator": "a script on simulated\nGPUs -> traces",
    "prediction/*.py": "not_predicted, fit_outside",
    "prediction.traces": "traces of memlab's\nown training",
    "prediction.time": "clocks of host\nand streams",
    "prediction.memory": "replay of traces,\nhost memory",
    "prediction": "one prediction\n-> record",
    "planner": "what fits,\nbefore renting",
    "analyse": "table, diff,\nfit, advice",
    "report": "text, figures, pages:\nthe only formatter",
    "cli": "Hydra and the\nsub-commands",
}

COLORS = {"torch": ("#FBE6D3", "#D55E00"), "Hydra": ("#D9EAF6", "#0072B2"), "": ("#F4F4F2", "#6B6B6B")}
"""What a part may import -> fill and edge of its box (Okabe and Ito's colours)."""

WIDTH, HEIGHT = 0.96, 0.62
"""Size of a box, in columns and rows."""


def main() -> None:
    picture()
    MODULE_LIST.write_text(module_list())


# --- the picture ------------------------------------------------------------------------------------------------------


def box_of(part: str) -> str:
    """Return the box of a part: modules of a folder that its folders import share one."""
    is_module = "." in part and (ROOT / "memlab" / f"{part.replace('.', '/')}.py").is_file()
    return f"{part.partition('.')[0]}/*.py" if is_module else part


@cache
def imports_of_boxes() -> dict[str, set[str]]:
    """Return box -> the other boxes that its modules import, from the bottom up."""
    found: dict[str, set[str]] = {}
    for part, others in imports_of_parts().items():
        if part != "__main__":
            found.setdefault(box_of(part), set()).update(map(box_of, others))
    return {box: others - {box} for box, others in found.items()}


@cache
def edges() -> set[tuple[str, str]]:
    """Return the arrows of the picture, (importing box, imported box), without those that other arrows imply."""
    reached: dict[str, set[str]] = {}
    for box, others in imports_of_boxes().items():
        reached[box] = others.union(*(reached[other] for other in others))
    return {
        (box, other)
        for box, others in imports_of_boxes().items()
        for other in others
        if not any(other in reached[between] for between in others)
    }


def edges_of_picture() -> set[tuple[str, str]]:
    """Read the arrows back from the written picture."""
    return {(part, other) for part, other in re.findall(r'id="([^"]+)--([^"]+)"', PICTURE.read_text())}


def rows() -> dict[str, int]:
    """Return box -> its row from the bottom: one above the highest box that it imports."""
    found: dict[str, int] = {}
    for box in imports_of_boxes():
        found[box] = 1 + max((found[other] for first, other in edges() if first == box), default=-1)
    return found


def picture() -> None:
    """Draw the folders as boxes and the imports as arrows, and write the picture."""
    places = {part: (COLUMNS[part], row) for part, row in rows().items()}
    with matplotlib.rc_context({"svg.hashsalt": "memlab", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(11.5, 12.5), layout="constrained")
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(-0.6, 5.7), ylim=(-0.5, max(y for _, y in places.values()) + 1.2))
        for part, other in sorted(edges()):
            _arrow(axes, part, other, places)
        for part, (x, y) in places.items():
            _box(axes, part, x, y)
        _legend(axes, max(y for _, y in places.values()))
        figure.savefig(PICTURE, format="svg", metadata={"Date": None})


def _kind(part: str) -> str:
    """Return what a part may import that other parts may not: torch, Hydra, or nothing."""
    if any(is_in(allowed, part) for allowed in MAY_IMPORT_HYDRA):
        return "Hydra"
    return "torch" if any(is_in(allowed, part) for allowed in MAY_IMPORT_TORCH) else ""


def _box(axes, part: str, x: float, y: float) -> None:
    fill, edge = COLORS[_kind(part)]
    corner = (x - WIDTH / 2, y - HEIGHT / 2)
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, facecolor=fill, edgecolor=edge, zorder=3))
    axes.text(
        x,
        y + 0.15,
        part if "*" in part else part.replace(".", "/"),
        ha="center",
        va="center",
        weight="bold",
        fontsize=11,
        zorder=4,
    )
    axes.text(x, y - 0.1, TITLES[part], ha="center", va="center", fontsize=7.8, color="#333333", zorder=4)


def _arrow(axes, part: str, other: str, places: dict[str, tuple[float, int]]) -> None:
    below = [end for start, end in edges() if start == part]
    above = [start for start, end in edges() if end == other]
    start = (_port(part, other, below, places), places[part][1] - HEIGHT / 2)
    end = (_port(other, part, above, places), places[other][1] + HEIGHT / 2)
    look = {"arrowstyle": "-|>", "mutation_scale": 11, "color": "#8A8A8A", "linewidth": 1.1, "zorder": 2}
    arrow = FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, **look)
    arrow.set_gid(f"{part}--{other}")
    axes.add_patch(arrow)


def _port(part: str, other: str, all_others: list[str], places: dict[str, tuple[float, int]]) -> float:
    """Return the x at which the arrow to or from ``other`` meets its box: arrows share an edge from left to right."""
    x, y = places[part]
    order = sorted(all_others, key=lambda each: (places[each][0] - x) / abs(places[each][1] - y))
    return x + WIDTH * ((order.index(other) + 1) / (len(order) + 1) - 0.5)


def _legend(axes, top: int) -> None:
    axes.text(-0.43, top + 0.85, "Imports of the folders of memlab/", fontsize=16, weight="bold", va="center")
    lines = ["An arrow points to a folder that is imported.", "Imports that other arrows imply are left out."]
    axes.text(3.1, top + 0.85, "\n".join(lines), fontsize=9, va="center", color="#333333")
    for place, (kind, text) in enumerate({"Hydra": "may import Hydra", "torch": "may import torch"}.items()):
        fill, edge = COLORS[kind]
        y = top + 0.4 - 0.32 * place
        axes.add_patch(
            FancyBboxPatch((3.12, y - 0.08), 0.2, 0.16, boxstyle="round,pad=0", facecolor=fill, edgecolor=edge)
        )
        axes.text(3.42, y, text, fontsize=9, va="center", color="#333333")


# --- the list ---------------------------------------------------------------------------------------------------------


def summary_of(file: Path) -> str:
    """Return the first sentence of a module's docstring."""
    text = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[a-z0-9`)])\.(?= [A-Z])", text)[0].rstrip(".")


def folders() -> Iterator[tuple[str, list[Path]]]:
    """Yield each folder of the package, from the bottom up, with its modules."""
    order = [part for part in ORDER if part in COLUMNS]
    found: dict[str, list[Path]] = {}
    for file in MODULES.values():
        folder = str(file.parent.relative_to(ROOT)) + "/"
        found.setdefault(folder, []).append(file)
    tops = [part for part in order if "." not in part]
    for folder in sorted(found, key=lambda name: (_place(name, tops), name)):
        yield folder, found[folder]


def _place(folder: str, tops: list[str]) -> int:
    parts = folder.split("/")
    return tops.index(parts[1]) if len(parts) > 2 else len(tops)


def module_list() -> str:
    """Write docs/architecture/modules.md: every module with the first sentence of its docstring."""
    lines = [
        "# The modules of memlab",
        "",
        "`make architecture` writes this page from the modules' own first sentences.",
    ]
    for folder, files in folders():
        package = next((file for file in files if file.name == "__init__.py"), None)
        lines += ["", f"## {folder}", ""]
        lines += [f"{summary_of(package)}.", ""] if package and summary_of(package) else []
        rest = [file for file in files if file != package]
        lines += ["| module | |", "|---|---|"] if rest else []
        lines += [f"| `{file.name}` | {summary_of(file).replace('|', chr(92) + '|')} |" for file in rest]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
