"""Integers and masks that a compiled graph returns: their values, where they follow from values that are known.

The kernels of a compiled graph are not run, so nothing that they write has values. Counts, masks, positions and the
like are computed here on the host, by the graph that the compiler was given. What follows from unknown floats is
unknown.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from memlab.simulator.rank.values import MOST_FLOATS, Values

_UNKNOWN = object()

_CALLS = ("call_function", "call_method")

_FAILS = (RuntimeError, NotImplementedError, IndexError, TypeError, ValueError)
"""What a function raises that the host cannot compute."""


_CHANGES_FIRST = {
    *(operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv),
    *(operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift),
}
"""Functions that change their first argument, beside methods whose names end with ``_``."""


class OnTheHost(TorchDispatchMode):
    """Runs operators on the host, whatever device they name."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(torch.device, lambda place: torch.device("cpu"), (args, kwargs or {}))
        return func(*args, **kwargs)


def with_values(model: GraphModule, values: Values) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a function that makes the code compiled from a graph give its results their values.

    Called before the graph is compiled, because the compiler changes it.
    """
    graph = Graph()
    results = tree_leaves(graph.graph_copy(model.graph, {}))
    wanted = {place: node for place, node in enumerate(results) if _is_index(node)}
    needed = _behind([*wanted.values(), *filter(_writes_indices, graph.nodes)])
    given = [node for node in graph.nodes if node.op == "placeholder"]

    def give_values(compiled: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            known = _computed(graph, needed, dict(zip(given, inputs, strict=True)), values)
            out = compiled(*inputs)
            results = [(tree_leaves(out)[place], node) for place, node in wanted.items()]
            lost = [(tensor, node) for node, tensor in zip(given, inputs, strict=True) if _is_index(node)]
            choice = values.choice_behind(inputs)
            for tensor, node in (*results, *lost):
                if known.get(node, _UNKNOWN) is not _UNKNOWN and values.of(tensor) is None:
                    values.write(tensor, known[node])
                    if choice:
                        values.mark_assumed(tensor, choice)
            return out

        return run if needed else compiled

    return give_values


def _is_index(node: Any) -> bool:
    """Whether a node makes a tensor of integers or truth values."""
    example = node.meta.get("example_value") if isinstance(node, Node) else None
    return isinstance(example, torch.Tensor) and not (example.is_floating_point() or example.is_complex())


def _writes_indices(node: Node) -> bool:
    """Whether a node may change such a tensor in place."""
    if node.op not in _CALLS or not any(map(_is_index, node.all_input_nodes)):
        return False
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_in_place = node.target in _CHANGES_FIRST or (name.endswith("_") and not name.endswith("__"))
    return is_in_place or "out" in node.kwargs or isinstance(node.target, HigherOrderOperator)


def _behind(nodes: Iterable[Node]) -> set[Node]:
    """Return nodes with all that they follow from, as far as it may have values: no large floats, which are unknown."""
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        example = node.meta.get("example_value")
        number = example.numel() if isinstance(example, torch.Tensor) and not _is_index(node) else 0
        if node not in found and isinstance(number, int) and number <= MOST_FLOATS:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _computed(graph: Graph, needed: set[Node], inputs: Mapping[Node, Any], values: Values) -> dict[Node, Any]:
    """Return the needed nodes of a graph with their values after it ran, or ``_UNKNOWN``."""
    known: dict[Node, Any] = {}
    for node in filter(needed.__contains__, graph.nodes):
        if node not in inputs:
            with values.choices.own_random_state():
                known[node] = _result(node, known)
            if known[node] is _UNKNOWN and _writes_indices(node):
                _forget(node.all_input_nodes, known)
        elif isinstance(inputs[node], torch.Tensor):
            value = values.of(inputs[node])
            with _disable_current_modes():
                known[node] = _UNKNOWN if value is None else value.clone()  # the graph may write into it
        else:
            known[node] = inputs[node]
    return known


def _forget(written: Iterable[Node], known: dict[Node, Any]) -> None:
    """Drop the values of nodes, and of all that share their memory: something unknown may have been written to it."""
    lost = {_memory(known.get(node)) for node in written} - {None}
    known.update({node: _UNKNOWN for node, value in known.items() if _memory(value) in lost})


def _memory(value: Any) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else None


def _is_known_code(function: Any) -> bool:
    """Whether the host computes what a function would: an operator of torch's own, which needs no other rank."""
    if isinstance(function, OpOverload | OpOverloadPacket):
        return str(function).startswith(("aten.", "prims."))
    is_of_ranks = (getattr(function, "__module__", None) or "").startswith("torch.distributed")
    return not is_of_ranks and not isinstance(function, HigherOrderOperator)


def _result(node: Node, known: dict[Node, Any]) -> Any:
    args, options = map_arg((node.args, node.kwargs), lambda each: known.get(each, _UNKNOWN))
    is_unknown = any(each is _UNKNOWN for each in tree_leaves((args, options)))
    if is_unknown or node.op not in _CALLS or not _is_known_code(node.target):
        return _UNKNOWN
    try:
        with _disable_current_modes(), torch.no_grad(), OnTheHost():
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **options)
            return node.target(*args, **options)
    except _FAILS:
        return _UNKNOWN
