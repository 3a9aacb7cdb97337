"""Several nodes: the command lines, what reaches the ranks, and the rules. tests/cluster runs them."""

import os
import stat
from pathlib import Path

import pytest

from memlab.core.errors import ConfigError
from memlab.core.plan import config_hash, make_plan
from memlab.core.summary import summarise
from memlab.launch.launcher_line import command
from memlab.launch.nodes import failed_node, for_nodes, takes_sigterm
from memlab.rules.unsupported import unsupported
from memlab.runs.folder import RunFolder
from memlab.system.environment import own_variables
from memlab.system.hostfile import read_hostfile
from memlab.system.machine import Gpu, Machine
from memlab.training.__main__ import find_rank

PORT = 12345


class Cluster(Machine):
    """A machine with every launcher."""

    @staticmethod
    def has_program(name: str) -> bool:
        return True


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two of them\nalpha slots=4\n\nbeta slots=4\n")
    return path


@pytest.fixture
def changes(hostfile):
    """Of the configuration, for two nodes of four GPUs."""

    def build(launcher: str = "pdsh", **more) -> dict:
        where = {"hardware.nodes": 2, "hardware.hostfile": str(hostfile), "hardware.launcher": launcher}
        return {**where, "hardware.gpus": 4, "hardware.device": "cuda", "hardware.gpu": "H200"} | more

    return build


@pytest.fixture
def words(config, changes, tmp_path):
    def build(launcher: str, **more) -> list[str]:
        plan = make_plan(config(changes(launcher, **more)), {})
        return command(plan, [RunFolder(tmp_path / "a")], ["0", "1", "2", "3"], PORT)

    return build


def after(flag: str, words: list[str]) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("launcher", ["pdsh", "slurm", "openmpi"])
def test_every_launcher_is_told_where_the_ranks_meet(words, hostfile, launcher):
    found = words(launcher)
    assert after("--hostfile", found) == str(hostfile) and after("--launcher", found) == launcher
    assert after("--master_addr", found) == "alpha" and after("--master_port", found) == str(PORT)
    assert "--no_ssh_check" in found and "--include" not in found


def test_pdsh_and_slurm_are_told_of_nodes_and_gpus(words):
    for launcher in ("pdsh", "slurm"):
        assert after("--num_nodes", words(launcher)) == "2" and after("--num_gpus", words(launcher)) == "4"
    assert "--num_gpus" not in words("slurm", **{"hardware.device": "cpu"})  # srun would ask for GPUs


def test_openmpi_is_not(words):
    """DeepSpeed refuses it: mpirun takes every slot of the hostfile."""
    assert not {"--num_nodes", "--num_gpus"} & set(words("openmpi"))


def test_slurm_starts_a_file(words, tmp_path):
    worker = words("slurm")[-2:]
    assert Path(worker[0]).parts[-3:] == ("memlab", "training", "__main__.py") and Path(worker[0]).exists()
    assert worker[1] == str(tmp_path / "a")
    assert words("pdsh")[-3:] == ["--module", "memlab.training", str(tmp_path / "a")]


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi"])
def test_variables_travel_in_a_private_file_without_secrets(config, changes, launcher):
    plan = make_plan(config(changes(launcher, **{"allocator.conf": "expandable_segments:True"})), {})
    shell = {"HF_HOME": "/cache", "HF_TOKEN": "hf_secret", "NCCL_SOCKET_IFNAME": "eth0", "HOME": "/root"}
    machine = Cluster((Gpu("0", "H200", 1, (9, 0)),))
    own = own_variables(plan, machine) | {"MEMLAB_LAUNCH": "t", "MEMLAB_STARTED_AT": "1.5", "PATH": 'a"$b'}
    with for_nodes(plan, machine, shell | own, PORT) as environment:
        file = Path(environment["DS_ENV_FILE"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        sent = dict(line.split("=", 1) for line in file.read_text().splitlines())
    assert not file.exists()
    assert own.keys() | {"HF_HOME", "NCCL_SOCKET_IFNAME"} <= sent.keys()
    assert not {"HF_TOKEN", "HOME"} & sent.keys()
    assert sent["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert sent["PATH"] == r"a\"\$b"  # DeepSpeed puts it in double quotes, for a shell
    assert ("MEMLAB_LIFELINE" in sent) == (launcher == "pdsh")
    assert ("MASTER_ADDR" in sent) == (launcher == "openmpi")


def test_srun_has_the_whole_environment(config, changes):
    plan = make_plan(config(changes("slurm")), {})
    with for_nodes(plan, Machine(), {"HOME": "/root"}, PORT) as environment:
        assert environment == {
            **{"HOME": "/root", "MASTER_ADDR": "alpha", "MASTER_PORT": str(PORT)},
            **{"WORLD_SIZE": "8", "LOCAL_SIZE": "4"},
        }


def test_one_node_needs_nothing(config):
    with for_nodes(make_plan(config(), {}), Machine(), {"HOME": "/root"}, PORT) as environment:
        assert environment == {"HOME": "/root"}


def test_only_with_pdsh_a_sigterm_would_reach_too_far(config, changes):
    taking = {name for name in ("pdsh", "slurm", "openmpi") if takes_sigterm(make_plan(config(changes(name)), {}))}
    assert taking == {"slurm", "openmpi"}
    assert takes_sigterm(make_plan(config(), {}))


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"RANK": "5", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, 5),  # within a Slurm job
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 2),
    ],
)
def test_whoever_starts_a_rank_numbers_it(monkeypatch, variables, rank):
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # so that what find_rank sets is undone
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_rank() == rank
    assert os.environ["LOCAL_RANK"] in {"0", "1"}


