"""Purposes of allocations: the same rules for a prediction, which knows shapes, and a measured history."""

import pytest

from memlab.simulator.trace.memory_kinds import (
    ACTIVATION_GRADIENTS,
    ACTIVATIONS,
    BUCKETS,
    GATHERED,
    GRADIENTS,
    LOGITS,
    MASTER,
    STEP,
    WEIGHTS,
    kind_of,
)
from memlab.simulator.trace.trace_format import Site


def kind(phase, op="aten.mm.default", where="model.py:3", function="forward", module="", shape=(), vocabularies=()):
    return kind_of(Site("", op, where, function, module, shape), phase, vocabularies)


@pytest.mark.parametrize("module", ["lm_head", "base_model.model.lm_head"])
def test_the_head_makes_logits_in_forward_alone_and_not_by_casting_its_input(module):
    assert kind("first_forward", module=module) == LOGITS == kind("evaluate", module=module)
    assert kind("forward", "aten._to_copy.default", module=module) == ACTIVATIONS
    assert kind("backward", where="MmBackward0", module=module) == ACTIVATION_GRADIENTS


def test_a_cross_entropy_is_known_by_its_operators_where_no_vocabulary_is():
    assert kind("forward", "aten._log_softmax.default") == LOGITS
    assert kind("backward", "aten.nll_loss_backward.default", "NllLossBackward0") == LOGITS
    assert kind("forward", shape=(4, 0)) == ACTIVATIONS
    assert kind("forward", shape=(4, 32), vocabularies={32}) == LOGITS


@pytest.mark.parametrize("file", ["transformers/activations.py:103", "peft/tuners/lora/layer.py:1102", "train.py:7"])
def test_what_a_forward_requests_in_backward_is_recomputed(file):
    assert kind("first_backward", where=file) == ACTIVATIONS
    assert kind("backward", where=file, function="geglu_backward") == ACTIVATION_GRADIENTS
    assert kind("backward", where="MulBackward0", function="") == ACTIVATION_GRADIENTS
    assert kind("backward", where="deepspeed/runtime/zero/stage3.py:1500") == ACTIVATION_GRADIENTS


def test_the_optimizer_of_deepspeed_for_bfloat16_has_gradients_and_master_weights():
    file = "deepspeed/runtime/bf16_optimizer.py:191"
    assert kind("engine_init", "aten.zeros_like.default", file, "_setup_for_real_optimizer") == GRADIENTS
    assert kind("engine_init", "aten._to_copy.default", file, "_setup_for_real_optimizer") == MASTER


def test_the_weights_that_ddp_sends_to_all_ranks_are_no_master_weights():
    assert kind("engine_init", "aten.cat.default", "torch/nn/parallel/distributed.py:1092", "__init__") == BUCKETS


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("torch/optim/adamw.py:7", STEP),
        ("optim/lion.py:7", STEP),
        ("transformers/optimization.py:9", STEP),
        ("my_optimizer.py:3", STEP),
        ("prompt_optimization/model.py:7", ACTIVATIONS),
        ("optimum/bettertransformer/models/attention.py:7", ACTIVATIONS),
    ],
)
def test_an_optimizer_is_known_by_its_file_and_a_word_that_begins_like_it_is_none(file, found):
    assert kind("forward", where=file) == found


def test_fsdp_shards_weights_and_gathers_them():
    file = "torch/distributed/fsdp/_fully_shard/_fsdp_param.py:307"
    assert kind("model_build", "aten.new_zeros", file, "_init_sharded_param") == WEIGHTS
    assert kind("forward", "", file, "alloc_storage") == GATHERED


def test_what_zero_2_makes_flat_are_weights_before_the_steps_and_gradients_in_them():
    code = ("aten.cat.default", "deepspeed/runtime/zero/stage_1_and_2.py:1399", "flatten_dense_tensors_aligned")
    assert kind("engine_init", *code) == WEIGHTS
    assert kind("first_optimizer_step", *code) == kind("optimizer_step", *code) == GRADIENTS
