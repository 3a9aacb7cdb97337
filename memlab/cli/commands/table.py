"""``memlab table [PATH...]``: print run folders as one table, or write the table to files."""

import argparse

from memlab.cli.commands.run_selection import add_selection, latest_sweep, selected
from memlab.cli.commands.shared_arguments import add_files, write_files
from memlab.system.terminal import safe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selection(parser, without="the latest sweep below outputs/")
    form = parser.add_mutually_exclusive_group()
    for name in ("rank", "phase", "step"):
        help = f"a row for each {name}"
        form.add_argument(f"--{name}s", dest="form", action="store_const", const=f"{name}s", help=help)
    help = "a row for each rank with a memory history, or predicted: what held its memory at the peak"
    form.add_argument("--explain", dest="form", action="store_const", const="explain", help=help)
    help = "print what the estimators of DeepSpeed and accelerate say, too (files have it always)"
    parser.add_argument("--estimates", action="store_true", help=help)
    add_files(parser)


def run(arguments: argparse.Namespace) -> int:
    from memlab.analyse import table
    from memlab.report.points_text import show_points
    from memlab.report.text import console, show_frame, show_pointer
    from memlab.runs.folder import RunFolder

    runs = selected(arguments.paths or [latest_sweep()], arguments.where)
    problems: list[str] = []
    if arguments.form is None:
        frame = table.points_table(runs)
    elif arguments.form == "explain":
        from memlab.analyse.explain.table import explained_table

        frame, problems = explained_table(runs)
    else:
        makers = {"ranks": table.ranks_table, "phases": table.phases_table, "steps": table.steps_table}
        frame, problems = makers[arguments.form](runs)
    for problem in problems:
        console().print(safe(problem), soft_wrap=True)
    if not write_files(frame, arguments):
        if arguments.form is None:
            show_points(runs, console(), arguments.estimates)
            show_pointer([RunFolder(run.path) for run in runs if run.status == "gpu_oom"], console())
        else:
            show_frame(frame, console())
    return 0
