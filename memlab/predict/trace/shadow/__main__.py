"""``python -m memlab.predict.trace.shadow REQUEST``: trace ranks of plans in this process and its forks, without a GPU.

REQUEST is a JSON file (see :class:`memlab.predict.trace.shadow_process.Request`) that names the output file of each
trace.
Tracing has its own process, because renaming the device, creating the process group and patching torch cannot be
undone.
"""

import sys
from pathlib import Path

from memlab.predict.trace.shadow.run import trace_all
from memlab.predict.trace.shadow_process import Request

if __name__ == "__main__":
    sys.exit(trace_all(Request.load(Path(sys.argv[1]))))
