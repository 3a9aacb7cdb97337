"""Combinations of options that cannot run, and why.

DeepSpeed and transformers accept most of these combinations silently and then train something other than the options
say. A run that matches a rule gets the status ``unsupported`` within milliseconds and is not started.
"""

from collections.abc import Sequence

from memlab.core.command_template import DEEPSPEED_JSON, template
from memlab.core.config import Config
from memlab.rules import computation, model, offload, optimizer
from memlab.rules.command import without_words
from memlab.rules.machine import beyond_gpus, beyond_nodes, beyond_packages
from memlab.rules.offload import zero_keys_without_effect
from memlab.rules.rule import Rule, broken
from memlab.system.machine import Machine

RULES = (*offload.RULES, *computation.RULES, *optimizer.RULES, *model.RULES)


def unsupported(config: Config, machine: Machine | None) -> list[str]:
    """List the reasons why this combination is not supported, each with an alternative; empty if it is supported.

    ``machine``: the machine to measure on; ``None`` for a prediction, so that GPUs, packages and nodes are not checked.
    A command of the user's own has its own packages and launcher: only the number of GPUs is checked, what memlab
    writes into its DeepSpeed JSON, and which values a trainer takes.
    """
    if config.is_command:
        in_json = _broken(config, offload.RULES) if DEEPSPEED_JSON in template(config).places else []
        return [*in_json, *without_words(config), *(beyond_gpus(config, machine) if machine else ())]
    reasons = _broken(config, RULES)
    if machine is not None:
        for beyond in (beyond_gpus, beyond_packages, beyond_nodes):
            reasons += beyond(config, machine)
    return reasons


def _broken(config: Config, rules: Sequence[Rule]) -> list[str]:
    """Return the reasons of the rules that match, and of the keys of ZeRO without effect."""
    return [*broken(config, rules), *zero_keys_without_effect(config)]
