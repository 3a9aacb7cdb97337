"""Lines of two versions of a file are compared by function and operator; those of one version by their numbers."""

from memlab.analyse.explain.accounting import with_same_lines
from memlab.prediction.memory.ledger import Holding
from memlab.simulator.trace.trace_format import Site


def held(line, function="forward", op="aten.add.Tensor", file="llama.py"):
    return Holding(Site("activations", op, f"{file}:{line}" if line else "AddBackward0", function, "mlp", ()), 8, 1)


def lines(*holdings):
    return [[each.site.where for each in run] for run in with_same_lines(*holdings)]


def test_lines_of_another_version_are_paired_in_their_order():
    measured = [held(317, op="aten.add_Tensor"), held(98, op="aten.add_Tensor"), held(60, "rotate"), held(0)]
    predicted = [held(99), held(306), held(60, "rotate"), held(0)]
    both = ["llama.py:98 -> 99", "llama.py:317 -> 306"]
    assert lines(measured, predicted) == [
        [both[1], both[0], "llama.py:60", "AddBackward0"],
        [*both, "llama.py:60", "AddBackward0"],
    ]


def test_lines_of_the_same_version_keep_their_numbers():
    common = [held(number, "attention") for number in (1, 2, 3)]
    first, second = [*common, held(317)], [*common, held(320)]
    assert lines(first, second) == [[each.site.where for each in run] for run in (first, second)]


def test_lines_keep_their_numbers_where_one_run_has_more():
    first, second = [held(317)], [held(306), held(320)]
    assert lines(first, second) == [["llama.py:317"], ["llama.py:306", "llama.py:320"]]
