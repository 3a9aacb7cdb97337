"""Runs of what Hydra composed, one experiment or a sweep: they fill run folders and return an exit code."""

import signal
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from memlab.analyse.objective import bound_error, objective_of
from memlab.analyse.run_view import view_of
from memlab.cli.compose import choices_of, composed_config, hydra_folder, resolve
from memlab.cli.exit_codes import EXIT_CODES, exit_code
from memlab.cli.override_words import check_runs
from memlab.core.basis import follows_from_step
from memlab.core.config import Config
from memlab.core.errors import ConfigError
from memlab.core.plan import make_plan
from memlab.core.record import FINAL, Record
from memlab.launch import preflight
from memlab.launch.search import RunningSearch
from memlab.launch.sweep import Backend, RunningSweep
from memlab.planner.quote import Quote, quote
from memlab.planner.training_sweep import TrainingPredictions
from memlab.prediction.fit_outside import check_sizes
from memlab.prediction.time import calibrate
from memlab.prediction.time.step_time import OWN_PYTHON, why_not_calibrated
from memlab.report.details_text import show_answer
from memlab.report.plan_text import PlanProgress
from memlab.report.sweep_text import progress, show_preview, show_repeats, show_searches, show_summary
from memlab.report.text import console
from memlab.runs.folder import RunFolder, SweepFolder
from memlab.runs.job import Job, JobResult, Schedule, SweepObserver, check_folders, is_complete, unique
from memlab.system.machine import detect
from memlab.system.signals import interrupt

INCOMPLETE = 1
"""Exit code of a sweep in which a job has no final record. It is 0 if all jobs have one, 130 after an interrupt."""


def prepare_run(composed: DictConfig) -> Path | None:
    """Check one composed configuration and its run folder, then mark the folder as memlab's.

    Hydra makes the folder; so this happens before. Returns the folder of all runs, if there will be several. Raises
    :class:`MemlabError`, and SystemExit after a dry run, which it shows.
    """
    (config, choices), hydra_config = composed_config(composed), composed.hydra
    check_inputs([config])
    folder = RunFolder(hydra_folder(composed, "run.dir"))
    jobs = with_repeats(config, choices, folder, composed, hydra_config)
    check_folders(jobs)
    if config.sweep.dry_run:
        sys.exit(run_jobs(jobs, config, folder.path.parent))
    folder.claim()
    return folder.path.parent if len(jobs) > 1 or config.sweep.search != "none" else None


def run_composed(composed: DictConfig) -> tuple[int, float | None]:
    """Run one composed configuration in the folder that Hydra made for it. Returns the exit code and the objective. A
    point of a sweep ends with a sweep's exit code.

    Whatever composed it and whichever launcher started it, a folder with the run of another configuration is refused.
    """
    signal.signal(signal.SIGTERM, interrupt)  # in a Slurm job, submitit has set SIGTERM to be ignored
    config = resolve(composed)
    hydra_config: Any = HydraConfig.get()  # its type is DictConfig, not HydraConf
    choices = choices_of(hydra_config)
    folder = RunFolder(hydra_config.runtime.output_dir)
    jobs = with_repeats(config, choices, folder, composed, hydra_config)
    check_folders(jobs)
    is_point = hydra_config.mode is RunMode.MULTIRUN
    if len(jobs) > 1 or config.sweep.dry_run or config.sweep.search != "none":
        code = run_jobs(jobs, config, folder.path.parent)
    else:
        record = run_single(jobs[0], config)
        code = exit_code(record)
        if is_point and code != EXIT_CODES["interrupted"]:
            code = 0 if record.status in FINAL else INCOMPLETE
    return code, objective(jobs) if is_point else None


def run_single(job: Job, config: Config) -> Record:
    out = console(sys.stdout)
    ((backend, _),) = _backends([job], config)
    if config.mode == "measure":
        out.print(f"logs: {job.folder}/{RunFolder.LOGS}", soft_wrap=True)
    record = backend.run_alone(job, out.print)
    show_answer(record, job.folder, out)
    return record


