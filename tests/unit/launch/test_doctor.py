"""The doctor's checks over synthetic facts: what is found, and what it says to do. No torch, no machine."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from memlab.core.config import Config
from memlab.core.config_values import from_dict, to_dict
from memlab.core.diagnosis import FAIL, OK, WARN
from memlab.core.plan import Plan, make_plan
from memlab.core.sizes import GIB
from memlab.launch.doctor import checks
from memlab.launch.doctor.facts import Facts, GpuUse, Process, TorchFacts
from memlab.launch.doctor.ops import CPU_OPTIMIZERS, GPU_OPTIMIZERS, LIBRARIES, NEED_NVCC, needed_ops, unbuilt_ops
from memlab.system.environment import extensions_dir

H200 = GpuUse("0", "NVIDIA H200", total_bytes=141 * GIB, compute_capability=(9, 0), used_bytes=4 * 2**20)
CUDA_TORCH = TorchFacts(
    cuda="12.8",
    available=True,
    architectures=["sm_80", "sm_90"],
    cuda_home="/usr/local/cuda",
    nvcc="12.6",
    parameters=500_000_000,
)
FITTING = {
    "torch": "2.11.0+cu128",
    "transformers": "5.17.0",
    "accelerate": "1.12.0",
    "deepspeed": "0.19.8",
    "hydra-core": "1.3.8",
    "omegaconf": "2.3.1",
}


def plan(**groups: dict) -> Plan:
    """The plan of the schema's defaults with some values changed: ``plan(zero_stage={"stage": 3})``."""
    values = to_dict(Config())
    values["model"]["path"], values["allocator"]["conf"] = "memlab/tiny", ""
    values["hardware"]["gpu"] = "NVIDIA H200"
    for group, changed in groups.items():
        values[group] |= changed
    return make_plan(from_dict(values), {})


def on_cpu(**groups: dict) -> Plan:
    return plan(hardware={"device": "cpu", "gpu": "CPU", "gpus": 2}, **groups)


def facts(of: Plan | None = None, **changed) -> Facts:
    """One idle H200 on which nothing is wrong, but for what is changed."""
    healthy = Facts(
        plan=of or plan(),
        gpus=(H200,),
        driver="570.86",
        driver_cuda=(12, 8),
        versions=FITTING,
        torch=CUDA_TORCH,
        compiler="g++ 12.2.0",
        ninja="/usr/bin/ninja",
        free_disk={"/outputs": 100 * GIB},
        free_shared_memory=16 * GIB,
        free_host_memory=200 * GIB,
        lockable=None,
    )
    return replace(healthy, **changed)


def findings(check, facts: Facts) -> list[tuple[str, str, str]]:
    return [(found.status, found.what, found.fix) for found in check(facts)]


def only(check, facts: Facts) -> tuple[str, str, str]:
    (found,) = findings(check, facts)
    return found


def test_nothing_is_wrong_with_a_healthy_machine():
    found = [finding for check in checks.CHECKS for finding in check(facts())]
    assert {finding.status for finding in found} == {OK}
    assert {finding.fix for finding in found} == {""}


