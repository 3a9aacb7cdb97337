"""Hydra application: the task that Hydra calls, what memlab does before and after it, and the help page.

Functions that run something import ``memlab.cli.experiments`` themselves, so that help and completion start fast.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which
from string import Template

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from memlab.cli.compose import CONFIG_NAME, compose_words, composed_config, hydra_folder, register
from memlab.cli.exit_codes import EXIT_CODES
from memlab.cli.hydra_errors import COMPOSITION_ERRORS, HYDRA_ERRORS, as_one_line, word_here
from memlab.cli.override_words import check_words, with_plus
from memlab.core.config import Config
from memlab.core.config_values import flat, to_dict
from memlab.core.errors import ConfigError, MemlabError
from memlab.core.plan import make_plan
from memlab.files.conf_files import conf_dir, options_of, parse_yaml

register()  # at import: a Slurm job unpickles Hydra's task and then composes its configuration at once


class HydraTask:
    """The task that Hydra calls, with its outcome, which Hydra would discard or change.

    ``error``: exception of the task; Hydra would add lines to its message. ``began``: whether Hydra has handed over a
    sweep; ``ran``: whether runs have ended. A Slurm job gets a pickled copy.
    """

    def __init__(self):
        self.exit_code = 0
        self.error: Exception | None = None
        self.began = self.ran = False

    def __call__(self, composed: DictConfig) -> float | None:
        """Run one composed configuration. Returns its objective; a sweeper that needs one is told of the exception."""
        from memlab.cli.experiments import run_composed

        try:
            code, value = run_composed(composed)
            self.exit_code, self.ran = max(self.exit_code, code), True
            return value
        except Exception as error:
            if composed.objective and HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            self.error = error
            return None

    def run_batch(self, config: DictConfig, batch: Sequence[DictConfig]) -> list[JobReturn]:
        """Run all jobs of a sweep, for the multirun launcher."""
        self.began = True
        if any(composed.mode == COMPOSE for composed in batch):
            show_compositions(batch, is_sweep=True)
            return [JobReturn(status=JobStatus.COMPLETED) for _ in batch]
        from memlab.cli.experiments import objective, run_sweep

        self.exit_code, experiments = run_sweep(config, batch)
        self.ran = True
        if self.exit_code == EXIT_CODES["interrupted"]:  # a sweeper would go on with its next batch
            raise KeyboardInterrupt
        returned = []
        for composed, repeats in zip(batch, experiments, strict=True):
            job = JobReturn(list(composed.hydra.overrides.task), status=JobStatus.COMPLETED)
            try:
                job.return_value = objective(repeats)
            except MemlabError as error:  # for the sweeper, which may go on without this job
                job.status, job.return_value = JobStatus.FAILED, error
            returned.append(job)
        return returned


class BeforeHydra(Callback):
    """Callback that refuses a single run before Hydra makes the run's folder, and notes where a sweep leaves its runs.

    Hydra turns an exception of a callback into a warning and goes on, but it lets SystemExit through.
    """

    def __init__(self):
        self.error: Exception | None = None
        self.sweep: Path | None = None  # the folder of a sweep, or of the repeats of a run

    def on_run_start(self, config: DictConfig, **_) -> None:
        try:
            if config.mode == COMPOSE:
                show_compositions([config], is_sweep=False)
                raise SystemExit
            from memlab.cli.experiments import prepare_run

            self.sweep = prepare_run(config)
        except Exception as error:
            self.error = error
            raise SystemExit from error

    def on_multirun_start(self, config: DictConfig, **_) -> None:
        try:
            if config.sweep.dry_run:  # starts nothing: memlab's launcher shows the points, whichever would run them
                config.hydra.launcher = {"_target_": "hydra_plugins.memlab_launcher.launcher.MemlabLauncher"}
            elif config.mode != COMPOSE:
                if str(config.hydra.launcher._target_).endswith("SlurmLauncher") and which("srun") is None:
                    raise ConfigError("hydra/launcher=submitit_slurm needs Slurm, and there is no srun on the path.")
                self.sweep = Path(hydra_folder(config, "sweep.dir"))
        except ConfigError as error:
            self.error = error
            raise SystemExit from error


COMPOSE = "compose"
"""The mode that shows what a configuration composes into."""

_before = BeforeHydra()


def before_hydra() -> BeforeHydra:
    """Return the callback that conf/hydra/memlab.yaml names, for Hydra."""
    return _before


def run_hydra() -> int:
    """Run what the command line composes. Returns the exit code."""
    flags = read_flags(sys.argv[1:])
    options = sys.argv[1:]
    for word in flags.overrides:
        options.remove(word)
    replaces_conf = flags.config_path or flags.config_name
    words = [*(flags.overrides if replaces_conf else with_plus(flags.overrides)), *options]
    sys.argv[1:] = words  # Hydra's parser refuses a word behind an option that is behind another word
    check_words(words)
    if flags.help:
        print(help_page(flags.config_dir))
        return 0
    if flags.shell_completion and (found := values_of(os.environ.get("COMP_LINE", "").rpartition(" ")[2])):
        print("\n".join(found))
        return 0
    if f"mode={COMPOSE}" in words and not any(word.startswith("-") for word in words) and show_at_once(words):
        return 0
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let Hydra raise: otherwise it prints errors itself and exits with 1
    HydraConfig.instance().cfg = _before.error = _before.sweep = None
    task = HydraTask()
    try:
        hydra.main(version_base="1.3", config_path=conf_dir(), config_name=CONFIG_NAME)(task)()
        if flags.cfg:  # it has printed without memlab's checks
            _ = HydraConfig.get().run.dir
    except (*HYDRA_ERRORS, MemlabError) as error:
        if task.ran:
            leave_results()
        if task.began and isinstance(error, ValueError):  # a bug of memlab's: Hydra's own come before
            raise
        raise as_one_line(error, words) from error
    except BaseException:
        if _before.error is None:
            leave_results()
            raise
    else:
        leave_results()
    if raised := _before.error or task.error:
        raise as_one_line(raised, words) if isinstance(raised, COMPOSITION_ERRORS) else raised
    return task.exit_code


def values_of(word: str) -> list[str]:
    """Complete a word whose key has one of a few values: ``mode=p``. Hydra offers the default alone."""
    key = word.partition("=")[0]
    group, _, name = key.rpartition(".")
    fields = getattr(getattr(Config(), group, None) if group else Config, "__dataclass_fields__", {})
    choices = fields[name].metadata.get("choices", ()) if name in fields else ()
    return [f"{key}={choice}" for choice in choices if "=" in word and f"{key}={choice}".startswith(word)]


def leave_results() -> None:
    """Print and write the table of a sweep, and write its page, whichever launcher or sweeper of Hydra ran it.

    Hydra's own callback for this, on_multirun_end, is left out after a failed job, sys.exit or Ctrl-C.
    """
    if _before.sweep and _before.sweep.exists():
        from memlab.report.sweep_text import leave_table_and_page
        from memlab.report.text import console

        leave_table_and_page(_before.sweep, console())


def show_at_once(words: Sequence[str]) -> bool:
    """Show what words without flags compose into, and return whether that was possible.

    Hydra's application composes twice, first for its own mode, which takes a quarter of the time. It answers sweeps of
    an experiment, and what is wrong.
    """
    with suppress(ConfigError, *HYDRA_ERRORS):
        if (composed := compose_words(words)).hydra.mode is not RunMode.MULTIRUN:
            show_compositions([composed], is_sweep=False)
            return True
    return False


def show_compositions(jobs: Sequence[DictConfig], is_sweep: bool) -> None:
    """Print what each job composes into as a JSON object, and write nothing. Raises :class:`ConfigError`."""
    from memlab.launch.composition import as_json, composition

    if any(job.mode != COMPOSE for job in jobs):
        raise ConfigError(f"mode={COMPOSE} cannot be one of several values: it shows what the points compose into.")
    print(as_json([composition(make_plan(*composed_config(job))) for job in jobs], is_sweep))


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line as Hydra does; its options may stand between the words. Raises :class:`ConfigError`, also
    for an option that Hydra cannot answer here."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        flags, unknown = parser.parse_known_intermixed_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error} (--hydra-help lists the options)") from None
    if unknown:
        option, _, value = unknown[0].partition("=")
        name = option.lstrip("-").replace("-", "_")
        keys = [key for key in flat(to_dict(Config())) if name in (key, key.rpartition(".")[2])]
        here = word_here(name, value or "<value>") or next((f"{key}={value or '<value>'}" for key in keys), None)
        hint = f"Here it is {here}, a word without dashes." if here else "--hydra-help lists the options."
        raise ConfigError(f"Unknown option '{option}'. {hint}")
    if flags.experimental_rerun:
        raise ConfigError(
            "--experimental-rerun reads a pickle, which memlab does not write: run the words in .hydra/overrides.yaml "
            "of the run folder again."
        )
    if any(word.startswith("query=") for word in flags.overrides) and "COMP_LINE" not in os.environ:
        raise ConfigError(
            "query= is for the completion of a shell, which sets COMP_LINE. Turn completion on with "
            'eval "$(python launch.py -sc install=bash)".'
        )
    return flags


def help_page(config_dir: str | None = None) -> str:
    """Fill the template of conf/hydra/memlab.yaml with the options of each group, including options in ``config_dir``.

    The options are read from the files. Hydra would compose a configuration and copy its whole store for every group,
    which takes a second.
    """
    page = parse_yaml(Path(conf_dir(), "hydra", "memlab.yaml").read_text(encoding="utf-8"))["help"]["template"]
    folders = [path for root in (conf_dir(), config_dir) if root for path in Path(root).iterdir() if path.is_dir()]
    groups = sorted({folder.name for folder in folders} - {"hydra", "local"})
    lines = [f"{group}: {', '.join(options_of(group, config_dir))}\n" for group in groups]
    return Template(page).substitute(APP_CONFIG_GROUPS="".join(lines))
