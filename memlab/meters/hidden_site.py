"""Runs the environment's own sitecustomize, which the bootstrap shadows."""

import os
import sys


def hand_on(here: str) -> None:
    """Take ``here``, the folder of the bootstrap, off the path, and import the hidden sitecustomize.

    Without one, Python finds that none exists, and says nothing.
    """
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    del sys.modules["sitecustomize"]
    import sitecustomize  # noqa: F401
