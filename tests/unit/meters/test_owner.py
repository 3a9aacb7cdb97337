"""Owners of memory: parameters that share a block are one owner, and the file of marks keeps them."""

import json

from memlab.meters.owner import GRADIENTS, MASTER, WEIGHTS, Owner, add_owner, from_json, to_json

UP = Owner(WEIGHTS, "GPT", "layers.0.mlp.up.weight", "bfloat16", False)
DOWN = Owner(WEIGHTS, "GPT", "layers.0.mlp.down.weight", "bfloat16", True)


def test_the_module_is_that_of_the_parameter():
    assert UP.module == "layers.0.mlp.up"
    assert Owner(MASTER, "", "", "float32", True).module == ""


def test_parameters_in_a_flat_buffer_are_one_owner():
    owners: dict[int, Owner] = {}
    for owner in (UP, DOWN):
        add_owner(owners, 64, owner)
    assert owners == {64: Owner(WEIGHTS, "GPT", "layers.0.mlp", "bfloat16", True, 2)}
    assert owners[64].module == "layers.0.mlp"


def test_of_two_kinds_the_later_one_is_right():
    owners = {64: Owner(MASTER, "", "", "float32", True)}
    add_owner(owners, 64, UP)
    assert owners == {64: UP}


def test_the_file_keeps_each_owner_once():
    looks = {3: {64: UP, 128: DOWN}, 5: {64: UP, 256: UP._replace(kind=GRADIENTS)}}
    values = json.loads(json.dumps(to_json(looks)))
    assert len(values["list"]) == 3
    assert from_json(values) == looks
