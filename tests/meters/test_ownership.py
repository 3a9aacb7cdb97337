"""Who owns which memory: parameters by name, gradients, optimizer states, and buffers that parameters share."""

import copy
import gc

import pytest
import torch
from torch import nn

from memlab.meters.owner import GRADIENTS, MASTER, OPTIMIZER, WEIGHTS, Owner
from memlab.meters.ownership import Ownership


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_parameters_gradients_and_states_are_named():
    model = Pair()
    model.first.requires_grad_(False)
    model.second.bfloat16()
    optimizer = torch.optim.Adam(model.parameters())
    model.second(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    owners = Ownership(lambda: [optimizer], storage, model).after("first_optimizer_step")
    own = Owner(WEIGHTS, "Pair", "second.weight", "bfloat16", True)
    assert owners[storage(model.first.weight)] == Owner(WEIGHTS, "Pair", "first.weight", "float32", False)
    assert owners[storage(model.second.weight)] == own
    assert owners[storage(model.second.weight.grad)] == own._replace(kind=GRADIENTS)
    state = optimizer.state[model.second.weight]
    assert owners[storage(state["exp_avg"])] == own._replace(kind=OPTIMIZER)
    assert owners[storage(state["step"])].dtype == "float32"


def test_sparse_gradients_and_parameters_without_memory_so_far():
    model = nn.Sequential(nn.Embedding(4, 4, sparse=True), nn.LazyLinear(4))
    model[0](torch.tensor([1, 2])).sum().backward()
    owners = Ownership(lambda: [], storage, model).now()
    gradient = model[0].weight.grad
    assert {owners[storage(part)].kind for part in (gradient._indices(), gradient._values())} == {GRADIENTS}
    assert {owner.parameter for owner in owners.values()} == {"Sequential.0.weight"}


def test_states_in_lists_are_named():
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(torch.ones(1, 4)).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    owners = Ownership(lambda: [optimizer], storage, model).now()
    (direction, *_) = optimizer.state[model.weight]["old_dirs"]
    assert owners[storage(direction)] == Owner(OPTIMIZER, "Linear", "weight", "float32", True)


def test_parameters_of_no_model_are_master_weights_and_a_flat_buffer_has_one_owner():
    model = Pair()
    flat = torch.zeros(32)
    model.first.weight.data, model.second.weight.data = flat[:16].view(4, 4), flat[16:].view(4, 4)
    master = nn.Parameter(torch.zeros(32))
    owners = Ownership(lambda: [torch.optim.SGD([master])], storage, model).now()
    assert owners[storage(master)].kind == MASTER
    assert owners[storage(flat)] == Owner(WEIGHTS, "Pair", "", "float32", True, 2)


def test_a_models_parameter_counts_before_another_one_in_the_same_memory():
    model = Pair()
    other = nn.Parameter(model.first.weight.detach())
    owners = Ownership(lambda: [torch.optim.SGD([*model.parameters(), other])], storage, model).now()
    assert owners[storage(other)] == Owner(WEIGHTS, "Pair", "first.weight", "float32", True)


def test_a_shard_counts_before_the_parameter_that_is_gathered_in_its_place():
    model = Pair()
    flat = torch.zeros(32)
    for parameter, shard in ((model.first.weight, flat[:16]), (model.second.weight, flat[16:])):
        parameter.data, parameter.ds_tensor = torch.empty(0), shard
    model.second.weight.data = flat[16:].view(4, 4)
    owners = Ownership(lambda: [], storage, model).now()
    assert owners[storage(flat)] == Owner(WEIGHTS, "Pair", "", "float32", True, 2)


def test_no_garbage_is_collected_during_a_look():
    during: list[bool] = []
    ownership = Ownership(lambda: during.append(gc.isenabled()) or [], storage, Pair())
    ownership.now()
    assert during == [False] and gc.isenabled()


@pytest.mark.parametrize("phase", ["model_build", "first_backward"])
def test_models_are_searched_when_a_phase_has_run_for_the_first_time_and_numbered(phase):
    model = Pair()
    second = copy.deepcopy(model)
    ownership = Ownership(lambda: [], storage)
    assert ownership.after("backward") == {} == ownership.after("forward") == ownership.after(None)
    owners = ownership.after(phase)
    labels = {owners[storage(each.first.weight)].model for each in (model, second)}
    assert len(labels) == 2 and all(label.startswith("Pair") for label in labels)


def test_models_are_found_while_a_wrapper_is_being_made():
    """As when DistributedDataParallel is called: building the model ends with its call, before its own code runs."""

    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module):
            self.found = {owner.model for owner in Ownership(lambda: [], storage).after("model_build").values()}
            super().__init__()
            self.module = model

    assert "Pair" in Wrapper(Pair()).found


def test_a_module_is_named_in_its_model_and_a_model_by_its_class():
    model = torch.nn.Sequential(Pair())
    ownership = Ownership(lambda: [], storage, model)
    names = [ownership.name_of(each) for each in (model[0].second, model, Pair())]
    assert names == ["Sequential.0.second", "Sequential", ""]
