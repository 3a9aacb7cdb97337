"""``memlab plan WORD...``: predict, before renting, which combinations of options fit and with which largest batch."""

import argparse
import itertools
import sys
from collections.abc import Sequence
from typing import Any

from memlab.cli.commands.shared_arguments import add_config_dir, add_files, write_files
from memlab.cli.compose import compose_config
from memlab.cli.override_words import check_total, expand
from memlab.cli.single_changes import BATCH_WORDS, changes_to_predict, composes_command, plan_of_words, words_changed
from memlab.core.command_template import effect
from memlab.core.errors import MemlabError
from memlab.launch import preflight
from memlab.planner.command_sweep import predictor_of
from memlab.planner.search import Candidate, Outcome, Row, cheapest, largest_batches, rows_to_measure, single_changes
from memlab.prediction.fit_outside import check_sizes
from memlab.prediction.not_predicted import unpredictable
from memlab.prediction.time.calibrate import check_calibrations
from memlab.report import plan_text
from memlab.report.plan_text import PlanProgress, ending
from memlab.report.text import console, say

AXES = {
    "zero_stage": ("zero0", "zero1", "zero2", "zero3"),
    "offload": ("none", "optimizer", "all"),
    "checkpointing": ("none", "full"),
    "allocator": ("default", "expandable"),
}
"""Axes that are combined by default, each with its options from the fastest to the one with the least memory."""

COMMAND_AXES = ("zero_stage", "offload", "checkpointing")
"""Of these the axes of a command: those that its words or its DeepSpeed JSON have a place for. A search of a command
takes minutes, so the allocator, which changes reserved memory alone, is tried where it is named."""

COMMAND_STEPS = "measure=quick"
"""Word for the steps of a command, unless the command line sets them: few are enough for memory."""

GROUPS_THAT_NAME_FILES = ("model", "data", "predict")
"""Groups whose values can name files, folders and keys outside memlab."""

REFUSED = ("search", "sweep", "mode")
"""Keys that have no meaning in a plan, which always predicts and always searches."""

