"""Packages that are not installed, answered by stand-ins: imports, ``find_spec`` and ``importlib.metadata``."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

ORIGIN = "memlab's stand-in"
"""``__spec__.origin`` of the modules of a stand-in."""


@dataclass(frozen=True)
class Package:
    """Stand-in for a package.

    distribution  its name for pip: "flash-attn"
    version       the version that checks of versions see
    modules       full name of each module -> what programs import from it
    """

    distribution: str
    version: str
    modules: Mapping[str, Mapping[str, Any]]

    @property
    def top_level(self) -> str:
        return next(iter(self.modules)).partition(".")[0]


def offer(packages: Sequence[Package]) -> None:
    """Let programs import those of ``packages`` that are not installed. The last stand-in for a package wins."""
    for package in packages:
        spec = find_spec(package.top_level)
        if spec is None or spec.origin == ORIGIN:
            _finder.packages.insert(0, package)
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


class _Finder(DistributionFinder):
    """Finds the modules and the metadata of the packages."""

    def __init__(self):
        self.packages: list[Package] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        for package in self.packages:
            if name in package.modules:
                spec = ModuleSpec(name, _Loader(package), origin=ORIGIN)
                spec.submodule_search_locations = []
                return spec
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        for package in self.packages:
            if context is None or context.name is None or _plain(context.name) == _plain(package.distribution):
                yield _Metadata(package)


_finder = _Finder()


class _Loader(Loader):
    def __init__(self, package: Package):
        self._package = package

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(__version__=self._package.version, **self._package.modules[module.__name__])


class _Metadata(Distribution):
    def __init__(self, package: Package):
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {package.distribution}\nVersion: {package.version}\n",
            "top_level.txt": package.top_level,
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)  # a stand-in has no files


def _plain(name: str) -> str:
    """Return the name of a distribution as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
