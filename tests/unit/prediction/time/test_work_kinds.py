"""Kinds of work by the operator that launches it."""

import pytest

from memlab.prediction.time.work_kinds import ATTENTION, ELEMENTWISE, MATRIX_PRODUCTS, OPTIMIZER, OTHER, kernel_kind

OPERATORS = {
    MATRIX_PRODUCTS: ["mm", "bmm", "addmm", "linear", "convolution_backward"],
    ATTENTION: ["_scaled_dot_product_flash_attention", "_efficient_attention_backward"],
    ELEMENTWISE: ["mul", "add_", "_log_softmax", "embedding_dense_backward", "native_layer_norm", "sum"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in OPERATORS.items() for name in names])
def test_an_operator_is_of_one_kind_by_the_names_of_trace_and_profiler(kind, name):
    assert kernel_kind(f"aten.{name}.default", "forward") == kernel_kind(f"aten::{name}", "backward") == kind


def test_the_phase_of_the_optimizer_decides():
    assert kernel_kind("aten.mm.default", "optimizer_step") == OPTIMIZER
    assert kernel_kind("multi_tensor_adam", "optimizer_step") == OPTIMIZER


def test_functions_of_other_libraries():
    assert kernel_kind("flash_attn::_flash_attn_forward", "forward") == ATTENTION
    assert kernel_kind("_rms_norm_forward_kernel", "forward") == OTHER
    assert kernel_kind("", "forward") == OTHER
