"""Reasons why this machine, its packages or its nodes cannot run a configuration."""

import re
from collections.abc import Iterator

from memlab.core.config import Config, Hardware
from memlab.core.errors import ConfigError
from memlab.core.optimizers import PYPI
from memlab.rules.optimizer import optimizer_package
from memlab.system.hostfile import read_hostfile
from memlab.system.machine import Machine

LAUNCHER_PROGRAMS = {"pdsh": "pdsh", "slurm": "srun", "openmpi": "mpirun"}
"""Value of hardware.launcher -> the program that DeepSpeed starts for it."""


def beyond_gpus(config: Config, machine: Machine) -> Iterator[str]:
    """Yield the reason why the GPUs of this machine cannot run the configuration."""
    hardware = config.hardware
    if hardware.device == "cuda" and not machine.gpus:
        yield (
            f"{hardware.gpus} x {hardware.gpu or 'GPU'} cannot be measured on a machine without a GPU; "
            "instead: hardware=auto, or mode=predict"
        )
    elif hardware.device == "cuda" and hardware.gpus > len(machine.gpus):
        yield (
            f"hardware.gpus={hardware.gpus}, but this machine has {len(machine.gpus)}; "
            f"instead: hardware.gpus={len(machine.gpus)}, or mode=predict"
        )
    elif hardware.device == "cuda" and hardware.gpu and hardware.gpu.lower() not in machine.gpus[0].name.lower():
        yield (
            f"the hardware entry is for {hardware.gpu}, but this machine has {machine.gpus[0].name}; "
            "instead: hardware=auto, or mode=predict"
        )


def beyond_packages(config: Config, machine: Machine) -> Iterator[str]:
    """Yield a reason for each package and library that the configuration needs and that is not installed."""
    flash = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
    yield from _missing(machine, flash.get(config.attention.implementation), "install it, or choose another option")
    yield from missing_extras(config, machine)
    if "nvme" in (config.offload.optimizer, config.offload.param) and not machine.has_library("aio"):
        yield "DeepSpeed's NVMe offload needs libaio; instead: install it (Debian: libaio-dev), or offload=all"


def missing_extras(config: Config, machine: Machine) -> Iterator[str]:
    """Yield a reason for each package that the optimizer, adapters or kernels need and that is not installed.

    Both measurements and predictions need these packages.
    """
    optimizers = optimizer_package(config)
    install = PYPI.get(optimizers or "", optimizers)
    yield from _missing(machine, optimizers, f"pip install {install}, or another optimizer")
    for package, extra, wanted in (
        ("peft", "adapters", config.adapter.method != "none"),
        ("bitsandbytes", "adapters", config.adapter.method == "qlora"),
        ("liger_kernel", "kernels", config.kernels.implementation == "liger"),
        ("triton", "kernels", config.kernels.implementation == "liger"),
    ):
        yield from _missing(machine, package if wanted else None, f"pip install 'memlab[{extra}]'")


def _missing(machine: Machine, package: str | None, instead: str) -> Iterator[str]:
    """Yield the reason why a package that is needed is not there."""
    if package and not machine.has_package(package):
        yield f"the Python package {package} is not installed; instead: {instead}"


def beyond_nodes(config: Config, machine: Machine) -> Iterator[str]:
    """Yield the reasons why several nodes cannot run the configuration, as far as this machine knows."""
    hardware = config.hardware
    if hardware.nodes == 1:
        return
    if hardware.launcher is None:
        yield "the ranks of several nodes need a launcher; instead: hardware.launcher=pdsh, slurm or openmpi"
    elif not machine.has_program(program := LAUNCHER_PROGRAMS[hardware.launcher]):
        yield f"hardware.launcher={hardware.launcher} needs {program}; instead: install it, or another launcher"
    if hardware.hostfile is None:
        yield "several nodes need a list of them; instead: hardware.hostfile=<file with '<host> slots=<gpus>' a line>"
    else:
        yield from _beyond_hostfile(hardware, hardware.hostfile)
    if [gpu.id for gpu in machine.gpus[: hardware.gpus]] != [str(i) for i in range(len(machine.gpus[: hardware.gpus]))]:
        yield "on several nodes DeepSpeed takes the first GPUs of each; instead: start without CUDA_VISIBLE_DEVICES"
    if hardware.launcher == "openmpi" and re.search(r"[^\w@%+=:,./-]", config.allocator.conf):
        yield (
            "DeepSpeed hands this allocator.conf to mpirun in quotes, which stay in it; "
            "instead: hardware.launcher=pdsh or slurm"
        )


def _beyond_hostfile(hardware: Hardware, hostfile: str) -> Iterator[str]:
    try:
        slots = read_hostfile(hostfile)
    except ConfigError as error:
        yield f"{error}; instead: hardware.hostfile=<file with '<host> slots=<gpus>' a line>"
        return
    too_small = len(slots) < hardware.nodes or min(list(slots.values())[: hardware.nodes]) < hardware.gpus
    too_large = list(slots.values()) != [hardware.gpus] * hardware.nodes
    if too_small or (too_large and hardware.launcher != "pdsh"):  # slurm and openmpi start a rank in every slot
        found = ", ".join(f"{host} {count}" for host, count in slots.items())
        yield (
            f"the hostfile's slots ({found}) are not hardware.nodes={hardware.nodes} x hardware.gpus={hardware.gpus}; "
            "instead: a hostfile of this run's nodes"
        )
