"""What the commands share: which run folders, which of their runs, and the lines about those that cannot be used."""

import argparse

from memlab.errors import MemlabError


def add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="run folders, or folders that hold them")
    add_where(parser)


def add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--where", nargs="+", default=[], metavar="KEY=VALUE", help="only these: zero_stage=zero3, seq_len.tokens=2048"
    )


def selected(paths, conditions):
    """The runs, after a line on standard error for each folder that was skipped and each run that is incomplete."""
    return collected(paths, conditions)[0]


def collected(paths, conditions):
    """As :func:`selected`, with the places that were skipped."""
    import sys

    from memlab.analyse.collect import collect
    from memlab.analyse.identity import select
    from memlab.report.text import console, show_incomplete, show_skipped

    collection = collect(paths)
    runs = select(collection.runs, conditions)
    errors = console(sys.stderr)
    show_skipped(collection.skipped, errors)
    show_incomplete(runs, errors)
    if not runs:
        raise MemlabError(
            f"{', '.join(map(str, paths))}: no run that can be read{' and meets --where' * bool(conditions)}."
        )
    return runs, collection.skipped
