"""The GPUs of a machine, as the driver (here a stand-in for its Python module) tells them."""

import sys
from types import SimpleNamespace

import pytest

from memlab.core.sizes import GIB
from memlab.system import machine


class NVMLError(Exception):
    pass


UUIDS = ["GPU-aaaa", "GPU-bbbb", "MIG-cccc"]


def driver(count: int = 3, starts: bool = True) -> SimpleNamespace:
    """pynvml, as far as memlab uses it. Its handles are indices."""

    def init():
        if not starts:
            raise NVMLError("Driver Not Loaded")

    def by_uuid(uuid: str) -> int:
        if uuid not in UUIDS:
            raise NVMLError("Not Found")
        return UUIDS.index(uuid)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetName=lambda handle: f"GPU number {handle}",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=(handle + 1) * GIB),
        nvmlDeviceGetCudaComputeCapability=lambda handle: [9, 0],
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
    )


@pytest.fixture
def detect(monkeypatch):
    """``detect(visible)``: the machine, with this CUDA_VISIBLE_DEVICES."""

    def look(visible: str | None, module=None) -> machine.Machine:
        monkeypatch.setitem(sys.modules, "pynvml", module or driver())
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        machine.detect.cache_clear()
        return machine.detect()

    yield look
    machine.detect.cache_clear()


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        (None, ["0", "1", "2"]),
        ("2,0", ["2", "0"]),
        (" 1 , 2", ["1", "2"]),
        ("GPU-bbbb,GPU-aaaa", ["GPU-bbbb", "GPU-aaaa"]),
        ("MIG-cccc", ["MIG-cccc"]),
        ("GPU-bbbb,0", ["GPU-bbbb", "0"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", ["1"]),
        ("0,7,1", ["0"]),
        ("0,GPU-gone,1", ["0"]),
    ],
)
def test_visible_devices_are_those_that_cuda_would_see(detect, visible, ids):
    assert [gpu.id for gpu in detect(visible).gpus] == ids


def test_what_is_known_of_a_gpu(detect):
    found = detect("2,GPU-bbbb")
    assert found.driver == "580.1"
    assert found.gpus[0] == machine.Gpu("2", "GPU number 2", 3 * GIB, (9, 0), "MIG-cccc")
    assert found.gpus[1].name == "GPU number 1"


def test_a_driver_that_does_not_answer_is_a_machine_without_gpus(detect):
    assert detect(None, driver(starts=False)) == machine.Machine()


def test_no_nvml_at_all_is_a_machine_without_gpus(detect, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    machine.detect.cache_clear()
    assert machine.detect() == machine.Machine()


def test_packages_and_libraries():
    found = machine.Machine()
    assert found.has_package("json") and not found.has_package("no_such_package")
    assert not found.has_library("no_such_library")


def test_nvml_is_started_once_however_often_the_memory_is_asked_for(monkeypatch):
    started = []
    module = driver()
    module.nvmlInit = lambda: started.append(True)
    module.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(used=handle + 1)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    machine._nvml.cache_clear()
    assert [machine.used_bytes(["0", "2"]) for _ in range(3)] == [[1, 3]] * 3
    assert started == [True]
    machine._nvml.cache_clear()


def test_a_device_is_known_by_its_uuid(detect):
    assert [gpu.uuid for gpu in detect("2,0").gpus] == ["MIG-cccc", "GPU-aaaa"]
