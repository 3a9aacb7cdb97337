"""Leave the checkpoint that trainer_zero3_resume begins with: ``python results/commands/checkpoint.py``.

trainer_zero3_save runs on a simulated GPU, outside of the sandbox of predictions, so that its files stay. They have the
format of the libraries, and no weights.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from memlab.prediction.run_command import simulate
from memlab.simulator.simulation import Node

NAME = "trainer_zero3_save"


def main() -> str:
    lines = Path(__file__).with_name("commands.txt").read_text().splitlines()
    _, *words = next(line.split() for line in lines if line.startswith(f"{NAME} "))
    with TemporaryDirectory() as folder:
        node = Node("NVIDIA H200", 1, 139 << 30)
        return simulate(words, node, Path(folder), None, {**os.environ, "HF_HOME": "outputs/hf"}).last_words


if __name__ == "__main__":
    sys.exit(main() or 0)  # last words are an error's; none, that all went well
