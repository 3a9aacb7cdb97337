"""``memlab doctor [OVERRIDES...]``: check whether this machine can run a configuration."""

import argparse

from memlab.core.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides", nargs="*", metavar="WORD", help="configuration of the planned run: model=tiny zero_stage=zero3"
    )
    parser.add_argument("--config-dir", metavar="DIR", help="a folder with your own options of config groups")
    parser.add_argument("--no-build", action="store_true", help="do not build DeepSpeed's ops")


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from memlab.cli.compose import compose_config
    from memlab.core.plan import make_plan
    from memlab.launch.doctor import examine
    from memlab.report.doctor_text import show_findings

    config, choices = compose_config(arguments.overrides, arguments.config_dir)
    if config.mode == "predict":
        raise ConfigError("mode=predict runs on any machine, so there is nothing to check. Leave it out.")
    findings = examine(make_plan(config, choices), build_ops=not arguments.no_build)
    return 0 if show_findings(findings, Console()) else 1
