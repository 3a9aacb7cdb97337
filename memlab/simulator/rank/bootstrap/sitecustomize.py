"""Bootstrap of the simulated GPUs in every Python process of a command.

Python imports this module at start, before the script, because its folder is on PYTHONPATH. A process that never
imports torch pays for a few small modules.
"""

import os
import sys
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.abspath(__file__))
AROUND = os.path.abspath(os.path.join(HERE, *[os.pardir] * 4))


class MemlabAlone:
    """Finds memlab in the folder around it, and nothing else: it may hold other versions of the script's packages."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [AROUND]) if name == "memlab" else None


class RefuseTorch:
    """Ends an old Python that imports torch. Others that the command calls, tools of the system for example, go on."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Say why as memlab.simulator.simulation does, which this Python cannot import."""
        if name != "torch":
            return
        with open(os.path.join(os.environ["MEMLAB_SIMULATION"], "refusal.txt"), "w") as file:
            file.write(
                "Python {}.{} of {} is too old: predictions need 3.10 or newer.".format(
                    *sys.version_info[:2], sys.executable
                )
            )
        os._exit(1)


if sys.version_info < (3, 10):
    sys.meta_path.insert(0, RefuseTorch)
else:
    sys.meta_path.insert(0, MemlabAlone)
    from memlab.meters import hidden_site
    from memlab.simulator.rank import script

    script.prepare()
    hidden_site.hand_on(HERE)