def run_sweep(config: DictConfig, batch: Sequence[DictConfig]) -> tuple[int, list[list[Job]]]:
    """Run the jobs that Hydra composed for a multirun. Returns the exit code, and the repeats of each experiment.

    ``config`` is the configuration that Hydra composed for the multirun as a whole.
    """
    experiments = jobs_of_sweep(config, batch)
    first = experiments[0][0].config
    if not first.sweep.dry_run:
        begin_sweep(config)
    return run_jobs(list(chain(*experiments)), first, Path(hydra_folder(config, "sweep.dir"))), experiments


def objective(repeats: Sequence[Job]) -> float | None:
    """Return the objective of an experiment from its records, the median of its repeats; ``None`` if the configuration
    asks for none. Raises :class:`MemlabError` if a run has none."""
    name, sweep = repeats[0].config.objective, repeats[0].config.sweep
    if name is None or sweep.dry_run:
        return None
    return median(objective_of(view_of(job.folder.read_record(), str(job.folder)), name) for job in repeats)


def jobs_of_sweep(config: DictConfig, batch: Sequence[DictConfig]) -> list[list[Job]]:
    """Make the jobs of a multirun, before anything is written: for each configuration that Hydra composed one job, or
    several repeats. Raises :class:`MemlabError` if one cannot run."""
    root = Path(hydra_folder(config, "sweep.dir"))
    points = [composed_config(composed) for composed in batch]
    configs = [one for one, _ in points]
    if len({repr(one.sweep) for one in configs}) > 1:
        raise ConfigError("sweep.* cannot be swept, since it says how the sweep runs: give each of its keys one value.")
    check_inputs(configs)
    experiments: list[list[Job]] = []
    for (one, choices), composed in zip(points, batch, strict=True):
        folder = RunFolder(root / hydra_folder(composed, "sweep.subdir"))
        experiments.append(with_repeats(one, choices, folder, composed, composed.hydra))
    check_folders(chain(*experiments))
    return experiments


def check_inputs(configs: Sequence[Config]) -> None:
    """Raise :class:`MemlabError` if a configuration names a file, folder or key that cannot be used.

    It is also raised for a search by prediction, and for too many runs in all.
    """
    check_runs(configs)
    quoted = [config.sweep for config in configs if config.sweep.guide == "quote"]
    if not all(sweep.dry_run and sweep.search == "none" for sweep in quoted):
        raise ConfigError("sweep.guide=quote needs sweep.dry_run=true, and sweep.search=none: it prices known points.")
    if quoted and all(config.mode == "predict" for config in configs):
        raise ConfigError(
            "sweep.guide=quote prices what is measured, and mode=predict measures nothing: leave one of the two out."
        )
    predicted = [config for config in configs if config.mode == "predict" or quoted]
    if any(config.sweep.search != "none" and not config.is_command for config in predicted):
        raise ConfigError("A search measures. To predict the largest batch, use memlab plan ...")
    preflight.check(configs)
    calibrate.check_calibrations(predicted)
    for config in configs:
        _check_objective(config)
    check_sizes(predicted)


def _check_objective(config: Config) -> None:
    """Raise :class:`MemlabError` for an objective that a search has not, or whose predicted values are bounds."""
    name = config.objective
    if name and config.sweep.search != "none":
        raise ConfigError("sweep.search finds a size, and has no objective: leave one of the two out.")
    if name and config.mode == "predict" and follows_from_step(name):
        if config.is_command:
            raise bound_error(name, OWN_PYTHON)
        if calibrate.calibrations_of(config).step is None:
            raise bound_error(name, why_not_calibrated(config))


def begin_sweep(config: DictConfig) -> None:
    """Mark the folder of a sweep as memlab's, and save there what Hydra composed for the sweep."""
    folder = SweepFolder(hydra_folder(config, "sweep.dir"))
    folder.claim()
    folder.save_hydra(OmegaConf.to_yaml(config))


