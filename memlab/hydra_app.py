"""The task that Hydra runs: one composed configuration -> one run folder with a record."""

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from memlab.compose import CONFIG_NAME, check_overrides, choices_of, conf_dir, register, resolve
from memlab.launch.run import run_one
from memlab.plan import make_plan
from memlab.record import Record, RunFolder
from memlab.report.run_table import show_run


def run_hydra() -> int:
    """Compose what the command line says and run it. Returns the exit code."""
    from memlab.cli import EXIT_CODES

    words, config_dir = split_arguments(sys.argv[1:])
    check_overrides(words, config_dir)
    register()
    records: list[Record] = []

    @hydra.main(version_base="1.3", config_path=conf_dir(), config_name=CONFIG_NAME)
    def task(composed: DictConfig) -> str:
        records.append(run_composed(composed))
        return records[-1].status

    task()
    return EXIT_CODES[records[-1].status] if len(records) == 1 else 0


def run_composed(composed: DictConfig) -> Record:
    """Run one composed configuration in the folder that Hydra made for it."""
    config = resolve(composed)
    hydra_config = HydraConfig.get()
    folder = RunFolder(hydra_config.runtime.output_dir)
    plan = make_plan(config, choices_of({"hydra": hydra_config}))
    console = Console()
    console.print(f"{plan.run_id}\n  {folder}", highlight=False, markup=False)
    record = run_one(plan, folder, force=config.force)
    show_run(record, console)
    console.print(f"run folder: {folder}", highlight=False, markup=False, soft_wrap=True)
    return record


def split_arguments(arguments: list[str]) -> tuple[list[str], str | None]:
    """The override words among Hydra's own flags, and the folder of ``--config-dir``."""
    from hydra._internal.utils import get_args_parser

    parsed, _ = get_args_parser().parse_known_args(arguments)
    return parsed.overrides, parsed.config_dir
