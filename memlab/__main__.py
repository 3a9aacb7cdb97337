"""``python -m memlab COMMAND``: the console script where it is not on the PATH."""

from memlab.cli import main

main()
