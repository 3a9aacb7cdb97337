"""The architecture pages say what the code says: ``make architecture`` writes the derived parts anew."""

import importlib.util
import re

import pytest
from package_imports import ROOT

AGAIN = "run `make architecture`"

WALK = "docs/architecture/walk.md"
PAGES = ("docs/architecture.md", WALK, "docs/architecture/simulated_gpu.md", "CONTRIBUTING.md", "docs/configuration.md")


@pytest.fixture(scope="module")
def make():
    """docs/architecture/make.py as a module."""
    spec = importlib.util.spec_from_file_location("make_architecture", ROOT / "docs" / "architecture" / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_has_the_imports_of_the_code(make):
    assert make.edges_of_picture() == make.edges(), AGAIN
    assert set(make.imports_of_boxes()) == set(make.COLUMNS) == set(make.TITLES)


def test_an_import_is_left_out_of_the_picture_only_if_others_imply_it(make):
    reached = {box: {other for first, other in make.edges() if first == box} for box in make.imports_of_boxes()}
    for box in reached:  # from the bottom up
        reached[box] |= set().union(*(reached[other] for other in reached[box]))
    assert all(others <= reached[box] for box, others in make.imports_of_boxes().items())


def test_the_list_of_modules_is_that_of_the_code(make):
    assert make.MODULE_LIST.read_text() == make.module_list(), AGAIN


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/])(?:memlab|conf|tests|benchmarks|docs|hydra_plugins|results)/[\w/.]*\w/?", text))
    missing = {name for name in named if not (ROOT / name).exists()}
    assert named and not missing


def test_the_walk_is_short_and_visits_no_file_twice():
    stops = re.findall(r"^\d+\. `([\w/.]+\.py)`", (ROOT / WALK).read_text(encoding="utf-8"), re.MULTILINE)
    assert 10 < len(stops) == len(set(stops)) <= 20 and all((ROOT / stop).is_file() for stop in stops)
