"""What is special about a library or a kernel stands in one file of the folder stand_ins."""

import ast
import re
from pathlib import Path

import pytest

RANK = Path(__file__).parents[3] / "memlab" / "simulator" / "rank"
STAND_INS = sorted(file for file in (RANK / "stand_ins").glob("*.py") if file.name != "__init__.py")
LIBRARIES = re.compile("liger|bitsandbytes|triton|adam|lion|flash|cudnn|cublas|softmax|peft", re.IGNORECASE)


@pytest.mark.parametrize("module", ["recorder", "memory_events", "in_place", "value_reads", "counting", "fake_results"])
def test_general_modules_know_no_library_and_no_kernel(module):
    assert LIBRARIES.findall((RANK / f"{module}.py").read_text()) == []


@pytest.mark.parametrize("file", STAND_INS, ids=lambda file: file.stem)
def test_every_file_defines_one_stand_in(file):
    functions = {node.name: node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
    assert [argument.arg for argument in functions["stand_in"].args.args] == ["gpu"]


@pytest.mark.parametrize("file", STAND_INS, ids=lambda file: file.stem)
def test_no_other_file_names_a_stand_in(file):
    name = re.compile(rf"stand_ins(\.| import .*){file.stem}\b")
    others = [other for other in RANK.rglob("*.py") if other != file]
    assert [other for other in others if name.search(other.read_text())] == []
