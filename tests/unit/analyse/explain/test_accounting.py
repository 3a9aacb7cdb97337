"""Trees of memory: they add up, and two of them are compared part by part."""

from dataclasses import replace

import pytest

from memlab.analyse.explain.accounting import Share, by_kind, layers_together, module_of, side_by_side, used
from memlab.meters.owner import Owner
from memlab.prediction.memory.ledger import Holding, Moment, Slack
from memlab.simulator.trace.trace_format import Site


def held(nbytes, kind="activations", module="model.layers.3.mlp", where="m.py:7", op="aten.mm.default"):
    return Holding(Site(kind, op, where, "forward", module, (nbytes,)), nbytes, 1)


HELD = (held(50), held(40, module="model.layers.12.mlp"), held(9, "weights", "", "load.py:1", "aten.empty"))
MOMENT = Moment(0, 102, 140, HELD, Slack(rounding=3, waiting=8, holes=10, releasable=20))


def check(share: Share) -> None:
    if share.parts:
        assert sum(part.nbytes for part in share.parts) == share.nbytes
    for part in share.parts:
        check(part)


def test_every_part_adds_up():
    tree = used(MOMENT, [Share("context", 500)], driver=None)
    check(tree)
    assert tree.nbytes == 640
    assert [part.name for part in tree.parts[0].parts] == ["requested", "slack of the allocator"]


def test_what_the_parts_do_not_reach_is_unexplained():
    tree = used(MOMENT, [Share("context", 500)], driver=641)
    assert tree.nbytes == 641 and tree.parts[-1] == Share("unexplained", 1)


def test_layers_are_together():
    assert layers_together("model.layers.12.experts.3.up") == "model.layers.*.experts.*.up"
    assert layers_together("h2.mlp") == "h2.mlp"
    assert [layers_together(name) for name in ("Sequential.0.2", "0.2", "7")] == ["Sequential.*.*", "*.*", "*"]
    kinds = by_kind(HELD)
    assert [(part.name, part.nbytes) for part in kinds.parts[0].parts] == [("model.layers.*.mlp", 90)]
    assert [part.name for kind in kinds.parts for module in kind.parts for part in module.parts] == [
        "m.py:7 mm",
        "load.py:1 empty",
    ]


def test_trees_are_put_side_by_side_part_by_part():
    row = side_by_side([by_kind(HELD), by_kind((held(50), held(30, "gradients")))])
    assert (row.sizes, row.change, row.spread) == ((99, 80), -19, 40)
    assert [(part.name, part.change) for part in row.parts] == [
        ("activations", -40),
        ("gradients", 30),
        ("weights", -9),
    ]


def test_the_part_that_differs_most_comes_first_also_in_between():
    trees = [
        Share("", 5, (Share("a", 5),)),
        Share("", 9, (Share("a", 5), Share("b", 4))),
        Share("", 5, (Share("a", 5),)),
    ]
    row = side_by_side(trees)
    assert row.spread == 4
    assert [(part.name, part.sizes) for part in row.parts] == [("b", (0, 4, 0)), ("a", (5, 5, 5))]


def test_parts_that_differ_are_seen_where_their_sums_are_equal():
    row = side_by_side([Share("", 5, (Share("a", 5),)), Share("", 5, (Share("b", 5),))])
    assert (row.change, row.spread) == (0, 5)


@pytest.mark.parametrize("kind", ["communication buckets", "gradients", "optimizer states"])
def test_a_flat_buffer_of_a_library_is_that_of_all_modules(kind):
    site = Site(kind, "aten.empty", "deepspeed/runtime/zero/stage_1_and_2.py:2192", "f", "layers.15.mlp.up_proj", ())
    assert module_of(site) == "all modules"
    assert (
        module_of(replace(site, kind="optimizer states", where="torch/optim/adam.py:178", module="")) == "all modules"
    )
    of_a_node = replace(site, kind="gradients", where="MmBackward0")
    assert module_of(of_a_node) == "layers.*.mlp.up_proj"
    owned = site.owned_by(Owner("gradients", "GPT", "layers.15.mlp.up_proj.weight", "bfloat16", True))
    assert module_of(owned) == "layers.*.mlp.up_proj"
