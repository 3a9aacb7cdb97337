"""Short names of configurations: the model, the ZeRO stage, and options that most configurations do not have."""

from collections import Counter
from collections.abc import Mapping, Sequence

from memlab.analyse.identity import COMMAND, numbered, varied_groups, varied_keys, words_apart
from memlab.analyse.run_view import RunView, value_at
from memlab.core.grouping import grouped

PLAIN = ("model", "zero_stage")
"""Groups whose option is in every name if it varies, without the group's name: zero3."""

MOST_KEYS = 2
"""Most values added to names whose options are equal. Names that are still equal get a number."""


def usual_options(firsts: Sequence[RunView]) -> dict[str, str]:
    """Find the option that more than half of the configurations have, for each group in which they differ."""
    found = {}
    for group in varied_groups(firsts):
        option, count = Counter(run.choices.get(group) for run in firsts).most_common(1)[0]
        if group not in PLAIN and option is not None and 2 * count > len(firsts):
            found[group] = option
    return found


def short_names(firsts: Sequence[RunView]) -> list[str]:
    """Name each configuration, given by one run. Names leave out the :func:`usual_options`."""
    shown, usual = varied_groups(firsts) or list(PLAIN), usual_options(firsts)
    words = words_apart(firsts, lambda run: _options(run, shown, usual))
    for places in grouped(range(len(firsts)), lambda place: tuple(words[place])).values():
        if len(places) > 1:
            for place, values in zip(places, _values_apart([firsts[place] for place in places]), strict=True):
                words[place] = [*words[place], *values]
    return numbered(" ".join(each) or run.run_id for each, run in zip(words, firsts, strict=True))


def names_by_label(firsts: Mapping[str, RunView]) -> tuple[dict[str, str], str]:
    """Map labels to short names. Also returns the options that these names leave out, as words."""
    runs = list(firsts.values())
    usual = " ".join(f"{group}={option}" for group, option in usual_options(runs).items())
    return dict(zip(firsts, short_names(runs), strict=True)), usual


def _options(run: RunView, shown: Sequence[str], usual: dict[str, str]) -> list[str]:
    known = [(group, run.choices[group]) for group in shown if group in run.choices]
    unusual = [(group, option) for group, option in known if option != usual.get(group)]
    return [option if group in PLAIN else f"{group}={option}" for group, option in unusual]


def _values_apart(runs: Sequence[RunView]) -> list[list[str]]:
    """List for each run the ``key=value`` words in which these runs differ."""
    keys = [key for key in varied_keys(runs) if key != COMMAND]  # its script is named already
    keys = [key for key in keys if not any(isinstance(value_at(run.config, key), list) for run in runs)]  # too long
    return [
        [f"{key}={value}" for key in keys[:MOST_KEYS] if (value := value_at(run.config, key)) is not None]
        for run in runs
    ]
