"""``python -m tools.families [NAME...]``: predict one small model of every family that transformers knows."""

import argparse
import sys
import tempfile
from pathlib import Path

from memlab.cli.commands.shared_arguments import whole
from memlab.core.errors import MemlabError, nearest
from memlab.files.disk import write_output
from tools.program import add_page, start

WORDS = ("hardware=h200_x1", "zero_stage=zero2", "seq_len.tokens=64", "batch.micro=1")
"""Command-line words of the prediction that is made for each family's model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="model types of transformers (default: all)")
    add_page(parser)
    help = "CPU time allowed for each family (default: %(default)s)"
    parser.add_argument("--limit", type=whole(1), default=60, metavar="SECONDS", help=help)


def run(arguments: argparse.Namespace) -> None:
    from memlab.cli.compose import compose_config
    from memlab.system.environment import package_versions
    from tools.families.attempts import attempts
    from tools.families.models import all_families, model_families
    from tools.families.page import document

    known = all_families()
    if unknown := sorted(set(arguments.names) - set(known)):
        raise MemlabError(f"{unknown[0]}: not a causal language model of transformers. {nearest(unknown[0], known)}")
    families = model_families(arguments.names or known)
    config, _ = compose_config(["mode=predict", *WORDS])

    def show_progress(done: int) -> None:
        print(f"\rtraced {done} of {len(families)}", end="", file=sys.stderr)

    with tempfile.TemporaryDirectory(prefix="memlab-families-") as folder:
        found = attempts(families, config, Path(folder), arguments.limit, show_progress)
    print(file=sys.stderr)
    text = document(found, WORDS, package_versions(), arguments.limit)
    if arguments.output is None:
        print(text)
    else:
        write_output(arguments.output, text.encode())
        print(arguments.output)


if __name__ == "__main__":
    start(add_arguments, run, __doc__)
