"""The table of what a trace cannot see."""

from pathlib import Path

import pytest
import yaml

from memlab.files.conf_files import conf_dir
from memlab.simulator.constants import gpu_model, pinned_block, unknown_model

MIB = 1 << 20


@pytest.mark.parametrize(
    ("gpu", "capability", "workspace"),
    [
        ("NVIDIA H200", (9, 0), 32 * MIB),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 8519680),
        ("NVIDIA A10G", (8, 6), 8519680),
        ("Tesla T4", (7, 5), 8519680),
        ("NVIDIA B200", (10, 0), 32 * MIB),
    ],
)
def test_model_by_name(gpu, capability, workspace):
    found = gpu_model(gpu)
    assert (found.capability, found.cublas_workspace) == (capability, workspace)


def test_every_gpu_of_conf_has_a_model():
    names = [
        yaml.safe_load(file.read_text())["gpu"] for file in sorted(Path(conf_dir(), "hardware", "gpu").glob("*.yaml"))
    ]
    assert names and not [name for name in names if unknown_model(name)]


@pytest.mark.parametrize("gpu", ["NVIDIA L40", "NVIDIA H20", "NVIDIA GeForce RTX 4080", "NVIDIA RTX A1000", "T400", ""])
def test_a_gpu_without_a_model_is_named_unknown(gpu):
    assert unknown_model(gpu).startswith(f"memlab knows no properties of {gpu or 'a GPU without a name'}: ")
    assert gpu_model(gpu) == gpu_model("NVIDIA H100")


@pytest.mark.parametrize(
    ("nbytes", "block"), [(1, 512), (512, 512), (513, 1024), (1 << 30, 1 << 30), (3 << 29, 1 << 31)]
)
def test_page_locked_memory_is_rounded_to_a_power_of_two(nbytes, block):
    assert pinned_block(nbytes) == block
