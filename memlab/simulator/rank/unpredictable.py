"""Errors that end a prediction: place, cause, remedy."""

import linecache
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import find_spec
from traceback import walk_tb
from types import CodeType, MappingProxyType, ModuleType, TracebackType
from typing import Any

from memlab.meters.where import raised_at
from memlab.simulator.rank.missing_files import missing_file

ORIGIN = "memlab's stand-in"
"""``__spec__.origin`` of the modules of a stand-in."""


@dataclass(frozen=True)
class Package:
    """Stand-in for a package.

    distribution  its name for pip: "flash-attn"
    version       the version that checks of versions see
    modules       full name of each module -> what programs import from it; packages around them are empty
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
            if any(f"{module}.".startswith(f"{name}.") for module in package.modules):
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
        module.__dict__.update(__version__=self._package.version, **self._package.modules.get(module.__name__, {}))


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


NAME = "UnpredictableError: "
EXPLAINED = f"memlab.{NAME}"
"""Beginning of the line that explains what ended a script."""

OWN_STAND_IN = "add a stand-in to a folder of your own: memlab predict --stand-ins FOLDER (docs/your_own_command.md)"

NO_REPLICAS = (
    "memlab predicts no replicas of a model in one process. Start a process for each GPU (torchrun), or let the script "
    "see one: hardware.gpus=1"
)

SET_DEVICE = "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first use of a GPU"

GPU_PACKAGES = frozenset(
    {
        *("apex", "bitsandbytes", "causal_conv1d", "deep_ep", "deep_gemm", "fast_hadamard_transform", "fla"),
        *("flash_attn_interface", "flashinfer", "grouped_gemm", "kernels", "liger_kernel", "mamba_ssm", "megablocks"),
        *("sageattention", "sglang", "transformer_engine", "triton", "unsloth", "vllm", "xformers"),
    }
)
"""Packages with compiled CUDA code that a machine without a GPU cannot install, by the names that programs import."""

_READS_MEMORY = ("Cannot access data pointer of Tensor", "data is not allocated yet", "that doesn't have storage")
"""Parts of torch's messages where compiled code asks for the memory of a tensor without bytes."""

_NO_KERNEL = (
    "missing kernel for cuda",
    "with arguments from the 'CUDA' backend",
    "CUDA driver version is insufficient",
    "Found no NVIDIA driver",
    "no CUDA-capable device",
    "Storage device not recognized: cuda",
)
"""Parts of torch's messages where its C++ code calls CUDA past the dispatcher: recurrent layers, storages."""

_HERE = os.path.dirname(__file__)

ASKS_THE_DRIVER = "{0} asks NVIDIA's driver, which a prediction has no answer for. Predict without it"

_TOLD = {
    r"^NotImplementedError: Cannot access storage of SparseTensorImpl": (
        "sparse tensors are not predicted: torch.nn.Embedding(sparse=True) gives its weight a sparse gradient. Predict "
        "with sparse=False, whose gradient is as large as the weight"
    ),
    r"^TypeError: type (torch\.cuda\.\w+) not available": (
        "{0}(...), a deprecated constructor, is not predicted. Write torch.empty(..., device='cuda') or "
        "torch.tensor(..., device='cuda') with a dtype"
    ),
    r"^RuntimeError: Cannot (.+?) without (?:ATen_cuda library|CUDA)": (
        "torch asks CUDA's own libraries: it would {0}, which is not predicted. Predict without it"
    ),
    r"^AttributeError: (?:module 'torch\._C'|.+SimpleNamespace.+) has no attribute '(_?(?:cuda|nccl|gds)\w+)'": (
        ASKS_THE_DRIVER
    ),
    r"^NotImplementedError: There was no rule registered for HigherOrderOperator (\w+)": (
        "{0} is not predicted without torch.compile. Compile it or predict with attn_implementation='sdpa'"
    ),
    r"^NVMLError\w*: (.+)": (
        "the script asks NVIDIA's driver about GPUs that are not there ({0}). Leave the call out where "
        "pynvml.nvmlInit() fails"
    ),
}
"""Exceptions of libraries -> what they say of a prediction."""

_OF_CODE = (AttributeError, KeyError, TypeError, ValueError, AssertionError, NotImplementedError, RecursionError)
"""Exceptions that are mistakes of the code that raises them: a script's wrong shapes raise others."""

_SIMULATION = ("/memlab/simulator/", "/torch/_subclasses/")
"""Parts of the paths of code that only a prediction runs."""


class UnpredictableError(Exception):
    """Error that ends a prediction: cause and remedy in one line. :func:`explain` adds the line of the script."""


UnpredictableError.__module__ = "memlab"


