"""``memlab doctor [OVERRIDES...]``: check whether this machine can run a configuration."""

import argparse

from memlab.cli.commands.shared_arguments import add_config_dir
from memlab.core.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = "configuration of the planned run: model=tiny zero_stage=zero3"
    parser.add_argument("overrides", nargs="*", metavar="WORD", help=help)
    add_config_dir(parser)
    parser.add_argument("--no-build", action="store_true", help="do not build DeepSpeed's ops")
    help = "remove the data sets that predictions of commands have prepared and kept (10 GB at most)"
    parser.add_argument("--drop-data", action="store_true", help=help)


def run(arguments: argparse.Namespace) -> int:
    from memlab.cli.compose import compose_config
    from memlab.core.plan import make_plan
    from memlab.launch.doctor import examine
    from memlab.report.doctor_text import show_findings
    from memlab.report.text import console

    config, choices = compose_config(arguments.overrides, arguments.config_dir)
    if config.mode == "predict":
        raise ConfigError("mode=predict runs on any machine, so there is nothing to check. Leave it out.")
    findings = examine(make_plan(config, choices), not arguments.no_build, arguments.drop_data)
    return 0 if show_findings(findings, console()) else 1
