"""Bootstrap of memlab's meters in every Python process of a command: waits for torch, then loads the meters.

Python imports this module at start, before the script, because its folder is on PYTHONPATH. A process that never
imports torch pays for one small module and one more finder.
"""

import os
import sys

from memlab_attach.meters import hidden_site, import_hook

HERE = os.path.dirname(os.path.abspath(__file__))


def start(torch):
    """Load the meters. Whatever fails in them, the script goes on."""
    try:
        open(os.path.join(HERE, "loaded"), "a").close()  # install.LOADED
        from memlab_attach.meters import options, start

        start.begin(options.MeterOptions.read(HERE))
    except Exception as error:
        print(f"memlab: nothing is measured in process {os.getpid()}: {error!r}", file=sys.stderr)


import_hook.after("torch", start)
hidden_site.hand_on(HERE)
