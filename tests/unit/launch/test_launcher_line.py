"""The command line of a launch, and that DeepSpeed's own parser takes it as it is meant."""

import base64
import json
import socket
import sys

import pytest

from memlab.core.plan import make_plan
from memlab.launch.launcher_line import command, free_port
from memlab.runs.folder import RunFolder


@pytest.fixture
def words(config, tmp_path):
    def build(*ids: str) -> list[str]:
        plan = make_plan(config({"hardware.gpus": 3}), {})
        return command(plan, [RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")], ids, 12345)

    return build


def after(flag: str, words: list[str]) -> str:
    return words[words.index(flag) + 1]


def test_indices_are_one_include(words):
    found = words("0", "2", "5")
    assert after("--include", found) == "localhost:0,2,5"
    assert "deepspeed.launcher.runner" in found and "--num_gpus" not in found
    assert after("--master_port", found) == "12345"


@pytest.mark.parametrize("ids", [("GPU-aa", "GPU-bb"), ("0", "MIG-cc")])
def test_names_go_to_the_second_half_of_the_launcher(words, ids):
    found = words(*ids)
    assert after("-m", found) == "deepspeed.launcher.launch"
    [info] = [word for word in found if word.startswith("--world_info=")]
    assert json.loads(base64.urlsafe_b64decode(info.partition("=")[2])) == {"localhost": list(ids)}
    assert "--master_port=12345" in found


def test_a_cpu_has_ranks_in_place_of_gpus(words):
    found = words()
    assert after("--num_gpus", found) == "3" and "--include" not in found


@pytest.mark.parametrize("ids", [(), ("0", "1"), ("GPU-aa",)])
def test_every_rank_is_this_python_on_this_machine_alone(words, tmp_path, ids):
    found = words(*ids)
    assert found[0] == sys.executable
    worker = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert found[-5:] == ["--no_local_rank", "--module", "memlab.training", *worker]
    if "deepspeed.launcher.runner" in found:
        assert after("--hostfile", found) == "none"


def test_a_free_port_can_be_bound():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
