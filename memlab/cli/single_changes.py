"""Single changes of a configuration that can save memory, composed with Hydra."""

import shlex
from dataclasses import replace

from memlab.cli.compose import compose_config
from memlab.cli.override_words import expand
from memlab.core.command_template import effect
from memlab.core.config_values import to_dict
from memlab.core.errors import MemlabError
from memlab.core.plan import Plan, make_plan
from memlab.core.record import Record
from memlab.files.conf_files import overrides_of
from memlab.planner.changes import Change, changes_of
from memlab.prediction.not_predicted import unpredictable

BATCH_WORDS = ("batch", "batch.micro")
"""Keys of the micro batch. The search for the largest batch sets it."""


def plan_of_words(given: dict[str, list[str]], config_dir: str | None = None) -> Plan:
    """Make the plan of words of one value each. Raises :class:`MemlabError` if it cannot be predicted."""
    config, choices = compose_config([*(words[0] for words in given.values()), "mode=predict"], config_dir)
    if reasons := unpredictable(config):
        raise MemlabError("; ".join(reasons))
    return make_plan(config, choices)


def composes_command(given: dict[str, list[str]], config_dir: str | None = None) -> bool:
    """Whether the words are of a command of the user's own, by whatever name of an option."""
    words = [words[0] for key, words in given.items() if key.startswith("training.")]
    options = given.get("training", ["training=memlab"])
    kinds = {compose_config([option, *words], config_dir)[0].is_command for option in options}
    if len(kinds) > 1:
        raise MemlabError("memlab plan takes memlab's own training or commands, not both: give 'training' one of them.")
    return kinds == {True}


def changes_to_predict(given: dict[str, list[str]], base: Plan, config_dir: str | None = None) -> list[Change]:
    """List every change, with its plan, that can be predicted and that can save memory."""
    found = []
    for change in changes_of(base.config):
        config, choices = compose_config([*words_changed(given, change.told), "mode=predict"], config_dir)
        if effect(config) != effect(base.config) and not unpredictable(config):
            found.append(replace(change, plan=make_plan(config, choices)))
    return found


def words_changed(given: dict[str, list[str]], change: str) -> list[str]:
    """Return the words of one configuration with the word of a change in its place."""
    replaced = BATCH_WORDS if change.startswith("batch") else change.split("=")[:1]
    return [*(words[0] for key, words in given.items() if key not in replaced), change]


def changes_of_record(record: Record) -> tuple[Plan, list[Change]]:
    """Return the plan that predicts a run of memlab's own training, and its possible changes.

    Raises :class:`MemlabError` if it cannot be predicted.
    """
    words = [word for line in overrides_of(record.choices, to_dict(record.config)) for word in shlex.split(line)]
    given = expand(words)
    base = plan_of_words(given)
    return base, changes_to_predict(given, base)
