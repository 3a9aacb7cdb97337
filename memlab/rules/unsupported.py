"""Combinations of options that cannot run, and why.

DeepSpeed and transformers accept most of these combinations silently and then train something other than the options
say. A run that matches a rule gets the status ``unsupported`` within milliseconds and is not started.
"""

from memlab.core.config import Config
from memlab.rules import computation, model, offload, optimizer
from memlab.rules.machine import beyond_gpus, beyond_nodes, beyond_packages
from memlab.rules.offload import zero_keys_without_effect
from memlab.system.machine import Machine

RULES = (*offload.RULES, *computation.RULES, *optimizer.RULES, *model.RULES)


def unsupported(config: Config, machine: Machine | None) -> list[str]:
    """List the reasons why this combination is not supported, each with an alternative; empty if it is supported.

    ``machine``: the machine to measure on; ``None`` for a prediction, so that GPUs, packages and nodes are not checked.
    Of a command of the user's own only the number of GPUs is checked: it has its own packages and its own launcher.
    """
    if config.training.loop == "command":
        return list(beyond_gpus(config, machine)) if machine else []
    reasons = [f"{rule.why}; instead: {rule.instead}" for rule in RULES if rule.when(config)]
    reasons += zero_keys_without_effect(config)
    if machine is not None:
        reasons += beyond_gpus(config, machine)
        reasons += beyond_packages(config, machine)
        reasons += beyond_nodes(config, machine)
    return reasons