def test_every_failure_and_warning_comes_with_a_fix():
    broken = Facts(
        plan=plan(offload={"optimizer": "cpu"}, zero_stage={"stage": 2}),
        gpus=(replace(H200, processes=(Process(7, "python", GIB),)),),
        driver_cuda=(11, 8),
        torch=replace(CUDA_TORCH, available=False, cuda_home=None),
        free_disk={"/outputs": 0},
        lockable=65536,
        hub="timed out",
    )
    found = [finding for check in checks.CHECKS for finding in check(broken)]
    assert {finding.subject for finding in found if finding.status != OK} >= {
        "GPU 0", "versions", "CUDA", "torch", "compiler", "ninja", "disk", "host memory", "pinned memory", "hub",
    }  # fmt: skip
    assert all(finding.fix for finding in found if finding.status != OK)


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_a_plan_that_means_nothing_fails_with_what_to_do_instead():
    reasons = ("there is no optimizer offload at ZeRO stage 0; instead: zero_stage=zero1 or higher, or offload=none",)
    assert only(checks.check_plan, facts(reasons=reasons)) == (
        FAIL,
        "there is no optimizer offload at ZeRO stage 0",
        "zero_stage=zero1 or higher, or offload=none",
    )


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_a_foreign_process_is_named_with_its_memory():
    busy = replace(H200, processes=(Process(4711, "python3", 5 * GIB), Process(12, "unknown", None)))
    status, what, fix = only(checks.check_gpus, facts(gpus=(busy,)))
    assert status == FAIL
    assert "python3 (pid 4711, 5.00 GiB), unknown (pid 12, unknown memory)" in what
    assert fix.endswith("kill 4711 12")


def test_memory_that_no_visible_process_has_is_a_warning():
    status, what, fix = only(checks.check_gpus, facts(gpus=(replace(H200, used_bytes=30 * GIB),)))
    assert status == WARN and "30.00 GiB" in what and "nvidia-smi on the host" in fix


def test_ranks_on_a_cpu_need_no_gpu():
    assert only(checks.check_gpus, facts(on_cpu(), gpus=()))[0] == OK


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_version_out_of_range_is_named_with_the_one_to_install():
    status, what, fix = only(checks.check_versions, facts(versions=FITTING | {"deepspeed": "0.18.9"}))
    assert (status, fix) == (FAIL, "pip install 'deepspeed>=0.19.5,<0.20'")
    assert what == "deepspeed >=0.19.5,<0.20 is needed, found 0.18.9"


def test_a_package_that_is_not_there_is_named():
    versions = {name: version for name, version in FITTING.items() if name != "accelerate"}
    assert only(checks.check_versions, facts(versions=versions))[1] == "accelerate >=1.1 is needed, found none"


def test_the_ranges_are_those_of_the_project_file():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    declared = {Requirement(line).name: Requirement(line).specifier for line in project["project"]["dependencies"]}
    for package, wanted in checks.REQUIREMENTS.items():
        assert Requirement(package + wanted).specifier == declared[package]


# --- torch and CUDA ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver_cuda", "status"), [((13, 0), OK), ((12, 8), OK), ((12, 4), WARN), ((11, 8), FAIL), (None, OK)]
)
def test_the_driver_must_run_the_cuda_of_torch(driver_cuda, status):
    found = findings(checks.check_torch, facts(driver_cuda=driver_cuda))
    assert [one[0] for one in found] == [status]


def test_a_torch_without_cuda_is_no_use_to_a_gpu_plan():
    status, what, _ = only(checks.check_torch, facts(torch=TorchFacts()))
    assert status == FAIL and "built without CUDA" in what
    assert findings(checks.check_torch, facts(on_cpu(), torch=TorchFacts(), gpus=())) == []


def test_a_torch_that_cannot_be_imported_is_one_finding():
    status, what, _ = only(checks.check_torch, facts(torch=TorchFacts(error="ImportError: libcudart.so.12")))
    assert status == FAIL and "libcudart" in what


@pytest.mark.parametrize(
    ("architectures", "capability", "status"),
    [
        (["sm_80"], (8, 6), OK),  # binary code runs on a newer minor capability
        (["sm_90"], (10, 0), FAIL),  # but not on a newer major one
        (["sm_90", "compute_90"], (10, 0), OK),  # PTX does
        (["sm_90a"], (9, 0), OK),
        (["sm_80"], (7, 5), FAIL),
    ],
)
def test_torch_must_have_kernels_for_the_gpu(architectures, capability, status):
    torch = replace(CUDA_TORCH, architectures=architectures)
    gpu = replace(H200, compute_capability=capability)
    assert findings(checks.check_torch, facts(torch=torch, gpus=(gpu,)))[-1][0] == status


