"""The environment of the ranks: what they get, what they do not, and what of it is written down."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memlab.core.plan import make_plan
from memlab.files import build_locks
from memlab.system import environment
from memlab.system.environment import describe_environment, fingerprint, rank_environment, sweep_stale_locks
from memlab.system.machine import Gpu, Machine

H200S = Machine(tuple(Gpu(str(i), "NVIDIA H200", 1, (9, 0)) for i in range(2)), driver="580.1")


@pytest.fixture
def plan(config):
    return lambda changes=None: make_plan(config(changes), {})


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DB_PASSWORD"])
def test_secrets_are_not_inherited(plan, monkeypatch, name):
    monkeypatch.setenv(name, "open sesame")
    assert "open sesame" not in rank_environment(plan({"data.source": "guanaco"}), Machine()).values()


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
@pytest.mark.parametrize(("changes", "inherited"), [({}, False), ({"model.weights": "pretrained"}, True)])
def test_the_hubs_token_is_inherited_where_the_hub_is_needed(plan, monkeypatch, name, changes, inherited):
    monkeypatch.setenv(name, "open sesame")
    assert (name in rank_environment(plan(changes), Machine())) is inherited


def test_what_the_plan_or_the_launcher_decides_is_not_inherited(plan, monkeypatch):
    for name in environment.NOT_INHERITED:
        monkeypatch.setenv(name, "inherited")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    variables = rank_environment(plan(), H200S)
    assert "CUDA_VISIBLE_DEVICES" not in variables and "PYTORCH_CUDA_ALLOC_CONF" not in variables
    assert "inherited" not in variables.values()
    assert variables["NCCL_DEBUG"] == "INFO"


def test_ops_are_built_for_the_gpus_that_are_there(plan):
    older = Gpu("2", "NVIDIA A100", 1, (8, 0))
    variables = rank_environment(plan(), Machine((*H200S.gpus, older)))
    assert variables["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0"
    assert "TORCH_CUDA_ARCH_LIST" not in rank_environment(plan(), Machine())


def test_the_ranks_count_gpus_as_the_driver_does(plan, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert rank_environment(plan(), H200S)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert describe_environment(plan(), H200S)["variables"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_the_interpreters_folder_comes_first(plan, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    assert rank_environment(plan(), Machine())["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/usr/bin"


@pytest.mark.parametrize("inherited", [None, "", "/mine", ":/mine:"])
def test_the_current_folder_is_never_on_the_module_path(plan, monkeypatch, tmp_path, inherited):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if inherited is not None:
        monkeypatch.setenv("PYTHONPATH", inherited)
    (tmp_path / "memlab.py").write_text("")
    (tmp_path / "colorsys.py").write_text("raise SystemExit('shadowed')")
    look = "import json, sys, memlab, colorsys; print(json.dumps(sys.path))"
    done = subprocess.run(
        [sys.executable, "-c", look],
        cwd=tmp_path,
        env=rank_environment(plan(), Machine()),
        capture_output=True,
        text=True,
        check=True,
    )
    path = json.loads(done.stdout)
    assert str(tmp_path) not in path and "" not in path
    assert path[0] == str(Path(environment.__file__).parents[2])
    assert ("/mine" in path) is bool(inherited)


def test_the_cores_are_shared_out(plan, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(9)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert rank_environment(plan({"hardware.gpus": 4}), Machine())["OMP_NUM_THREADS"] == "2"
    assert rank_environment(plan({"hardware.gpus": 16}), Machine())["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert rank_environment(plan(), Machine())["OMP_NUM_THREADS"] == "5"


# --- locks


@pytest.fixture
def lock(monkeypatch):
    monkeypatch.setattr(build_locks, "file_system", lambda folder: "overlay")
    path = environment.extensions_dir() / "fused_adam" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_lock_that_a_killed_build_left_is_removed(lock):
    assert sweep_stale_locks() == [lock]
    assert not lock.exists() and sweep_stale_locks() == []


def test_a_lock_that_another_machine_may_hold_is_left_alone(lock, monkeypatch):
    monkeypatch.setattr(build_locks, "file_system", lambda folder: "nfs4")
    assert sweep_stale_locks() == [] and lock.exists()


def test_a_lock_is_left_alone_while_somebody_who_uses_the_folder_may_hold_it(lock):
    variables = {"TORCH_EXTENSIONS_DIR": str(environment.extensions_dir())}
    with subprocess.Popen(["sleep", "60"], env=variables) as builder:
        try:
            assert sweep_stale_locks() == [] and lock.exists()
            os.utime(lock, (0, time.time() - 2 * build_locks.STALE_S))
            with lock.open():
                assert sweep_stale_locks() == [] and lock.exists()
            assert sweep_stale_locks() == [lock]  # it runs steps, and builds nothing
        finally:
            builder.kill()


# --- what is written down


def test_the_record_names_nobody_and_no_path(plan, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "open sesame")
    monkeypatch.setattr(environment.socket, "gethostname", lambda: "annas-laptop")
    facts = describe_environment(plan({"allocator.conf": "max_split_size_mb:64", "data.source": "guanaco"}), H200S)
    text = json.dumps(facts)
    for private in ("annas-laptop", "open sesame", str(Path.home()), str(environment.cache_dir())):
        assert private not in text
    assert facts["variables"]["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64"
    assert facts["gpus"] == ["NVIDIA H200", "NVIDIA H200"] and facts["driver"] == "580.1"


@pytest.mark.parametrize(
    ("name", "value", "counts"),
    [
        *(("NCCL_ALGO", "Ring", True), ("TORCH_NCCL_BLOCKING_WAIT", "1", True), ("OMP_NUM_THREADS", "3", True)),
        *(("CUDA_LAUNCH_BLOCKING", "1", True), ("PYTORCH_NVML_BASED_CUDA_CHECK", "1", True)),
        *(("NCCL_TOPO_FILE", "/home/anna/topo.xml", False), ("CUDA_HOME", "/usr/local/cuda", False)),
        *(("TORCH_API_TOKEN", "open sesame", False), ("EDITOR", "vi", False), ("CUDA_VISIBLE_DEVICES", "0", False)),
    ],
)
def test_what_is_inherited_and_changes_figures_is_written_down(plan, monkeypatch, name, value, counts):
    monkeypatch.delenv(name, raising=False)
    without = fingerprint(plan(), H200S)
    monkeypatch.setenv(name, value)
    variables = describe_environment(plan(), H200S)["variables"]
    assert (variables.get(name) == value) is counts
    assert (fingerprint(plan(), H200S) != without) is counts


def test_a_fingerprint_is_of_the_configuration_the_versions_and_the_hardware(plan, monkeypatch):
    same = fingerprint(plan(), H200S)
    assert fingerprint(plan({"name": "mine"}), H200S) == same
    assert fingerprint(plan({"seed": 1}), H200S) != same
    assert fingerprint(plan(), Machine(H200S.gpus, driver="590")) != same
    assert fingerprint(plan(), Machine(H200S.gpus[:1], driver="580.1")) != same
    versions = {**environment.package_versions(), "torch": "99"}
    monkeypatch.setattr(environment, "package_versions", lambda: versions)
    assert fingerprint(plan(), H200S) != same


def test_the_operations_folder_is_apart_for_each_combination_of_versions(monkeypatch):
    folder = environment.extensions_dir()
    monkeypatch.setattr(environment, "package_versions", lambda: {"torch": "99", "deepspeed": "1"})
    assert environment.extensions_dir() != folder


@pytest.mark.parametrize("named", [None, "", "here", "./here"])
def test_a_cache_that_is_not_absolute_is_ignored(monkeypatch, named):
    """As the XDG base directory specification says."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if named is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", named)
    assert environment.cache_dir() == Path.home() / ".cache" / "memlab"
    monkeypatch.setenv("XDG_CACHE_HOME", "/there")
    assert environment.cache_dir() == Path("/there/memlab")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("MYSQL_PWD", "x"), ("DB_PW", "x"), ("PASSPHRASE", "x"), ("DATABASE_URL", "postgres://host/db")),
        *(("REDIS", "redis://me:sesame@host"), ("NOTE", "github_pat_" + "11AB_c" * 8)),
    ],
)
def test_no_secret_is_passed_to_the_ranks(plan, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert name not in rank_environment(plan(), Machine())


def test_a_proxy_with_a_password_is_passed_on_where_the_hub_is_needed(plan, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://me:sesame@proxy:3128")
    assert "https_proxy" not in rank_environment(plan(), Machine())
    assert "https_proxy" in rank_environment(plan({"data.source": "guanaco"}), Machine())
