"""``python -m tools.unanswered``: list what of the installed torch a prediction has no answer for."""

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode

from memlab.files.disk import write_output
from memlab.simulator.constants import GPU_MODELS
from memlab.simulator.rank import cuda, native, shapes, stand_ins
from memlab.simulator.rank.fake_results import has_fake
from memlab.simulator.rank.recorder import WITH_INDICES, Recorder, is_made_of_others
from memlab.simulator.trace.trace_format import Trace
from tools.program import add_page, start

_DEVICES = re.compile("mkldnn|mps|miopen|xpu|quantized|_test_|foobar")
"""Operators of other devices and of tests."""

_BY_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def document() -> str:
    """Write the page as Markdown: the text of unanswered.md, with values in place of their names in braces. The
    stand-ins change torch in this process."""
    recorder, of_torch = Recorder(Trace(0, 1), FakeTensorMode()), set(op_implementations_dict)
    stand_ins.install(recorder, GPU_MODELS["H200"])
    operators = [each for each in _operators() if each._schema.returns]
    answered = shapes.FROM_VALUES | WITH_INDICES | recorder.answers.keys() | (op_implementations_dict.keys() - of_torch)
    own = [each for each in operators if each not in answered and not is_made_of_others(each)]
    without_fake = [each for each in own if not has_fake(each)]
    by_values = [each for each in own if has_fake(each) and _BY_VALUES & set(each.tags)]
    functions = [name for name in _functions() if cuda.asks_the_driver(name)]
    template = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return template.format(
        torch=torch.__version__,
        operators=len(operators),
        without_fake=len(without_fake),
        names_without_fake=_names(without_fake),
        by_values=len(by_values),
        names_by_values=_names(by_values),
        callers=_list(_callers(functions)),
        functions=_list(functions),
        hooks=_list(_hooks()),
    )


def _operators() -> Iterator[OpOverload]:
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::") and not _DEVICES.search(name):
            yield getattr(getattr(torch.ops.aten, packet), overload or "default")


def _functions() -> list[str]:
    """Names in ``torch._C``, also those that only a build for CUDA has: its Python code asks for them."""
    sources = (path.read_text(encoding="utf-8") for path in Path(torch.cuda.__file__).parent.rglob("*.py"))
    return sorted({name for text in sources for name in re.findall(r"\b_C\.(_\w+)", text)} | set(dir(torch._C)))


def _callers(functions: Iterable[str]) -> Iterator[str]:
    called = re.compile(rf"\.({'|'.join(functions)})\(")
    modules = (torch.cuda, torch.cuda.memory, torch.cuda.nccl, torch.cuda.gds, torch.cuda.graphs, torch.cuda.tunable)
    for module in modules:
        for name, value in sorted(vars(module).items()):
            own = inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
            if own and called.search(inspect.getsource(value)):
                yield f"{module.__name__}.{name}"


def _hooks() -> list[str]:
    """Functions of torch's interface to CUDA that only raise, and that memlab's native library does not replace."""
    header = Path(torch.__file__).parent / "include/ATen/detail/CUDAHooksInterface.h"
    raising = r"virtual [^;{}]*?(\w+)\([^{}]*\) const \{\s*TORCH_CHECK\(\s*false"
    return [
        name
        for name in re.findall(raising, header.read_text(encoding="utf-8"))
        if not re.search(rf"\b{name}\(", native.SOURCE.read_text(encoding="utf-8"))
    ]


def _names(operators: Iterable[OpOverload]) -> str:
    return _list(str(each).removeprefix("aten.").removesuffix(".default") for each in operators)


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) + "."


def run(arguments: argparse.Namespace) -> None:
    if arguments.output is None:
        print(document(), end="")
    else:
        write_output(arguments.output, document().encode())


if __name__ == "__main__":
    start(add_page, run, __doc__)
