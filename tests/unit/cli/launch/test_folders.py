"""Run folders of launch.py: where they are, and which folders memlab leaves alone."""

import os
from pathlib import Path

import pytest
from launched import contents, lines

from memlab.runs.folder import RunFolder


@pytest.mark.parametrize(("words", "place"), [([], "20*-*-*"), (["name=mine"], "mine")])
def test_run_folders_are_under_the_name_or_the_date(launch, here, words, place):
    launch("hardware=cpu", "offload=param", *words)
    [record] = here.glob("outputs/*/*/record.json")
    assert record.parent.match(f"outputs/{place}/{RunFolder(record.parent).read_record().run_id}")


@pytest.mark.parametrize("flags", [(), ("-m",)])
def test_names_of_folders_may_use_values_of_hydras(launch, here, flags):
    kind = "sweep" if flags else "run"
    folder = f"hydra.{kind}.dir=outputs/${{hydra:runtime.choices.precision}}"
    below = ["hydra.sweep.subdir=${hydra:runtime.choices.offload}"] if flags else []
    launch(*flags, "hardware=cpu", "mode=predict", "offload=param", folder, *below)
    [record] = here.glob("outputs/**/record.json")
    assert record.parent == here / "outputs" / Path("bf16", *["param"] * len(flags))


FOREIGN = {
    "logs/app.log": "x",
    "notes.tmp": "x",
    "rankings.json": "{}",
    "record.json": '{"mine": 1}',
    "plan.json": '{"mine": 1}',
}


@pytest.fixture
def foreign(here) -> Path:
    """A folder of somebody's."""
    for name, text in FOREIGN.items():
        path = here / "foreign" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return here / "foreign"


@pytest.mark.parametrize(
    "words",
    [
        ["hydra.run.dir=foreign"],
        ["hydra.run.dir=foreign", "force=true"],
        ["-m", "hydra.sweep.dir=foreign"],
        ["-m", "hydra.sweep.dir=.", "hydra.sweep.subdir=foreign"],
    ],
)
def test_a_folder_that_is_not_memlabs_is_refused_before_anything_is_written(launch, here, foreign, words):
    before = contents(here)
    done = launch(*words, "hardware=cpu", "mode=predict", "offload=param")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = lines(done)
    assert "holds files that are not memlab's" in line and "nothing was written" in line
    assert contents(here) == before


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["hydra.run.dir=new/folder", word]
            for word in ("batch.micro=0", "bogus=1", "zero_stage=zero4", "sweep.search=batch")
        ),
        *(
            ["-m", "hydra.sweep.dir=new", word]
            for word in ("batch.micro=0", "seed=1,x", "model=hf", "sweep.search=batch")
        ),
        *(["hydra.run.dir=file"], ["-m", "hydra.sweep.dir=file"], ["name=../x"]),
    ],
)
def test_nothing_of_a_refused_run_is_left(launch, here, words):
    (here / "file").write_text("a file")
    token = "hf_" + "sesame" * 5
    done = launch(*words, "hardware=cpu", "mode=predict", f"data.path=/x/{token}")
    assert done.returncode == 2 and len(lines(done)) == 1
    assert contents(here) == {"file": "a file"} and os.listdir(here) == ["file"]


@pytest.mark.parametrize("words", [["hydra.run.dir=/"], ["-m", "hydra.sweep.dir=/"]])
def test_the_root_of_the_file_system_is_no_run_folder(launch, words):
    before = os.listdir("/")
    done = launch(*words, "hardware=cpu", "offload=param")
    assert done.returncode == 2 and "memlab: / holds files that are not memlab's" in done.stderr
    assert os.listdir("/") == before


def test_a_run_folder_holds_the_marker_and_a_later_run_may_use_it(launch, here):
    for _ in range(2):
        assert launch("hardware=cpu", "offload=param", "hydra.run.dir=mine").returncode == 8
        assert (here / "mine" / ".memlab").read_text().startswith("A folder of memlab.")
    (here / "mine" / "notes.txt").write_text("a user's own")
    assert launch("hardware=cpu", "offload=param", "hydra.run.dir=mine").returncode == 8
    assert (here / "mine" / "notes.txt").read_text() == "a user's own"


@pytest.mark.parametrize("kept", [("record.json",), ("plan.json",), ("record.json", "plan.json")])
def test_folders_from_before_the_marker_are_memlabs_by_their_record_or_plan(launch, here, kept):
    words = ("-m", "hardware=cpu", "seed=1,2", "offload=param", "hydra.sweep.dir=old")
    assert launch(*words).returncode == 0
    for path in list((here / "old").rglob("*")):
        if path.is_file() and path.name not in kept:
            path.unlink()
    assert launch(*words).returncode == 0
    assert len(list(here.glob("old/*/.memlab"))) == 2 and (here / "old" / ".memlab").exists()


def test_the_folder_is_fixed_wherever_the_options_of_hydra_stand(launch, here):
    words = ("hardware=cpu", "offload=param", "hydra.run.dir='${now:%S}-${now:%f}'")
    (here / "conf").mkdir()
    assert launch("--config-dir", "conf", *words).returncode == launch(*words, "--config-dir", "conf").returncode == 8
    assert len(list(here.glob("*-*"))) == len(list(here.glob("*-*/record.json"))) == 2


def test_a_folder_whose_name_hydra_would_read_as_words(launch, here):
    assert launch("hardware=cpu", "offload=param", "hydra.run.dir='a, b=[c]'").returncode == 8
    assert (here / "a, b=[c]" / "record.json").exists()


def test_the_folder_of_what_composed_a_run_cannot_be_moved(launch, here):
    done = launch("hardware=cpu", "hydra.output_subdir=elsewhere")
    assert done.returncode == 2 and "'hydra.output_subdir' cannot be set" in done.stderr
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["name=" + "n" * 300], "choose a shorter name"),
        (["hydra.run.dir=" + "/".join(["d" * 100] * 50)], "choose a shorter name"),
        (["hydra.run.dir=file"], "part of the path is a file, not a folder"),
        (["hydra.run.dir=file/below"], "part of the path is a file, not a folder"),
        (["-m", "hydra.sweep.dir=file"], "part of the path is a file, not a folder"),
        (["-m", "name=" + "n" * 300], "choose a shorter name"),
        (["hydra.run.dir=/proc/mine"], "correct the path"),
    ],
)
def test_a_folder_that_cannot_be_made_is_refused_in_one_line(launch, here, words, advice):
    (here / "file").write_text("a file")
    done = launch(*words, "hardware=cpu", "offload=param")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = lines(done)
    assert advice in line and len(line) < 400
    assert contents(here) == {"file": "a file"}
