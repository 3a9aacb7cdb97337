"""Graphs that torch.compile has compiled in predictions: later predictions compile them faster.

They are in a folder of memlab's own. A real run must not read them, because their kernels were not compiled. A
prediction must not read the graphs of a real run, because their kernels need a GPU.
"""

import os
from functools import cache
from hashlib import sha256
from pathlib import Path

from memlab.files.disk import cache_folder

NAME = "graphs"

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Names the folder to torch's compiler, which finds graphs in it by the GPU and by the versions they were made with."""

_STAND_INS = Path(__file__).with_name("rank") / "stand_ins"


@cache
def folder() -> Path:
    """Return the folder of the graphs that this version of memlab makes, where the generated code is its own."""
    code = [(_STAND_INS / name).read_bytes() for name in ("compiler.py", "compiled_code.py")]
    return cache_folder(NAME) / sha256(b"".join(code)).hexdigest()[:16]


def use() -> None:
    """Let the compiler in this process read and write the graphs."""
    os.environ[VARIABLE] = str(folder())