# --- ops and their compiler -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "ops"),
    [
        (plan(), ["FusedAdam"]),
        (plan(zero_stage={"stage": 2}, offload={"optimizer": "cpu"}), ["CPUAdam"]),
        (plan(zero_stage={"stage": 3}, offload={"param": "cpu"}), ["FusedAdam"]),
        (plan(zero_stage={"stage": 3}, offload={"optimizer": "nvme", "nvme_path": "/nvme"}), ["CPUAdam", "AsyncIO"]),
        (plan(zero_stage={"stage": 3, "zero_quantized_weights": True}), ["FusedAdam", "Quantizer"]),
        (plan(optimizer={"source": "transformers", "name": "adamw_torch_fused"}), []),
        (plan(optimizer={"name": "Lion"}), ["FusedLion"]),
        (plan(optimizer={"source": "transformers", "name": "sgd"}), []),
        (on_cpu(), ["ShareMemComm"]),
        (on_cpu(zero_stage={"stage": 2}, offload={"optimizer": "cpu"}), ["ShareMemComm"]),
    ],
)
def test_only_the_ops_of_the_plan_are_needed(of, ops):
    assert needed_ops(of) == ops


def test_every_op_has_the_name_of_its_library():
    assert {*GPU_OPTIMIZERS.values(), *CPU_OPTIMIZERS.values(), *NEED_NVCC, "AsyncIO", "ShareMemComm"} == {*LIBRARIES}


def test_ops_are_built_until_their_library_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = on_cpu()
    assert unbuilt_ops(plan) == needed_ops(plan) == ["ShareMemComm"]
    library = extensions_dir() / "deepspeed_shm_comm" / "deepspeed_shm_comm.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert unbuilt_ops(plan) == []


def test_no_compiler_is_asked_for_when_no_op_is_needed():
    of = plan(optimizer={"source": "transformers", "name": "adamw_torch_fused"})
    assert only(checks.check_compiler, facts(of, compiler=None, ninja=None, torch=TorchFacts()))[0] == OK


def test_a_missing_compiler_and_ninja_are_named_with_the_op_they_are_for():
    found = findings(checks.check_compiler, facts(on_cpu(), compiler=None, ninja=None))
    assert [(status, fix) for status, _, fix in found] == [(FAIL, "apt install g++"), (FAIL, "pip install ninja")]
    assert all("ShareMemComm" in what for _, what, _ in found)


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"nvcc": "12.8"}, OK),
        ({"nvcc": "12.1"}, OK),
        ({"nvcc": "11.8"}, WARN),
        ({"nvcc": None}, FAIL),
        ({"cuda_home": None}, FAIL),
    ],
)
def test_cuda_kernels_need_an_nvcc_of_torchs_major_version(changed, status):
    found = findings(checks.check_compiler, facts(torch=replace(CUDA_TORCH, **changed)))[-1]
    assert found[0] == status
    assert status == OK or "optimizer=adamw_torch" in found[2]


def test_an_offloaded_optimizer_needs_no_nvcc():
    of = plan(zero_stage={"stage": 2}, offload={"optimizer": "cpu"})
    assert [one[0] for one in findings(checks.check_compiler, facts(of, torch=TorchFacts()))] == [OK]


# --- space ------------------------------------------------------------------------------------------------------------


