"""The run of a command on simulated GPUs, with another program in its place."""

import os
import subprocess

from memlab.prediction.run_command import LOG, simulate
from memlab.simulator.simulation import Node

TOKEN = "hf_" + "a1" * 17


def test_the_log_of_a_predicted_command_holds_no_secrets(tmp_path):
    def run(words, stdout, **options):
        stdout.write(f"logged in with {TOKEN}\nValueError: no data\n".encode())
        return subprocess.CompletedProcess(words, 1)

    simulated = simulate(["python", "train.py"], Node("h200", 1, 1 << 30), tmp_path, None, os.environ, run=run)
    assert (simulated.returncode, simulated.last_words) == (1, "ValueError: no data")
    assert (tmp_path / LOG).read_text() == "logged in with <redacted>\nValueError: no data\n"