SHOWN = 5
"""Number of configurations listed as worth measuring."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = "as for launch.py: model=llama3_8b hardware=a100_80g_x8 seq_len.tokens=2048; group=a,b tries both options"
    parser.add_argument("words", nargs="+", metavar="WORD", help=help)
    help = "predict only this configuration, and the memory that each single change saves"
    parser.add_argument("--changes", action="store_true", help=help)
    add_config_dir(parser)
    add_files(parser)


def run(arguments: argparse.Namespace) -> int:
    given = expand(arguments.words, arguments.config_dir)
    for key in given:
        if key.split(".")[0] in REFUSED:
            raise MemlabError(f"'{key}': memlab plan always predicts and searches the largest batch. Leave it out.")
    if composes_command(given, arguments.config_dir) and not any(key.split(".")[0] == "measure" for key in given):
        given["measure"] = [COMMAND_STEPS]
    _check_files(given, arguments.config_dir)
    return _plan_changes(given, arguments) if arguments.changes else _plan_batches(given, arguments)


def _check_files(given: dict[str, list[str]], config_dir: str | None) -> None:
    """Raise :class:`MemlabError` if a word names a file, folder or key that cannot be used.

    This check comes before hundreds of combinations are composed. It uses all values of
    :data:`GROUPS_THAT_NAME_FILES`, and only the first value of every other word.
    """
    naming = [words for key, words in given.items() if key.lstrip("+").split(".")[0] in GROUPS_THAT_NAME_FILES]
    others = [words[0] for words in given.values() if words not in naming]
    configs = [compose_config([*others, *words, "mode=predict"], config_dir)[0] for words in itertools.product(*naming)]
    preflight.check(configs)
    check_calibrations(configs)
    check_sizes(configs)


def _plan_batches(given: dict[str, list[str]], arguments: argparse.Namespace) -> int:
    """Find the largest batch of each configuration, and print or write the table. Returns the exit code."""
    if key := next((key for key in BATCH_WORDS if key in given), None):
        raise MemlabError(f"'{key}': memlab plan searches the batch. Leave it out, or predict one size with --changes.")
    out, progress_out = console(), console(sys.stderr)
    axes = combined_axes(given, arguments.config_dir)
    candidates = combinations(given, axes, arguments.config_dir)
    _check_batch(candidates)
    if not candidates:
        raise MemlabError(
            "None of these combinations can be predicted. Run one with launch.py mode=predict to see the reason."
        )
    config = candidates[0].config
    kept = "predictions" if config.is_command else "traces"
    progress_out.print(f"{len(candidates)} configurations; after Ctrl-C, finished {kept} are kept")
    with PlanProgress(progress_out) as progress, predictor_of(config, progress.update) as predictor:
        rows = largest_batches(candidates, predictor)
    measure = rows_to_measure(rows, [name for name in axes if name not in ("hardware", "allocator")])
    several = len({row.candidate.options.get("hardware") for row in rows}) > 1
    say(plan_text.plan_answer(rows, cheapest(rows) if several else None, measure), out, "bold")
    if not write_files(rows_frame(rows), arguments):
        plan_text.show_rows(rows, out)
    plan_text.show_measure(measure, SHOWN, out)
    return 0 if any(row.batch for row in rows) else 1


def combined_axes(given: dict[str, list[str]], config_dir: str | None = None) -> dict[str, list[str]]:
    """Return key -> words of its values, for all axes to combine.

    These are the keys with several values on the command line, and :data:`AXES`, except for an axis that the command
    line sets, wholly (``offload=none``) or in part (``offload.ratio=0.5``).
    """
    settled = {key for key in AXES if key in given or any(word.startswith(f"{key}.") for word in given)}
    if composes_command(given, config_dir):
        settled |= {key for key in AXES if key not in COMMAND_AXES or not _reaches(given, key, config_dir)}
    defaults = {key: [f"{key}={option}" for option in options] for key, options in AXES.items() if key not in settled}
    return {key: words for key, words in given.items() if len(words) > 1} | defaults


def _reaches(given: dict[str, list[str]], axis: str, config_dir: str | None) -> bool:
    """Whether the options of an axis reach the command by a place or through its DeepSpeed JSON."""
    words = [words[0] for key, words in given.items() if key.split(".")[0] != axis]
    configs = [compose_config([*words, f"{axis}={option}", "mode=predict"], config_dir)[0] for option in AXES[axis]]
    return len(set(map(effect, configs))) > 1


def _check_batch(candidates: Sequence[Candidate]) -> None:
    """Raise :class:`MemlabError` if the micro batch, which a plan searches, does not reach a command."""
    for candidate in candidates:
        one, two = candidate.plan(1).config, candidate.plan(2).config
        if effect(one) == effect(two):
            raise MemlabError(
                "memlab plan searches the largest batch, but batch.micro does not reach training.command: write "
                "{batch.micro} where your script takes its batch."
            )


def combinations(
    given: dict[str, list[str]], axes: dict[str, list[str]], config_dir: str | None = None
) -> list[Candidate]:
    """List all combinations of the axes that can be predicted, without those that reach a command as another does."""
    check_total({key: len(words) for key, words in axes.items()})
    fixed = [words[0] for key, words in given.items() if key not in axes]
    found = []
    seen = set()
    for words in itertools.product(*axes.values()):
        config, choices = compose_config([*fixed, *words, "mode=predict"], config_dir)
        runs = (effect(config), repr(config.hardware)) if config.is_command else words
        if not unpredictable(config) and runs not in seen:
            seen.add(runs)
            options = {key: word.partition("=")[2] for key, word in zip(axes, words, strict=True)}
            typed = (*(("--config-dir", config_dir) if config_dir else ()), *fixed, *words)
            found.append(Candidate(options, config, choices, typed))
    return found


def rows_frame(rows: Sequence[Row]) -> Any:
    """Convert the rows to a data frame, with bytes as integers."""
    import pandas

    return pandas.DataFrame(
        {
            **row.candidate.options,
            "largest_batch": row.batch,
            "batch_of_one": ending(row.of_one),
            "one_more": "" if row.next_up is None else ending(row.next_up),
            "device_used_bytes": row.best.used if row.best else None,
            "device_free_bytes": row.best.free if row.best else None,
            "host_peak_bytes": row.best.host if row.best else None,
            "fit_probability": row.summary.get("fit_probability"),
            "fit_probability_same_kind": row.summary.get("fit_probability_same_kind"),
            "tokens_per_second": row.summary.get("tokens_per_second"),
            "basis": row.basis.kind,
            "usd_per_hour": row.usd_per_hour,
            "usd_per_million_tokens": row.usd_per_million_tokens,
        }
        for row in rows
    )


def _plan_changes(given: dict[str, list[str]], arguments: argparse.Namespace) -> int:
    """Predict one configuration and its single changes, and print or write the table. Returns the exit code."""
    if several := next((key for key, words in given.items() if len(words) > 1), None):
        raise MemlabError(f"--changes needs one configuration: give '{several}' one value.")
    out = console()
    base = plan_of_words(given, arguments.config_dir)
    with PlanProgress(console(sys.stderr)) as progress, predictor_of(base.config, progress.update) as predictor:
        outcome, changes = single_changes(base, changes_to_predict(given, base, arguments.config_dir), predictor)
    if not write_files(_changes_frame(outcome, changes), arguments):
        plan_text.show_changes(outcome, changes, out)
        if best := next((change.word for change in changes if change.saved and change.saved > 0), None):
            folder = ("--config-dir", arguments.config_dir) if arguments.config_dir else ()
            plan_text.show_launch([*folder, *words_changed(given, best)], f"With {best}", out)
    return 0


def _changes_frame(base: Outcome, changes: Sequence) -> Any:
    import pandas

    rows = [("", base, None), *((change.word, change.outcome, change.saved) for change in changes)]
    return pandas.DataFrame(
        {
            "change": word,
            "ends": ending(outcome),
            "needed_bytes": None if isinstance(outcome, str) else outcome.used,
            "saved_bytes": saved,
            "host_peak_bytes": None if isinstance(outcome, str) else outcome.host,
        }
        for word, outcome, saved in rows
    )
