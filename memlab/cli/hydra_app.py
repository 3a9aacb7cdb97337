"""Hydra application: the task that Hydra calls, and the help page.

Functions that run something import ``memlab.cli.experiments`` themselves, so that help and completion start fast.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from string import Template

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from memlab.cli.compose import CONFIG_NAME, compose_config, compose_run, register, run_dir_word
from memlab.cli.hydra_errors import COMPOSITION_ERRORS, as_one_line
from memlab.cli.override_words import ADDED_GROUPS, check_overrides, options_of
from memlab.core.config import GROUPS
from memlab.files.conf_files import conf_dir, parse_yaml
from memlab.runs.folder import RunFolder

register()  # at import: a Slurm job unpickles Hydra's task and then composes its configuration at once


class HydraTask:
    """The task that Hydra calls, with its outcome, which Hydra would discard or change.

    ``error``: exception of the task; Hydra would add lines to its message. A Slurm job gets a pickled copy.
    """

    def __init__(self):
        self.exit_code = 0
        self.error: Exception | None = None

    def __call__(self, composed: DictConfig) -> str:
        """Run one composed configuration. Returns its status."""
        from memlab.cli.experiments import run_composed

        try:
            status, self.exit_code = run_composed(composed)
        except Exception as error:
            self.error = error
            return "refused"
        return status

    def run_batch(self, config: DictConfig, batch: Sequence[DictConfig]) -> list[JobReturn]:
        """Run all jobs of a sweep, for the multirun launcher."""
        from memlab.cli.experiments import run_sweep

        self.exit_code = run_sweep(config, batch)
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=None) for _ in batch]


def run_hydra() -> int:
    """Compose the configuration of the command line and run it. Returns the exit code."""
    arguments, words = read_arguments(sys.argv[1:])
    check_overrides(words, arguments.config_dir)
    if arguments.help:
        print(help_page(arguments.config_dir))
        return 0
    if is_single_run(arguments):
        place = _behind_the_words(sys.argv, words)
        sys.argv.insert(place, run_dir_word(claimed_folder(words, arguments.config_dir)))
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let Hydra raise: otherwise it prints errors itself and exits with 1
    task = HydraTask()
    try:
        hydra.main(version_base="1.3", config_path=conf_dir(), config_name=CONFIG_NAME)(task)()
    except COMPOSITION_ERRORS as error:
        raise as_one_line(error) from error
    if arguments.cfg in ("job", "all"):  # Hydra has printed the configuration without memlab's checks
        compose_config(words, arguments.config_dir)
    if task.error:
        raise task.error
    return task.exit_code


def read_arguments(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """Parse the command line into Hydra's flags and the override words."""
    parsed, _ = get_args_parser().parse_known_args(arguments)
    words = [] if parsed.shell_completion else parsed.overrides  # "install=bash" is a word to Hydra's completion
    return parsed, words


def is_single_run(arguments: Namespace) -> bool:
    other = (arguments.multirun, arguments.cfg, arguments.info, arguments.hydra_help, arguments.shell_completion)
    return not any(other) and not any(word.startswith("hydra.mode=") for word in arguments.overrides)


def claimed_folder(words: Sequence[str], config_dir: str | None) -> str:
    """Mark the folder of a single run (``hydra.run.dir``) as memlab's and return its path.

    This happens before Hydra starts: Hydra would write into the folder even if it holds foreign files. A configuration
    that cannot be composed is refused before the folder is made. The caller passes the path to Hydra, since the time of
    day may be part of the name.
    """
    from memlab.cli.experiments import check_inputs

    config, path = compose_run(words, config_dir)
    check_inputs([config])
    RunFolder(path).claim()
    return path


def _behind_the_words(arguments: Sequence[str], words: Sequence[str]) -> int:
    """Return the index in ``arguments`` behind the last override word: argparse needs all words in a row."""
    return len(arguments) - arguments[::-1].index(words[-1]) if words else len(arguments)


def help_page(config_dir: str | None = None) -> str:
    """Fill the template of conf/hydra/memlab.yaml with the options of each group, including options in ``config_dir``.

    The options are read from the files. Hydra would compose a configuration and copy its whole store for every group,
    which takes a second.
    """
    page = parse_yaml(Path(conf_dir(), "hydra", "memlab.yaml").read_text(encoding="utf-8"))["help"]["template"]
    groups = sorted([*GROUPS, *ADDED_GROUPS])
    lines = [f"{group}: {', '.join(options_of(group, config_dir))}\n" for group in groups]
    return Template(page).substitute(APP_CONFIG_GROUPS="".join(lines))