def test_pdsh_tells_of_a_node_that_failed(tmp_path):
    log = tmp_path / "launcher.log"
    log.write_text("127.0.0.1: training\npdsh@here: 127.0.0.2: ssh exited with exit code 247\n")
    assert failed_node(log) == 247
    log.write_text("127.0.0.1: training\n")
    assert failed_node(log) is None


# --- rules ------------------------------------------------------------------------------------------------------------

GPUS = Cluster(tuple(Gpu(str(i), "NVIDIA H200", 1, (9, 0)) for i in range(8)))


@pytest.mark.parametrize("launcher", ["pdsh", "slurm", "openmpi"])
def test_a_complete_description_is_supported(config, changes, launcher):
    assert unsupported(config(changes(launcher)), GPUS) == []


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"hardware.launcher": None}, "instead: hardware.launcher=pdsh, slurm or openmpi"),
        ({"hardware.hostfile": None}, "instead: hardware.hostfile="),
        ({"hardware.hostfile": "/nowhere"}, "hardware.hostfile=/nowhere: No such file or directory; correct the path"),
        ({"hardware.nodes": 3}, "(alpha 4, beta 4) are not hardware.nodes=3 x hardware.gpus=4"),
        ({"hardware.gpus": 5}, "(alpha 4, beta 4) are not hardware.nodes=2 x hardware.gpus=5"),
        ({"hardware.gpus": 3, "hardware.launcher": "openmpi"}, "are not hardware.nodes=2 x hardware.gpus=3"),
        (
            {"hardware.launcher": "openmpi", "allocator.conf": "roundup_power2_divisions:[256:1,512:2]"},
            "hardware.launcher=pdsh or slurm",
        ),
    ],
)
def test_what_is_missing_is_said(config, changes, more, reason):
    [found] = unsupported(config(changes() | more), GPUS)
    assert reason in found


def test_pdsh_may_use_a_part_of_the_hostfile(config, changes):
    assert unsupported(config(changes() | {"hardware.gpus": 2}), GPUS) == []


def test_a_launcher_that_is_not_installed(config, changes):
    class Bare(Cluster):
        @staticmethod
        def has_program(name: str) -> bool:
            return name != "srun"

    assert unsupported(config(changes("pdsh")), Bare(GPUS.gpus)) == []
    [reason] = unsupported(config(changes("slurm")), Bare(GPUS.gpus))
    assert "needs srun" in reason


def test_chosen_gpus_cannot_be_kept_on_several_nodes(config, changes):
    some = Cluster(GPUS.gpus[4:])
    [reason] = unsupported(config(changes()), some)
    assert "CUDA_VISIBLE_DEVICES" in reason


def test_a_prediction_needs_no_nodes(config):
    assert unsupported(config({"hardware.nodes": 2}), None) == []


@pytest.mark.parametrize("line", ["alpha", "alpha 4", "alpha slots=4\nalpha slots=4"])
def test_a_bad_hostfile(tmp_path, line):
    path = tmp_path / "hosts"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match="bad line"):
        read_hostfile(str(path))


# --- figures ----------------------------------------------------------------------------------------------------------


def test_figures_are_of_all_nodes(config, changes, rank):
    one = config(changes() | {"hardware.nodes": 1, "hardware.usd_per_gpu_hour": 9.0})
    two = config(changes() | {"hardware.usd_per_gpu_hour": 9.0})
    of_one, of_two = (summarise(c, [rank(0)], 100.0) for c in (one, two))
    assert of_two["usd"] == pytest.approx(2.0) == 2 * of_one["usd"]
    assert of_two["tokens_per_second"] == 2 * of_one["tokens_per_second"]
    assert of_two["tokens_per_second_per_gpu"] == pytest.approx(of_one["tokens_per_second_per_gpu"])
    assert of_two["usd_per_million_tokens"] == pytest.approx(of_one["usd_per_million_tokens"])


def test_the_number_of_nodes_is_part_of_a_run_s_identity_and_their_names_are_not(config, changes, tmp_path):
    other = changes() | {"hardware.hostfile": str(tmp_path / "other")}
    assert config_hash(config(changes())) == config_hash(config(other))
    assert config_hash(config(changes())) != config_hash(config(changes() | {"hardware.nodes": 3}))
