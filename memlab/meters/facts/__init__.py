"""Settings of the script, as found in the process: raw facts under the names of their libraries, for ``attached``."""

from ..own_errors import contained
from ..plain import plain
from ..session import Session
from . import libraries, machine, models

FACTS = {
    "optimizers": models.optimizers,
    "models": models.models,
    "deepspeed": libraries.engines,
    "trainer": libraries.trainer,
    "training_arguments": libraries.training_arguments,
    "accelerate": libraries.accelerator,
    "datasets": libraries.data_files,
    "versions": lambda session: machine.versions(),
    "environment": lambda session: machine.environment(),
    "script": lambda session: machine.script(),
    "modules": lambda session: machine.own_modules(session.facts["script"]["path"]),
}

THAT_GROW = ("datasets", "modules")
"""Facts that are found out again at the end."""


def gather(session: Session) -> None:
    """Find out the facts that are not known or may have grown. What fails is noted and left out."""
    for name, find in FACTS.items():
        if name in session.facts and name not in THAT_GROW:
            continue
        found = contained(find)(session)
        if found is not None:
            session.facts[name] = plain(found)
