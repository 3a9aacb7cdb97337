"""``python -m memlab.predict.shadow REQUEST``: trace ranks of plans in this process and its forks, never touching a
GPU.

The request is a JSON file (see :class:`memlab.predict.shadow.request.Request`), which says where each trace goes. A
process of its own, because a device once renamed, a process group once made and torch once patched stay so.
"""

import sys
from pathlib import Path

from memlab.predict.shadow.request import Request
from memlab.predict.shadow.run import trace_all

if __name__ == "__main__":
    sys.exit(trace_all(Request.load(Path(sys.argv[1]))))
