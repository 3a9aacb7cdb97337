"""The running module: by hooks in forward, by autograd node in backward."""

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from . import model_tree
from .nested_tensors import tensors_in
from .own_errors import contained

_MADE_BY = "memlab_made_by"
"""Key in an autograd node's ``metadata``: name of the module, and thread, whose forward made the node."""

_ENTRIES = "memlab_entries"
"""Key in the ``metadata`` of the node that made a module's output: the nodes that made what its forward used."""


class _Thread(threading.local):
    """``running``: the modules whose forward runs in this thread, the innermost last: name, and number of the thread's
    next node of autograd."""

    def __init__(self):
        self.running: list[tuple[str, int]] = []


class RunningModules:
    """Follows the forward of all modules until :meth:`stop`. A module that runs inside no other one is a model. Its
    parts have their names in it, such as ``layers.0.mlp``; the model itself has the name of its class.

    Each thread has modules of its own, as the replicas of DataParallel do. Where none runs, as in autograd's threads,
    those of the thread that made this object count, which waits for autograd.

    ``found``: runs with each new model. ``entered``: runs before each forward. ``left``: runs after it, with the
    module's name and the nodes of autograd that this forward made, without those of modules inside of it.
    """

    def __init__(
        self,
        found: Callable[[torch.nn.Module], None] = lambda model: None,
        entered: Callable[[], None] = lambda: None,
        left: Callable[[str, list[Any]], None] = lambda name, nodes: None,
    ):
        self._found, self._entered, self._left = found, entered, left
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._thread = _Thread()
        self._of_first_thread = self._thread.running
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    @property
    def in_forward(self) -> str:
        """Name of the module whose forward runs; empty outside all modules."""
        running = self._thread.running or self._of_first_thread
        return running[-1][0] if running else ""

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()

    @contained
    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        running = self._thread.running
        if not running and module not in self._names:
            model = model_tree.unwrapped(module)[0]
            own = self._names[module] = model_tree.class_of(model).__name__
            self._names.update((part, model_tree.name_in(model, path) or own) for path, part in model.named_modules())
            self._found(model)
        running.append((self._names.get(module, self.in_forward), torch._C._autograd._get_sequence_nr()))
        self._entered()

    @contained
    def _leave(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if self._thread.running:  # else a hook failed before this module was entered
            name, first = self._thread.running.pop()
            self._left(name, list(_name_nodes(outputs, name, first)))


def module_of_node(node: Any) -> str:
    """Return the name of the module whose forward made a node of autograd; empty for a node from outside all modules,
    and for ``None``."""
    return "" if node is None else node.metadata.get(_MADE_BY, ("",))[0]


def _name_nodes(outputs: Any, name: str, first: int) -> Iterator[Any]:
    """Name the nodes behind a module's outputs that have no name yet, and yield them. A node has one if a module inside
    made it. ``first``: nodes with lower numbers were made before the module was entered; each thread counts on its own.
    The nodes of a module inside all have names: they are passed over, from its outputs to its entries.

    The node that accumulates a parameter's gradient is named, but not yielded: it runs right after the one before it.
    """
    thread = threading.get_ident()
    last = [tensor.grad_fn for tensor in tensors_in(outputs) if tensor.grad_fn is not None]
    nodes, seen, entries = [*last], set(), []
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node._sequence_nr() < first:
            entries.append(node)
            continue
        before = node.metadata.get(_ENTRIES)
        if before is None:
            before = [node for node, _ in node.next_functions]
        if _MADE_BY not in node.metadata:
            node.metadata[_MADE_BY] = (name, thread)
            if before:
                yield node
        elif node.metadata[_MADE_BY][1] != thread:
            continue
        nodes += before
    for node in last:
        if node._sequence_nr() >= first and node.metadata[_MADE_BY][1] == thread:
            node.metadata[_ENTRIES] = entries
