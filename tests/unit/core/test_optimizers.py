"""Every optimizer that the schema accepts: its arguments are those that it takes, or it is refused with what to do."""

import ast
import importlib.util
from functools import cache
from pathlib import Path

import pytest

from memlab.core.optimizers import DEEPSPEED, NAMES, OF_PACKAGES, OF_TRANSFORMERS, package_of
from memlab.core.plan import make_plan
from memlab.core.sizes import GIB
from memlab.prediction.not_predicted import unpredictable
from memlab.rules.unsupported import unsupported
from memlab.system.machine import Gpu, Machine

GPU = {"hardware.device": "cuda", "hardware.gpu": "H200"}
H200 = Gpu("0", "NVIDIA H200", 140 * GIB, (9, 0))
ALL = [(source, name) for source, names in NAMES.items() for name in names]


class Plain(Machine):
    """A machine with two GPUs and no optional package."""

    has_package = staticmethod(lambda name: False)


PLACES = (
    ({**GPU, "zero_stage.stage": 0}, Plain((H200, H200))),
    ({**GPU, "zero_stage.stage": 2}, Plain((H200, H200))),
    ({}, Plain()),
)
"""GPUs without and with ZeRO, and a CPU."""

RUN = {
    "deepspeed": {"adagrad", "adam", "adamw", "lamb", "lion", "muon"},
    "transformers": set(OF_TRANSFORMERS) - {"adagrad"},
}
"""What runs in one of them; transformers' Adagrad runs in fp32 without ZeRO alone. The others need a
package, or never run under DeepSpeed."""


def source_of(module: str) -> Path:
    package, _, rest = module.partition(".")
    return Path(importlib.util.find_spec(package).origin).parent / f"{rest.replace('.', '/')}.py"


@cache
def parameters(module: str, class_name: str) -> set[str]:
    """The parameters of a class's constructor: read, not imported, since that would load torch."""
    tree = ast.parse(source_of(module).read_text())
    [made] = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == class_name]
    [init] = [node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return {argument.arg for argument in [*init.args.args, *init.args.kwonlyargs]}


CONSTRUCTORS = {
    "adagrad": [("torch.optim.adagrad", "Adagrad"), ("deepspeed.ops.adagrad.cpu_adagrad", "DeepSpeedCPUAdagrad")],
    "adam": [("deepspeed.ops.adam.fused_adam", "FusedAdam"), ("deepspeed.ops.adam.cpu_adam", "DeepSpeedCPUAdam")],
    "adamw": [("torch.optim.adamw", "AdamW"), ("deepspeed.ops.adam.fused_adam", "FusedAdam")],
    "lamb": [("deepspeed.ops.lamb.fused_lamb", "FusedLamb")],
    "lion": [("deepspeed.ops.lion.fused_lion", "FusedLion"), ("deepspeed.ops.lion.cpu_lion", "DeepSpeedCPULion")],
}
"""What DeepSpeed makes of a name, where it passes all arguments on. Muon's are sorted by its engine."""


@pytest.mark.parametrize("name", DEEPSPEED)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_deepspeed_is_given_what_its_optimizer_takes(config, name, device):
    plan = make_plan(config({"optimizer.name": name, "hardware.device": device}), {})
    given = set(plan.deepspeed["optimizer"]["params"]) - {"torch_adam"}
    for module, class_name in CONSTRUCTORS.get(name, []):
        assert given <= parameters(module, class_name)


def test_every_argument_is_left_out_for_a_reason(config):
    """The table is no narrower than the constructors."""
    for name, constructors in CONSTRUCTORS.items():
        for key in ("betas", "eps"):
            assert (key in DEEPSPEED[name]) == all(key in parameters(*one) for one in constructors)


@pytest.mark.parametrize(("source", "name"), ALL, ids=[f"{source}-{name}" for source, name in ALL])
def test_it_composes_or_is_refused_with_what_to_do(config, source, name):
    """Without any optional package."""
    refused = []
    for place, machine in PLACES:
        chosen = config({**place, "optimizer.source": source, "optimizer.name": name})
        reasons = unsupported(chosen, machine)
        refused.append(bool(reasons))
        assert all("; instead: " in reason for reason in [*reasons, *unpredictable(chosen)])
        plan = make_plan(chosen, {})
        assert plan.deepspeed["optimizer"]["type"] == name if source == "deepspeed" else "optim" in plan.training_args
    assert all(refused) == (name not in RUN[source])


@pytest.mark.parametrize(("package", "names"), OF_PACKAGES.items(), ids=list(OF_PACKAGES))
def test_a_missing_package_is_named_with_how_to_install_it(config, package, names):
    for name in names:
        chosen = config({**GPU, "optimizer.source": "transformers", "optimizer.name": name})
        [reason] = unsupported(chosen, Plain((H200, H200)))
        assert reason.startswith(f"the Python package {package} is not installed; instead: pip install ")


def test_transformers_names_the_same_packages():
    """Read, not imported: ``trainer_optimizer.py`` has a list of names for each package that it asks for."""
    text = source_of("transformers.trainer_optimizer").read_text()
    assert (
        package_of("transformers", "adamw_torch_8bit") == "torchao"
        and "from torchao.optim import AdamW4bit, AdamW8bit" in text
    )
    for package in OF_PACKAGES:
        assert f"from {package}" in text
