"""Owner of memory: what the tensor in it is to a model and to an optimizer. Traces hold owners, so no torch here."""

from collections.abc import Mapping, MutableMapping
from itertools import takewhile
from typing import Any, NamedTuple

WEIGHTS, GRADIENTS, OPTIMIZER, MASTER = "weights", "gradients", "optimizer states", "fp32 master weights"
GATHERED, BUFFERS, BUCKETS = "gathered weights", "buffers of modules", "communication buckets"
"""Kinds of memory that has an owner. memlab.simulator.trace.memory_kinds has the other kinds."""


class Owner(NamedTuple):
    """What a block of memory is.

    ``kind``: one of those above. ``model``: class of the model, with a number from the second one
    of a class on; empty for memory that no model's parameter belongs to. ``parameter``: its name in the model.
    ``dtype``: of the elements in the block, as in ``float32``. ``trains``: whether the parameter requires a gradient.
    ``parameters``: number of parameters that share the block, as in ZeRO's flat buffers; then ``parameter`` is the part
    that their names have in common.
    """

    kind: str
    model: str
    parameter: str
    dtype: str
    trains: bool
    parameters: int = 1

    @property
    def module(self) -> str:
        """Name of the module that holds the parameter, or all the parameters; the model's for one of its own."""
        return self.parameter.rpartition(".")[0] or self.model if self.parameters == 1 else self.parameter


def add_owner(owners: MutableMapping[int, Owner], block: int, owner: Owner) -> None:
    """Note the owner of a block. Parameters of one kind share it; of two kinds, the later one is right."""
    before = owners.get(block)
    if before is not None and before.kind == owner.kind and before.parameter != owner.parameter:
        name, trains = _common(before.parameter, owner.parameter), before.trains or owner.trains
        owner = before._replace(parameter=name, trains=trains, parameters=before.parameters + 1)
    owners[block] = owner


def _common(first: str, second: str) -> str:
    """Return the names of modules with which both names begin."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first.split("."), second.split("."), strict=False))
    return ".".join(part for part, _ in pairs)


def to_json(looks: Mapping[int, Mapping[int, Owner]]) -> dict[str, Any]:
    """Return owners of blocks (number of a look -> block -> owner) as plain values, each owner once."""
    owners = dict.fromkeys(owner for look in looks.values() for owner in look.values())
    numbers = {owner: number for number, owner in enumerate(owners)}
    return {
        "list": list(numbers),
        "looks": {look: {block: numbers[owner] for block, owner in found.items()} for look, found in looks.items()},
    }


def from_json(values: Mapping[str, Any]) -> dict[int, dict[int, Owner]]:
    """Read what :func:`to_json` returned. Raises ``LookupError``, ``TypeError`` or ``ValueError`` for other values."""
    owners = [_owner(*owner) for owner in values["list"]]
    return {
        int(look): {int(block): owners[number] for block, number in found.items()}
        for look, found in values["looks"].items()
    }


def _owner(kind: Any, model: Any, parameter: Any, dtype: Any, trains: Any, parameters: Any = 1) -> Owner:
    return Owner(str(kind), str(model), str(parameter), str(dtype), bool(trains), int(parameters))
