"""A folder that holds the run of another configuration, for every way in."""

import shutil
from pathlib import Path

import pytest
from launched import QUICK, lines

from memlab.core.plan import run_id
from memlab.files.conf_files import conf_dir
from memlab.runs.folder import RunFolder


@pytest.fixture
def studies(here) -> Path:
    """``my`` with two studies, and ``whole``, a copy of conf/ with both in it."""
    shutil.copytree(conf_dir(), here / "whole")
    (here / "my").mkdir()
    for name, stage in (("study", "zero1"), ("other", "zero0")):
        for folder in ("my", "whole"):
            text = f"defaults:\n  - config\n  - override zero_stage: {stage}\n  - _self_\nname: mine\n"
            (here / folder / f"{name}.yaml").write_text(text + "seed: ${oc.decode:${oc.env:MY_SEED,0}}\n")
    return here


WAYS_IN = {
    "words": ([], ["zero_stage=zero1"]),
    "name": (["--config-dir", "my", "--config-name", "study"], ["--config-dir", "my", "--config-name", "other"]),
    "path": (["-cp", "{here}/whole", "-cn", "study"], ["-cp", "{here}/whole", "-cn", "other"]),
    "environment": (["--config-dir=my", "-cn=study", "measure=quick"], ["--config-dir=my", "-cn=study"]),
}


@pytest.fixture(params=WAYS_IN)
def ways_in(request, studies, monkeypatch) -> tuple[list[str], list[str]]:
    """The words of two configurations, and the words that compose them."""
    monkeypatch.setenv("MY_SEED", "7")
    return tuple([word.format(here=studies) for word in words] for words in WAYS_IN[request.param])


def test_the_run_folder_is_named_by_what_hydra_composed_whatever_composed_it(launch, here, ways_in):
    for words in ways_in:
        assert launch(*words, *QUICK).returncode == 8
    found = {path.parent.name: RunFolder(path.parent).read_record() for path in here.glob("outputs/*/*/record.json")}
    assert len(found) == 2 and all(run_id(record.config) == name for name, record in found.items())


SAME = ("-m", "hydra.sweep.dir=place", "hydra.sweep.subdir=same")


PLACES = {
    "one run": ["hydra.run.dir=place/same"],
    "a sweep": [*SAME],
    "a job of another launcher": [*SAME, "hydra/launcher=basic"],
    "a job of another sweeper": [*SAME, "hydra/launcher=basic", "hydra/sweeper=basic"],
    "a job in a process": [*SAME, "hydra/launcher=submitit_local"],
}


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[pytest.mark.long(40)] * ("process" in place)) for place in PLACES]
)
def test_the_run_of_another_configuration_is_replaced_by_force_alone(launch, here, studies, place):
    if place == "a job in a process":
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    (one, other), where, same = WAYS_IN["name"], PLACES[place], here / "place" / "same"
    launch(*one, *where, *QUICK)
    before = (same / "record.json").read_text()
    refused = launch(*other, *where, *QUICK)
    assert refused.returncode == 2 and (same / "record.json").read_text() == before
    [line] = lines(refused)
    assert f"{same} holds the run of another configuration (zero_stage.stage: 1 there, 0 here)" in line
    assert "force=true" in line
    assert launch(*other, *where, *QUICK, "force=true").returncode in (0, 8)
    assert RunFolder(same).read_record().config.zero_stage.stage == 0


def test_a_key_of_ones_own_that_differs_is_named(launch, here):
    launch(*QUICK, "hydra.run.dir=same")
    assert "another configuration (note: null there, 2 here)" in launch(*QUICK, "hydra.run.dir=same", "+note=2").stderr


def test_a_run_that_was_killed_is_not_replaced_by_another_either(launch, here):
    launch(*QUICK, "hydra.run.dir=same")
    (here / "same" / "record.json").unlink()
    assert launch(*QUICK, "hydra.run.dir=same", "seed=1").returncode == 2
    assert launch(*QUICK, "hydra.run.dir=same").returncode == 8
