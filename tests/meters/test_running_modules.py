"""Which module runs: in forward the innermost one, in backward the one whose forward made the node of autograd."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from memlab.meters.running_modules import RunningModules, module_of_node


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, inputs):
        return self.down(torch.tanh(self.gate(inputs)) * self.up(inputs))


class Model(nn.Module):
    """Two layers, of which the second one may be checkpointed, and a loss of its own."""

    def __init__(self, use_reentrant: bool | None):
        super().__init__()
        self.layers, self.use_reentrant = nn.ModuleList([Mlp(), Mlp()]), use_reentrant

    def forward(self, inputs):
        first = inputs + self.layers[0](inputs)
        if self.use_reentrant is None:
            second = self.layers[1](first)
        else:
            second = checkpoint(self.layers[1], first, use_reentrant=self.use_reentrant)
        return {"loss": torch.cos(second).sum()}


class Requests(TorchDispatchMode):
    """Operator and module of each call, as a prediction attributes it and as a label that the nodes set."""

    def __init__(self):
        super().__init__()
        self.modules, self.in_backward, self.seen = RunningModules(left=self.left), "", set()

    def left(self, module, nodes):
        for node in nodes:
            node.register_prehook(lambda gradients: setattr(self, "in_backward", module))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        of_node = module_of_node(torch._C._current_autograd_node())
        by_label = self.modules.in_forward or self.in_backward
        self.seen.add((func.overloadpacket.__name__, self.modules.in_forward or of_node, by_label))
        return func(*args, **kwargs or {})


@pytest.fixture
def requests():
    requests = Requests()
    yield requests
    requests.modules.stop()


@pytest.mark.parametrize("use_reentrant", [None, False, True])
def test_backward_stands_under_the_module_whose_forward_it_is_of(requests, use_reentrant):
    model, inputs = Model(use_reentrant), torch.ones(2, 8, requires_grad=True)
    with requests:
        loss = torch.exp(model(inputs)["loss"])
        forward, requests.seen = requests.seen, set()
        loss.backward()
    assert {("tanh", "layers.1", "layers.1"), ("cos", "Model", "Model"), ("exp", "", "")} <= forward
    assert {
        ("tanh_backward", "layers.0", "layers.0"),
        ("tanh_backward", "layers.1", "layers.1"),
        ("sin", "Model", "Model"),
        ("mm", "layers.1.down", "layers.1.down"),
    } <= requests.seen
    assert {by_label for _, of_node, by_label in requests.seen if of_node == by_label} >= {"layers.0.up", "layers.1.up"}
    different = {call for call in requests.seen if call[1] != call[2]}
    assert not different


def test_without_gradients_and_after_the_end_nothing_is_named(requests):
    model = Model(None)
    with torch.no_grad(), requests:
        model(torch.ones(2, 8))
    assert requests.modules.in_forward == ""
    requests.modules.stop()
    assert module_of_node(model(torch.ones(2, 8))["loss"].grad_fn) == "" == module_of_node(None)


class Waits(nn.Module):
    """Notes which module runs once all threads are in their forward."""

    def __init__(self, requests: Requests, barrier: threading.Barrier):
        super().__init__()
        self.requests, self.barrier, self.seen = requests, barrier, ""

    def forward(self, inputs):
        self.barrier.wait(10)
        self.seen = self.requests.modules.in_forward
        self.barrier.wait(10)
        return inputs * 2


class Replicas(nn.Module):
    """Runs models at once, each in a thread of its own, as DataParallel runs its replicas."""

    def __init__(self, *models: nn.Module):
        super().__init__()
        self.models = models  # not its parts: replicas are made anew for each forward

    def forward(self, inputs):
        with ThreadPoolExecutor(len(self.models)) as threads:
            return list(threads.map(lambda model: model(inputs), self.models))


def test_threads_have_running_modules_of_their_own(requests):
    barrier = threading.Barrier(2)
    first, second = (Waits(requests, barrier) for _ in range(2))
    replicas = Replicas(nn.Sequential(first), nn.Sequential(nn.Tanh(), second))
    outputs = replicas(torch.ones(2, requires_grad=True))
    assert [first.seen, second.seen] == ["Sequential.0", "Sequential.1"]
    assert [module_of_node(each.grad_fn) for each in outputs] == ["Sequential.0", "Sequential.1"]
    assert module_of_node(outputs[1].grad_fn.next_functions[0][0]) == "Sequential.0"
    assert requests.modules.in_forward == ""


class InAThread(nn.Module):
    """Hands the output of a part to another part, in another thread, which returns it as it is."""

    def __init__(self):
        super().__init__()
        self.part, self.passes = nn.Tanh(), nn.Identity()

    def forward(self, inputs):
        with ThreadPoolExecutor(1) as thread:
            return torch.sin(thread.submit(self.passes, self.part(torch.cos(inputs))).result())


def test_what_a_module_makes_before_a_part_is_its_own_also_behind_a_part_of_another_thread(requests):
    sin = InAThread()(torch.ones(2, requires_grad=True)).grad_fn
    tanh = sin.next_functions[0][0]
    cos = tanh.next_functions[0][0]
    assert [module_of_node(node) for node in (sin, tanh, cos)] == ["InAThread", "part", "InAThread"]


def test_a_part_of_a_known_model_keeps_its_name_outside_of_it(requests):
    model = Model(None)
    model(torch.ones(2, 8))
    assert module_of_node(model.layers[0].down(torch.ones(2, 8)).grad_fn) == "layers.0.down"