def with_repeats(
    config: Config, choices: dict[str, str], folder: RunFolder, composed: DictConfig, hydra_config: DictConfig
) -> list[Job]:
    """Make ``measure.repeats`` jobs of a configuration, numbered from ``measure.repeat``.

    The first job runs in ``folder``, the others in folders beside it. Each job saves ``composed`` and ``hydra_config``
    (what Hydra composed) in its folder. Raises :class:`ConfigError` for ``mode=compose``, which runs nothing.
    """
    if config.mode == "compose":
        launcher = hydra_config.runtime.choices["hydra/launcher"]
        raise ConfigError(f"mode=compose runs nothing, so hydra/launcher={launcher} cannot start it: leave it out.")
    first = config.measure.repeat
    jobs = []
    for repeat in range(first, first + config.measure.repeats):
        one = replace(config, measure=replace(config.measure, repeat=repeat))
        where = folder if repeat == first else RunFolder(f"{folder}-r{repeat}")
        jobs.append(Job(make_plan(one, choices), where, partial(_save, where, composed, hydra_config, repeat)))
    return jobs


def run_jobs(jobs: Sequence[Job], config: Config, root: Path) -> int:
    """Run a sweep, or show what it would run. Returns the exit code."""
    out = console()
    if shared := preflight.shared_checkpoints(job.config for job in jobs):
        out.print(
            f"{shared} holds checkpoints, and every point of this sweep would find them: {{run_dir}} in "
            "training.command gives each point a folder of its own.",
            style="yellow",
            soft_wrap=True,
        )
    backends = _backends(unique(jobs), config)
    run_type = RunningSweep if config.sweep.search == "none" else RunningSearch
    if config.sweep.dry_run:
        found = Schedule()
        for backend, its_jobs in backends:
            found += run_type(backend, config.sweep, SweepObserver()).schedule(its_jobs, config.seed)
        show_preview(found, root, out, _quote(found, config) if config.sweep.guide == "quote" else None)
        return 0
    sweeps: list[RunningSweep] = []
    results: list[JobResult] = []
    with progress(out) as observer:
        for backend, its_jobs in backends:
            if not any(sweep.interrupted for sweep in sweeps):
                sweeps.append(run_type(backend, config.sweep, observer))
                results += sweeps[-1].run(its_jobs, config.seed)
    for sweep in sweeps:
        if isinstance(sweep, RunningSearch):
            show_searches(sweep.found.values(), out)
    show_repeats(results, out)
    show_summary(results, root, observer.seconds, out)
    return _sweep_exit_code(sweeps, results)


def _quote(found: Schedule, config: Config) -> Quote | None:
    """Return the quote of the points to measure; ``None`` if there are none."""
    if not found.to_measure:
        return None
    with PlanProgress(console(sys.stderr)) as progress:
        return quote(found.to_measure, config.sweep.prune, progress.update)


def _backends(jobs: Sequence[Job], config: Config) -> list[tuple[Backend, list[Job]]]:
    """Return the backends that run these jobs, each with its own. Those of commands and of measurements are imported
    only when they run something: importing them takes half as long as importing Hydra."""
    predicted = [job for job in jobs if job.config.mode == "predict"]
    found: list[tuple[Backend, list[Job]]] = []
    if own := [job for job in predicted if not job.config.is_command]:
        found.append((TrainingPredictions(config.force), own))
    if commands := [job for job in predicted if job.config.is_command]:
        from memlab.planner.command_sweep import CommandPredictions

        found.append((CommandPredictions(config.force), commands))
    if measured := [job for job in jobs if job.config.mode == "measure"]:
        from memlab.launch.job_launch import Measuring

        found.append((Measuring(detect(), config.sweep, config.force), measured))
    return found


def _sweep_exit_code(sweeps: Sequence[RunningSweep], results: Sequence[JobResult]) -> int:
    if any(sweep.interrupted for sweep in sweeps):
        return EXIT_CODES["interrupted"]
    return 0 if is_complete(results) else INCOMPLETE


def _save(folder: RunFolder, composed: DictConfig, hydra_config: DictConfig, repeat: int) -> None:
    """Write Hydra's files into the folder of a job, when the job runs."""
    task = OmegaConf.create({key: node for key, node in composed.items_ex(resolve=False) if key != "hydra"})
    task.measure.repeat = repeat
    own = deepcopy(hydra_config)  # all repeats of a job share one, and may be saved at the same time
    with read_write(own), open_dict(own):
        own.runtime.output_dir = str(folder)
    folder.save_hydra(
        {
            "config": OmegaConf.to_yaml(task),
            "hydra": OmegaConf.to_yaml({"hydra": own}),
            "overrides": OmegaConf.to_yaml(own.overrides.task),
        }
    )
