"""Launchers of ranks: which processes they are, and which ranks run."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from memlab.simulator.rank import launchers


def rank(number: int, here: int, *, local: int | None = None, size: str = "LOCAL_WORLD_SIZE", **others: str):
    """The variables of a rank on a node that starts ``here`` ranks."""
    values = {"RANK": number, "LOCAL_RANK": number if local is None else local, "WORLD_SIZE": here, size: here}
    return {**{name: str(value) for name, value in values.items()}, **others}


def test_the_first_and_the_last_rank_run():
    assert [launchers.takes_part(rank(number, 4)) for number in range(4)] == [True, False, False, True]


def test_all_ranks_run_where_they_differ():
    assert all(launchers.takes_part(rank(number, 4) | {launchers.ALL_RANKS: "1"}) for number in range(4))


@pytest.mark.parametrize(
    ("environ", "ranks"), [(rank(1, 4), 4), (rank(1, 2, size="LOCAL_SIZE"), 2), ({"WORLD_SIZE": "4"}, None)]
)
def test_the_ranks_of_a_node(environ, ranks):
    assert launchers.ranks_of_node(environ) == ranks


@pytest.mark.parametrize("environ", [{}, {"RANK": "1"}, {"RANK": "1", "WORLD_SIZE": "4"}])
def test_a_process_without_the_variables_of_a_launcher_runs(environ):
    assert launchers.takes_part(environ)


def test_the_last_rank_of_the_one_node_that_torch_starts_is_the_last_of_all():
    environ = rank(7, 8, GROUP_RANK="0", GROUP_WORLD_SIZE="1", MEMLAB_NODES="4")
    assert launchers.takes_part(environ)
    assert {name: environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE")} == {
        "RANK": "31",
        "WORLD_SIZE": "32",
        "LOCAL_RANK": "7",
        "GROUP_RANK": "3",
        "GROUP_WORLD_SIZE": "4",
    }


def test_the_last_rank_of_the_one_node_that_deepspeed_starts_is_the_last_of_all():
    environ = rank(3, 4, size="LOCAL_SIZE", CROSS_RANK="0", CROSS_SIZE="2") | {"WORLD_SIZE": "8"}
    assert launchers.takes_part(environ)
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["CROSS_RANK"]) == ("7", "8", "1")


def test_of_nodes_with_one_gpu_the_first_runs():
    environ = rank(0, 1, MEMLAB_NODES="4")
    assert launchers.takes_part(environ) and (environ["RANK"], environ["WORLD_SIZE"]) == ("0", "4")


def test_torch_meets_no_other_node(monkeypatch):
    monkeypatch.delenv(launchers.NODES, raising=False)
    config = SimpleNamespace(min_nodes=2, max_nodes=2, rdzv_backend="static", rdzv_endpoint="far:1", rdzv_configs={})
    api = SimpleNamespace(launch_agent=lambda config, entrypoint: (config.max_nodes, config.rdzv_endpoint, entrypoint))
    launchers._torch_starts_one_node(api)
    assert api.launch_agent(config, "train.py") == (1, "localhost:0", "train.py")
    assert os.environ[launchers.NODES] == "2"


def test_deepspeed_starts_nothing_by_ssh():
    runner = SimpleNamespace(parse_args=lambda args: SimpleNamespace(no_ssh=False, node_rank=-1, master_addr=""))
    launchers._deepspeed_starts_one_node(runner)
    assert vars(runner.parse_args(None)) == {"no_ssh": True, "node_rank": 0, "master_addr": "127.0.0.1"}


PROGRAM = "from memlab.simulator.rank import launchers; print(launchers.is_launcher())"


@pytest.mark.parametrize(
    ("words", "is_launcher"),
    [
        (["torchrun", "--standalone"], True),
        (["train.py", "torchrun"], False),
        (["-m", "accelerate.commands.launch"], True),
    ],
)
def test_a_launcher_is_known_by_its_name(tmp_path, words, is_launcher):
    module = tmp_path / "accelerate" / "commands" / "launch.py"
    module.parent.mkdir(parents=True)
    for file in (module, tmp_path / "torchrun", tmp_path / "train.py"):
        file.touch()
    (tmp_path / "sitecustomize.py").write_text(PROGRAM)  # as early as the bootstrap
    path = os.pathsep.join([str(tmp_path), launchers.__file__.partition("/memlab/simulator/")[0]])
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env={"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(is_launcher)], done.stderr
