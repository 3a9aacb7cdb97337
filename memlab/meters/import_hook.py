"""Functions that are called right before a module is imported, or as soon as it has been imported.

Every Python process of a command loads this module, so it imports nothing but ``sys``: ``collections.abc`` alone would
take three times as long.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

STATEFUL_LOADERS = "torchdata.stateful_dataloader.stateful_dataloader"

LIBRARIES = (
    "accelerate.accelerator",
    "accelerate.data_loader",
    "datasets.builder",
    "deepspeed",
    "lomo_optim",
    "megatron.core.pipeline_parallel.schedules",
    "safetensors.torch",
    STATEFUL_LOADERS,
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "transformers.trainer",
)
"""Watched from the start: a script that begins with ``import deepspeed`` imports torch in the middle of that import."""

_waiting: "dict[str, list[Callable[[ModuleType], None]]]" = {name: [] for name in LIBRARIES}

_first: "dict[str, Callable[[], None]]" = {}  # functions of modules that are not imported yet


def after(name: str, function: "Callable[[ModuleType], None]") -> None:
    """Call ``function`` with the module ``name`` after its import, or now if it has been imported."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        function(module)
        return
    _waiting.setdefault(name, []).append(function)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def before(name: str, function: "Callable[[], None]") -> None:
    """Call ``function`` right before the code of the module ``name`` runs, which has not been imported yet."""
    _first[name] = function
    after(name, lambda module: None)  # the finder watches this name


class _AwaitingFinder:
    """Asks the other finders for a module that is waited for, and lets its loader call the functions."""

    searched: "str | None" = None

    def find_spec(self, name, path=None, target=None):
        if name not in _waiting or self.searched == name:
            return None
        import importlib.util  # not before it is needed: it would double the start of a process without torch

        self.searched = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searched = None
        if spec is not None and spec.loader is not None:
            _call_around(spec.loader, name)
        return spec


_finder = _AwaitingFinder()


def _call_around(loader, name: str) -> None:
    """Wrap the loader's ``exec_module`` for one module: a loader of a zip file is shared by several."""
    execute = loader.exec_module

    def exec_module(module):
        if module.__name__ in _first:
            _first.pop(module.__name__)()
        execute(module)
        if module.__name__ == name:
            loader.exec_module = execute
            while functions := _waiting.pop(name, ()):  # a function may wait for more of the same module
                for function in functions:
                    function(module)

    loader.exec_module = exec_module
