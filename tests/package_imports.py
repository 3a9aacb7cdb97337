"""What the modules of the package import, read from their source, and the order that imports follow.

Both the test of the order (tests/unit/test_imports.py) and its picture (docs/architecture/make.py) read this file.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

ORDER = (
    *("core", "files", "system", "meters"),
    *("simulator.constants", "simulator.outside", "simulator.allocator", "simulator.trace", "simulator"),
    *("runs", "importers", "rules", "training", "launch"),
    *(
        "prediction.not_predicted",
        "prediction.fit_outside",
        "prediction.traces",
        "prediction.time",
        "prediction.memory",
        "prediction",
    ),
    *("planner", "analyse", "report", "cli", "__main__"),
)
"""Folders (and some modules) of the package, from the bottom up: a module imports only what stands before it."""

MAY_IMPORT_TORCH = ("training", "meters", "simulator.rank")
MAY_IMPORT_HYDRA = ("cli",)

FILES = sorted((ROOT / "memlab").rglob("*.py"))


def name_of(file: Path) -> str:
    """Return the dotted name of a module below memlab: ``simulator.trace.events``. A package has its folder's name."""
    return ".".join(file.relative_to(ROOT / "memlab").with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(file): file for file in FILES}


def is_in(module: str, part: str) -> bool:
    """Return whether a module is a part of ORDER, or lies in it."""
    return module == part or module.startswith(f"{part}.")


def part_of(module: str) -> str:
    """Return the part of ORDER that a module belongs to: the longest name that fits."""
    parts = [part for part in ORDER if is_in(module, part)]
    assert parts, f"Add {module.partition('.')[0]} to ORDER: what stands below it?"
    return max(parts, key=len)


def imports(file: Path) -> set[str]:
    """Return the dotted names of all modules that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = file.relative_to(ROOT).parts
            # The ranks of a user's command load memlab/meters/ under another name.
            assert node.level == 0 or parts[:2] == ("memlab", "meters"), f"{file}: relative import"
            parents = parts[: -node.level] if node.level else ()
            parent = ".".join([*parents, *filter(None, [node.module])])
            found |= {f"{parent}.{alias.name}" for alias in node.names}
    return found


def imported_modules(file: Path) -> set[str]:
    """Return the modules of memlab that a file imports, by their names below memlab."""
    names = [name.removeprefix("memlab.") for name in imports(file) if name.startswith("memlab.")]
    return {
        next(module for module in (name, name.rpartition(".")[0]) if module in MODULES)
        for name in names
        if name != "__version__"
    }


@cache
def imports_of_parts() -> dict[str, set[str]]:
    """Return part -> the other parts that its modules import."""
    found: dict[str, set[str]] = {part: set() for part in ORDER}
    for module, file in MODULES.items():
        if module != "__init__":
            found[part_of(module)] |= {part_of(other) for other in imported_modules(file)}
    return {part: others - {part} for part, others in found.items()}
