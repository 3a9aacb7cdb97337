"""From one composed configuration to jobs: a folder for each repeat, what is saved beside each, the exit code."""

import argparse

import pytest
from omegaconf import OmegaConf

from memlab.cli import experiments, hydra_app
from memlab.cli.commands import doctor
from memlab.cli.experiments import EXIT_CODES, with_repeats
from memlab.core.config_values import to_dict
from memlab.core.record import STATUSES
from memlab.report import doctor_text, sweep_text
from memlab.report.text import PIPE_WIDTH
from memlab.runs.folder import RunFolder
from memlab.runs.job import JobResult


@pytest.fixture
def repeated(config, tmp_path):
    """``repeated({"measure.repeats": 3})``: the jobs of a configuration in the folder ``run``."""

    def build(changes):
        values = config(changes)
        composed = OmegaConf.create(to_dict(values))
        own = OmegaConf.create({"runtime": {"output_dir": "here"}, "overrides": {"task": ["measure.repeats=3"]}})
        OmegaConf.set_readonly(own, True)
        return with_repeats(values, {}, RunFolder(tmp_path / "run"), composed, own)

    return build


def test_every_repeat_is_a_job_with_a_folder_of_its_own(repeated):
    jobs = repeated({"measure.repeats": 3})
    assert [job.folder.path.name for job in jobs] == ["run", "run-r2", "run-r3"]
    assert [job.config.measure.repeat for job in jobs] == [1, 2, 3]
    assert len({job.plan.run_id for job in jobs}) == 3
    assert len({job.subject_key for job in jobs}) == 1


def test_repeats_begin_with_the_one_that_was_asked_for(repeated):
    assert [job.config.measure.repeat for job in repeated({"measure.repeat": 4})] == [4]
    jobs = repeated({"measure.repeat": 4, "measure.repeats": 2})
    assert [job.config.measure.repeat for job in jobs] == [4, 5]
    assert [job.folder.path.name for job in jobs] == ["run", "run-r5"]


def test_what_composed_a_repeat_is_saved_beside_it(repeated, tmp_path):
    for job in repeated({"measure.repeats": 2}):
        job.folder.path.mkdir()
        job.prepare()
    for name, repeat in (("run", 1), ("run-r2", 2)):
        hydra = tmp_path / name / ".hydra"
        assert OmegaConf.load(hydra / "config.yaml").measure.repeat == repeat
        assert OmegaConf.load(hydra / "hydra.yaml").hydra.runtime.output_dir == str(tmp_path / name)
        assert OmegaConf.load(hydra / "overrides.yaml") == ["measure.repeats=3"]


@pytest.mark.parametrize("name", ["table", "preview", "doctor"])
def test_in_a_pipe_output_is_as_wide_as_that_of_other_commands(name, config, tmp_path, monkeypatch):
    outs, run = [], argparse.Namespace(overrides=[], config_dir=None, no_build=True, drop_data=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sweep_text, "leave_table_and_page", lambda _, out: outs.append(out))
    monkeypatch.setattr(experiments, "show_preview", lambda _, root, out, quote: outs.append(out))
    monkeypatch.setattr(doctor_text, "show_findings", lambda _, out: outs.append(out))
    monkeypatch.setattr(hydra_app._before, "sweep", tmp_path)
    calls = {
        "table": hydra_app.leave_results,
        "preview": lambda: experiments.run_jobs([], config({"sweep.dry_run": True}), tmp_path),
        "doctor": lambda: doctor.run(run),
    }
    calls[name]()
    assert [out.width for out in outs] == [PIPE_WIDTH]


@pytest.mark.parametrize(
    ("statuses", "interrupted", "code"),
    [
        (["ok", "gpu_oom", "unsupported"], False, 0),
        (["ok", "timeout"], False, 1),
        (["ok", None], False, 1),
        (["ok", None], True, 130),
        ([], False, 0),
    ],
)
def test_the_exit_code_of_a_sweep_says_whether_anything_is_left_to_do(record, statuses, interrupted, code):
    class Sweep:
        pass

    Sweep.interrupted = interrupted
    results = [JobResult(None, status and record(status=status), "measured") for status in statuses]
    assert experiments._sweep_exit_code([Sweep], results) == code


def test_every_status_has_its_own_exit_code():
    assert set(EXIT_CODES) == set(STATUSES)
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert not {1, 2} & set(EXIT_CODES.values())