def explain_at_the_end(assumed: Mapping[CodeType, str]) -> None:
    """Replace the exception that ends the script by one that explains it, where there is more to say.

    ``assumed``: as of :func:`explain`, when the script ends.
    """
    report = sys.excepthook

    def explained(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        report(kind, error, traceback)
        if (line := explain(error, assumed)) is not None:
            sys.last_value = UnpredictableError(line).with_traceback(traceback)
            sys.last_value.__cause__ = error
            print(f"{EXPLAINED}{line}", file=sys.stderr)

    sys.excepthook = explained


def explain(error: BaseException, assumed: Mapping[CodeType, str] = MappingProxyType({})) -> str | None:
    """Return the line that explains an exception, or ``None`` where the exception says enough.

    ``assumed``: function -> what was taken for a number that it read, and that a prediction does not know.
    """
    reason = next(filter(None, map(_reason, _chain(error))), None) or _after_a_guess(error, assumed)
    return None if reason is None else f"{raised_at(error) or _in_a_library(error) or 'the script'}: {reason}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it followed from."""
    while error is not None:
        yield error
        of_compiler = getattr(error, "inner_exception", None)  # of torch.compile's errors
        error = of_compiler or error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _reason(error: BaseException) -> str | None:
    if isinstance(error, UnpredictableError):
        return str(error)
    if isinstance(error, ImportError) and (package := _missing_package(error)):
        return f"{package} is not installed, and memlab has no stand-in for it. Predict without it, or {OWN_STAND_IN}"
    if any("/torch/nested/" in frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)):
        return "nested (jagged) tensors are not predicted. Predict with padded batches, or with packed ones and lengths"
    for words, told in _TOLD.items():
        if found := re.search(words, f"{type(error).__name__}: {error}"):
            return told.format(*found.groups())
    if isinstance(error, RuntimeError) and any(part in str(error) for part in _READS_MEMORY):
        return (
            f"compiled code reads the memory of a tensor, which has none in a prediction: {_source(error)}. Call it as "
            f"an operator with a fake implementation (torch.library.register_fake), or {OWN_STAND_IN}"
        )
    if isinstance(error, RuntimeError) and any(part in str(error) for part in _NO_KERNEL):
        return (
            f"torch calls a CUDA kernel past its dispatcher, where a prediction has no answer: {_source(error)}. "
            f"Predict without it, or {OWN_STAND_IN}"
        )
    if isinstance(error, OSError) and "CUDA_HOME" in str(error):
        return f"the script compiles CUDA code, and CUDA's compiler is not here. Install it, or {OWN_STAND_IN}"
    return missing_file(error) or _own_mistake(error)


def _missing_package(error: ImportError) -> str | None:
    """Return the package of GPU_PACKAGES that is missing: its name, or the one that a library's message names."""
    words = [(error.name or "").partition(".")[0], *re.findall(r"\w+", str(error).lower())]
    return next((word for word in words if word in GPU_PACKAGES and find_spec(word) is None), None)


def _own_mistake(error: BaseException) -> str | None:
    """Name the operator or the library that the simulation could not follow."""
    frames = list(walk_tb(error.__traceback__))
    if not frames or not isinstance(error, _OF_CODE):
        return None
    if not any(part in frames[-1][0].f_code.co_filename for part in _SIMULATION):
        return None
    called = (frame.f_locals.get("func") for frame, _ in reversed(frames))
    operator = next((f"operator {each}" for each in called if type(each).__name__ == "OpOverload"), None)
    what = operator or _in_a_library(error) or "the script"
    return f"the simulation of {what} failed ({_told(error)}). Predict without it, or {OWN_STAND_IN}"


def _after_a_guess(error: BaseException, assumed: Mapping[CodeType, str]) -> str | None:
    """Return which number was assumed in a function that the exception passed: with another size, it may not fail."""
    found = [assumed[frame.f_code] for frame, _ in walk_tb(error.__traceback__) if frame.f_code in assumed]
    if not found:
        return None
    taken = re.sub(r" \(called at [^)]*\)", "", found[-1])  # the line of the user comes first, anyway
    return (
        f"{taken}, because only a GPU computes it, and then the script failed ({_told(error)}). Predict without the "
        "code that reads it"
    )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _in_a_library(error: BaseException) -> str | None:
    """Return ``package/file.py:line`` of the innermost frame of an installed package but torch."""
    frames = (
        (frame.f_code.co_filename.rpartition("-packages/")[2], line) for frame, line in walk_tb(error.__traceback__)
    )
    found = [f"{file}:{line}" for file, line in frames if not file.startswith(("/", "<", "torch/", "memlab/"))]
    return found[-1] if found else None


def _source(error: BaseException) -> str:
    """Return the line of Python outside memlab that raised the error."""
    *_, (frame, line) = [at for at in walk_tb(error.__traceback__) if not at[0].f_code.co_filename.startswith(_HERE)]
    return linecache.getline(frame.f_code.co_filename, line).strip()
