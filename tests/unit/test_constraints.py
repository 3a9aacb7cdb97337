"""constraints.txt pins every package that a fresh environment of memlab installs."""

import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
PINNED = {
    canonicalize_name(name): version for name, version in re.findall(r"^(\S+)==(\S+)$", CONSTRAINTS.read_text(), re.M)
}
CUDA = {"triton", "cuda-bindings", "cuda-toolkit", "nvidia-nccl-cu13", "nvidia-cudnn-cu13", "nvidia-cublas"}
"""Some of what torch requires on a machine with GPUs. The metadata of its build for CPUs does not name them."""


def required(name: str, extras: frozenset[str], seen: dict[tuple[str, frozenset[str]], list[Requirement]]) -> None:
    """Collect in ``seen`` what a package with these extras requires on this platform, and what those require."""
    if (name, extras) in seen:
        return
    seen[name, extras] = []
    try:
        stated = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:  # of an extra that is not installed here
        return
    for requirement in map(Requirement, stated):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            seen[name, extras].append(requirement)
            required(canonicalize_name(requirement.name), frozenset(requirement.extras), seen)


def test_every_installed_package_is_pinned():
    found = {}
    required("memlab", frozenset({"dev", "slurm"}), found)
    names = {name for name, _ in found} - {"memlab"}
    assert {"torch", "triton", "peft", "submitit"} <= names
    assert names <= set(PINNED), f"Pin in constraints.txt: {sorted(names - set(PINNED))}"


def test_every_pin_is_a_version_that_its_dependents_accept():
    found = {}
    required("memlab", frozenset({"dev", "slurm"}), found)
    for (dependent, _), requirements in found.items():
        for requirement in requirements:
            pin = PINNED.get(canonicalize_name(requirement.name))
            assert pin is None or requirement.specifier.contains(pin), f"{dependent} requires {requirement}"


def test_what_torch_requires_on_a_machine_with_gpus_is_pinned():
    assert set(PINNED) >= CUDA
