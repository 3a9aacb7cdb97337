"""Data of the page. Values that recur in many runs are stored once and shared."""

import os
from collections.abc import Sequence
from typing import Any

from memlab import __version__
from memlab.analyse.collect import Skipped
from memlab.analyse.identity import REPEATS, configurations, point_of, subject_of
from memlab.analyse.quantities import SMALL, quantities_of
from memlab.analyse.run_view import RunView
from memlab.report.page.axes import all_effects
from memlab.report.page.points import (
    SharedValues,
    deepspeed_of,
    logs_of,
    phase_ends,
    points_of,
    quantity_columns,
    table_columns,
    timing_columns,
)
from memlab.report.page.sentences import answer, held_quantity, sections
from memlab.report.page.tables import effects_table, fits_table, leaderboard, notes_table
from memlab.report.palette import Style, styles
from memlab.report.short_names import short_names, usual_options


def payload(runs: Sequence[RunView], skipped: Sequence[Skipped], title: str) -> dict[str, Any]:
    """Build the data of the page: sizes in bytes, times in seconds; the scripts format them."""
    labelled = configurations(runs)
    names = dict(zip(labelled, short_names([members[0] for members in labelled.values()]), strict=True))
    named = {names[label]: members for label, members in labelled.items()}
    places = {id(run): number for number, members in enumerate(named.values()) for run in members}
    fits = fits_table(runs, names)  # before the runs are sorted, which changes the labels
    runs = [run for members in named.values() for run in sorted(members, key=point_of)]
    names_of_runs = [name for name, members in named.items() for _ in members]
    quantities = {id(run): quantities_of(run) for run in runs}
    shared = SharedValues()
    root = os.path.dirname(os.path.commonpath([run.path for run in runs]))
    unread = [(os.path.relpath(place.path, root), place.reason.replace(root + os.sep, "")) for place in skipped]
    effects = all_effects(runs, quantities, held_quantity(runs))
    columns = quantity_columns(runs, quantities)
    return {
        "title": title,
        "version": __version__,
        "answer": answer(named),
        "sections": [
            {"title": heading, "sentences": sentences}
            for heading, sentences in sections(named, effects, unread).items()
        ],
        "usual": usual_options([members[0] for members in named.values()]),
        "tables": {
            "leaderboard": leaderboard(named),
            "fits": fits,
            "effects": effects_table(effects, held_quantity(runs)),
            "notes": notes_table(runs, unread),
        },
        "configurations": _configurations(labelled, names),
        "columns": table_columns(runs, names_of_runs, columns),
        "quantities": columns,
        "held": held_quantity(runs),
        "repeats": REPEATS,
        "small": SMALL,
        "count": len(runs),
        "points": points_of(runs, places, root, shared),
        "config": shared.columns([run.config for run in runs]),
        "deepspeed": shared.columns([deepspeed_of(run) for run in runs]),
        "ends": phase_ends(runs),
        "timing": timing_columns(runs),
        "logs": logs_of(runs, shared),
        "shared": shared.values,
    }


def _configurations(labelled: dict[str, list[RunView]], names: dict[str, str]) -> list[dict[str, str]]:
    """List name, all words, subject and style of each configuration.

    Configurations of one subject share charts, so their styles differ.
    """
    subjects: dict[str, list[str]] = {}
    for label, members in labelled.items():
        subjects.setdefault(subject_of(members[0]), []).append(label)
    looks: dict[str, Style] = {}
    for labels in subjects.values():
        looks |= styles(labels)
    return [
        {
            "label": names[label],
            "words": label,
            "subject": subject_of(members[0]),
            "color": looks[label].color,
            "dark": looks[label].dark,
            "dash": looks[label].dash,
        }
        for label, members in labelled.items()
    ]
