"""Imports point one way, and only what needs torch or Hydra pays for it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT = {
    "errors": set(),
    "signals": set(),
    "terminal": set(),
    "spreadsheet": set(),
    "machine": set(),
    "locks": set(),
    "segments": set(),
    "optimizers": set(),
    "allocator_conf": {"errors"},
    "ranges": set(),
    "schema": {"errors", "ranges"},
    "json_file": {"errors", "disk"},
    "config": {"errors", "optimizers", "allocator_conf", "ranges", "schema"},
    "plan": {"errors", "config", "optimizers"},
    "hostfile": {"errors"},
    "rules": {"errors", "optimizers", "config", "plan", "machine", "hostfile"},
    "disk": {"errors"},
    "jsonl": {"errors", "disk"},
    "marker": {"errors", "disk"},
    "redaction": {"disk"},
    "record_schema": {"schema", "ranges"},
    "record": {
        *("errors", "schema", "json_file", "config", "plan", "locks", "disk", "marker", "redaction", "record_schema"),
    },
    "bug_report": {"terminal", "redaction"},
    "summary": {"errors", "config", "noise", "record"},
    "noise": set(),
    "conf_files": {"errors", "config", "plan"},
    "compose": {"errors", "config", "conf_files", "plan", "machine", "redaction"},
    "launch": {
        "errors",
        "conf_files",
        "redaction",
        "locks",
        "segments",
        "config",
        "plan",
        "machine",
        "disk",
        "jsonl",
        "hostfile",
        "rules",
        "noise",
        "record",
        "summary",
    },
    "unknown": set(),
    "worker": {"errors", "segments", "jsonl", "config", "plan", "record", "unknown"},
    "predict": {
        "errors",
        "terminal",
        "disk",
        "json_file",
        "optimizers",
        "allocator_conf",
        "config",
        "plan",
        "rules",
        "machine",
        "record",
        "summary",
        "launch",
        "worker",
        "unknown",
    },
    "analyse": {
        "disk",
        *("errors", "json_file", "schema", "spreadsheet", "config", "conf_files", "plan", "machine", "record"),
        *("summary", "noise"),
    },
    "report": {
        *("errors", "terminal", "spreadsheet", "disk", "config", "conf_files", "machine", "noise", "record", "summary"),
        *("analyse", "launch", "predict", "unknown"),
    },
    "commands": {
        "terminal",
        "ranges",
        *("errors", "disk", "config", "plan", "machine", "rules", "record", "summary", "compose", "launch", "report"),
        *("predict", "analyse"),
    },
    "experiments": {
        *("errors", "signals", "config", "plan", "machine", "record", "compose", "launch", "predict", "report"),
    },
    "hydra_app": {"errors", "config", "conf_files", "record", "compose", "experiments"},
    "cli": {"errors", "signals", "disk", "terminal", "bug_report", "hydra_app", "commands"},
    "__main__": {"cli"},
}
"""Part of the package -> the other parts that it may know of."""

MAY_IMPORT_TORCH = {"worker", "predict"}
MAY_IMPORT_HYDRA = {"compose", "experiments", "hydra_app", "cli"}
TORCH = {"torch", "deepspeed", "transformers", "accelerate", "datasets"}
HYDRA = {"hydra", "omegaconf"}

FILES = sorted((ROOT / "memlab").rglob("*.py"))


def part_of(file: Path) -> str:
    """errors, launch, ...: the module or sub-package directly under memlab."""
    return file.relative_to(ROOT / "memlab").parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """Dotted names of all modules that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imported_parts(file: Path) -> set[str]:
    names = [name.split(".") for name in imports(file)]
    return {name[1] for name in names if name[0] == "memlab" and len(name) > 1}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_one_way(file):
    part = part_of(file)
    if part != "__init__":
        assert part in MAY_IMPORT, f"Add {part} to MAY_IMPORT: what may it know of?"
        assert imported_parts(file) - {part, "__version__"} <= MAY_IMPORT[part]


def test_nothing_imports_in_a_circle():
    def reaches(part: str) -> set[str]:
        known: set[str] = set()
        ahead = set(MAY_IMPORT[part])
        while ahead:
            known |= ahead
            ahead = set().union(*(MAY_IMPORT[other] for other in ahead)) - known
        return known

    assert [part for part in MAY_IMPORT if part in reaches(part)] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_only_a_few_parts_may_import_torch_or_hydra(file):
    roots = {name.split(".")[0] for name in imports(file)}
    assert part_of(file) in MAY_IMPORT_TORCH or not roots & TORCH
    assert part_of(file) in MAY_IMPORT_HYDRA or not roots & HYDRA


MODULES = (
    *("memlab.plan", "memlab.rules", "memlab.record", "memlab.summary", "memlab.machine", "memlab.launch.run"),
    *("memlab.launch.sweep", "memlab.report.run_table", "memlab.report.sweep", "memlab.worker", "memlab.cli"),
    *("memlab.compose", "hydra_plugins.memlab_launcher.launcher", "memlab.hydra_app", "memlab.experiments"),
)

WHAT_IS_LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(name, *{module.partition(".")[0] for module in sys.modules})
"""


def test_nothing_but_the_ranks_pays_for_torch():
    """In the order of MODULES, so that those without Hydra are seen without it."""
    done = subprocess.run(
        [sys.executable, "-c", WHAT_IS_LOADED, *MODULES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name: set(modules) for name, *modules in map(str.split, done.stdout.splitlines())}
    assert list(loaded) == list(MODULES)
    for name in MODULES:
        assert not loaded[name] & (TORCH | {"pandas", "matplotlib"}), name
    assert not loaded["memlab.cli"] & HYDRA


def test_the_launcher_plugin_costs_tab_completion_nothing():
    """Hydra imports every plugin whenever it starts."""
    plugin = ROOT / "hydra_plugins" / "memlab_launcher" / "launcher.py"
    at_the_top = [node for node in ast.parse(plugin.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {ast.unparse(node).split()[1].split(".")[0] for node in at_the_top} == {
        "collections",
        "dataclasses",
        "hydra",
    }


HEAVY = {"rich", "numpy", "pandas", "matplotlib", "psutil", "memlab.launch", "memlab.predict", "memlab.analyse"} | TORCH

LOADED_AT_EXIT = """
import atexit, sys
output = open(sys.argv.pop(1), "w")
atexit.register(lambda: print(*sys.modules, file=output, flush=True))
from memlab import cli
"""


@pytest.mark.parametrize(
    ("start", "words", "answer"),
    [
        ("cli.launch()", ["--help"], "zero_stage: zero0"),
        ("cli.launch()", ["--cfg", "job", "hardware=h100_x8"], "zero_stage:"),
        ("cli.launch()", ["-sc", "query=bash"], "zero_stage=zero3"),
        ("cli.main()", ["--help"], "advise"),
        ("cli.main()", ["run", "--help"], "zero_stage: zero0"),
        ("cli.main()", ["diff", "--help"], "--by"),
        ("cli.main()", ["show", "--help"], "RUN"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_only_answers_imports_nothing_that_only_a_run_needs(tmp_path, start, words, answer):
    done = subprocess.run(
        [sys.executable, "-c", LOADED_AT_EXIT + start, tmp_path / "loaded", *words],
        cwd=ROOT,
        env={**os.environ, "COMP_LINE": "python launch.py zero_stage=", "COMP_POINT": "28"},
        capture_output=True,
        text=True,
    )
    assert answer in done.stdout, done.stderr
    loaded = set((tmp_path / "loaded").read_text().split())
    assert "memlab.cli" in loaded and not loaded & HEAVY
