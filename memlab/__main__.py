"""``python -m memlab COMMAND``: the same as the console script ``memlab``, which may not be on the PATH."""

from memlab.cli.main import main

main()