def test_a_full_or_closed_disk_is_named_with_the_folder():
    found = findings(checks.check_disk, facts(free_disk={"/outputs": GIB // 2, "/cache": 2 * GIB, "/nvme": None}))
    assert [one[0] for one in found] == [FAIL, OK, FAIL]
    assert "/outputs" in found[0][1]
    assert found[2][1] == "no permission to write to /nvme"


def test_shared_memory_must_hold_the_buffers_of_all_cpu_ranks():
    status, what, fix = only(checks.check_shared_memory, facts(on_cpu(), free_shared_memory=64 * 2**20))
    assert (status, what) == (FAIL, "0.06 GiB free in /dev/shm; 2 ranks may take 0.13 GiB")
    assert "--shm-size=1g" in fix


def test_little_shared_memory_between_gpus_is_a_warning_and_on_one_gpu_nothing():
    little = {"free_shared_memory": 64 * 2**20}
    assert only(checks.check_shared_memory, facts(plan(hardware={"gpus": 8}), **little))[0] == WARN
    assert only(checks.check_shared_memory, facts(**little))[0] == OK


OFFLOAD = {"zero_stage": {"stage": 3}, "offload": {"optimizer": "cpu", "param": "cpu"}}


def test_pinned_blocks_are_rounded_up_to_powers_of_two():
    # 4 fp32 blocks of 2.0e9 bytes -> 2 GiB each, and 1.0e9 bytes of bf16 parameters -> 1 GiB
    assert checks.offloaded_rank_bytes(facts(plan(**OFFLOAD))) == 9 * GIB
    two_ranks = plan(hardware={"gpus": 2}, **OFFLOAD)
    assert checks.offloaded_rank_bytes(facts(two_ranks)) == 9 * GIB // 2


def test_without_pinning_nothing_is_rounded():
    offload = {**OFFLOAD, "offload": {"optimizer": "cpu", "pin_memory": False}}
    assert checks.offloaded_rank_bytes(facts(plan(**offload))) == 16 * 500_000_000
    assert checks.offloaded_rank_bytes(facts(on_cpu(**OFFLOAD))) == 18 * 250_000_000


def test_an_offload_that_does_not_fit_the_host_fails():
    status, what, fix = only(checks.check_host_memory, facts(plan(**OFFLOAD), free_host_memory=8 * GIB))
    assert (status, what) == (FAIL, "8.00 GiB free; the offload takes about 9.00 GiB")
    assert "offload.pin_memory=false" in fix
    assert "pin_memory" not in only(checks.check_host_memory, facts(on_cpu(**OFFLOAD), free_host_memory=1))[2]


def test_a_model_of_unknown_size_is_said_to_be_unchecked():
    unknown = facts(plan(**OFFLOAD), torch=replace(CUDA_TORCH, parameters=None), lockable=65536)
    for check in (checks.check_host_memory, checks.check_pinned_memory):
        status, what, _ = only(check, unknown)
        assert status == WARN and "not checked" in what


def test_a_low_limit_of_locked_memory_is_a_warning():
    status, what, fix = only(checks.check_pinned_memory, facts(plan(**OFFLOAD), lockable=8 * 2**20))
    assert (status, what) == (WARN, "ulimit -l is 0.01 GiB; a rank pins about 9.00 GiB")
    assert "memlock=-1" in fix
    assert only(checks.check_pinned_memory, facts(plan(**OFFLOAD)))[0] == OK


def test_without_an_offload_host_memory_is_no_matter():
    assert findings(checks.check_host_memory, facts()) == []
    assert findings(checks.check_pinned_memory, facts(lockable=65536)) == []


# --- locks and the hub ------------------------------------------------------------------------------------------------


def test_removed_locks_are_told_of():
    assert findings(checks.check_locks, facts()) == []
    assert "removed /x/lock" in only(checks.check_locks, facts(removed_locks=(Path("/x/lock"),)))[1]
    status, what, fix = only(checks.check_locks, facts(kept_locks=(Path("/x/lock"),)))
    assert (status, "waits for /x/lock" in what, "after an hour" in fix) == (WARN, True, True)


@pytest.mark.parametrize(("hub", "status"), [("reached", OK), ("offline", WARN), ("timed out", FAIL)])
def test_the_hub_matters_only_to_a_plan_that_needs_it(hub, status):
    assert findings(checks.check_hub, facts()) == []
    assert only(checks.check_hub, facts(hub=hub))[0] == status
