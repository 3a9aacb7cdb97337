"""Imports point one way, and only what needs torch or Hydra pays for it."""

import ast
import os
import subprocess
import sys

import pytest
from package_imports import (
    MAY_IMPORT_HYDRA,
    MAY_IMPORT_TORCH,
    MODULES,
    ORDER,
    ROOT,
    imported_modules,
    imports,
    is_in,
    name_of,
    part_of,
)

from memlab.meters.install import BESIDE

UNKNOWN_TO = {"report": {"launch", "training", "meters"}, "prediction": {"launch"}}
"""Part, with the parts inside it -> parts before it that it must not know of."""

TORCH = {"torch", "deepspeed", "transformers", "accelerate", "datasets"}
HYDRA = {"hydra", "omegaconf"}


@pytest.mark.parametrize("module", [name for name in MODULES if name != "__init__"])
def test_imports_point_one_way(module):
    own = part_of(module)
    unknown = {other for part, others in UNKNOWN_TO.items() if is_in(own, part) for other in others}
    wrong = {
        other
        for other in imported_modules(MODULES[module])
        if ORDER.index(part_of(other)) > ORDER.index(own) or part_of(other) in unknown
    }
    assert wrong == set()


def test_the_ranks_of_a_command_get_all_that_the_meters_import():
    beside = {name_of(ROOT / "memlab" / file) for file in BESIDE}
    assert set().union(*(imported_modules(MODULES[name]) for name in beside)) == set()
    wanted = set().union(*(imported_modules(file) for name, file in MODULES.items() if is_in(name, "meters")))
    assert {name for name in wanted if not is_in(name, "meters")} <= beside


def test_the_simulator_knows_no_plan_and_no_configuration():
    known = set().union(*(imported_modules(file) for name, file in MODULES.items() if is_in(name, "simulator")))
    assert not known & {"core.plan", "core.config"}


def test_no_modules_import_each_other_in_a_circle():
    known = {module: imported_modules(file) - {module} for module, file in MODULES.items()}
    while leaves := {module for module, others in known.items() if not others}:
        known = {module: others - leaves for module, others in known.items() if module not in leaves}
    while outer := set(known) - set().union(*known.values()):
        known = {module: others for module, others in known.items() if module not in outer}
    assert known == {}


@pytest.mark.parametrize("module", MODULES)
def test_only_a_few_parts_may_import_torch_or_hydra(module):
    roots = {name.split(".")[0] for name in imports(MODULES[module])}
    assert any(is_in(module, part) for part in MAY_IMPORT_TORCH) or not roots & TORCH
    assert any(is_in(module, part) for part in MAY_IMPORT_HYDRA) or not roots & HYDRA


IMPORTED = (
    *(
        "memlab.core.plan",
        "memlab.rules.unsupported",
        "memlab.runs.folder",
        "memlab.core.summary",
        "memlab.system.machine",
        "memlab.launch.job_launch",
    ),
    *(
        "memlab.launch.sweep",
        "memlab.report.details_text",
        "memlab.report.sweep_text",
        "memlab.training",
        "memlab.cli.main",
    ),
    *("memlab.cli.compose", "hydra_plugins.memlab_launcher.launcher", "memlab.cli.hydra_app", "memlab.cli.experiments"),
)

WHAT_IS_LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(name, *{module.partition(".")[0] for module in sys.modules})
"""


def test_nothing_but_the_ranks_pays_for_torch():
    """In the order of IMPORTED, so that those without Hydra are seen without it."""
    done = subprocess.run(
        [sys.executable, "-c", WHAT_IS_LOADED, *IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name: set(modules) for name, *modules in map(str.split, done.stdout.splitlines())}
    assert list(loaded) == list(IMPORTED)
    for name in IMPORTED:
        assert not loaded[name] & (TORCH | {"pandas", "matplotlib"}), name
    assert not loaded["memlab.cli.main"] & HYDRA


def test_the_launcher_plugin_costs_tab_completion_nothing():
    """Hydra imports every plugin whenever it starts."""
    plugin = ROOT / "hydra_plugins" / "memlab_launcher" / "launcher.py"
    at_the_top = [node for node in ast.parse(plugin.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {ast.unparse(node).split()[1].split(".")[0] for node in at_the_top} == {
        "collections",
        "dataclasses",
        "hydra",
        "itertools",
        "typing",
    }


HEAVY = {
    "rich",
    "numpy",
    "pandas",
    "matplotlib",
    "psutil",
    "memlab.launch",
    "memlab.prediction",
    "memlab.analyse",
} | TORCH

LOADED_AT_EXIT = """
import atexit, sys
output = open(sys.argv.pop(1), "w")
atexit.register(lambda: print(*sys.modules, file=output, flush=True))
from memlab.cli import main as cli
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
        ("cli.main()", ["show", "--help"], "FOLDER"),
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
    assert "memlab.cli.main" in loaded and not loaded & HEAVY
