"""Which kernel attention gets, and its scratch memory, against what memory histories of GPUs show."""

import functools
from types import SimpleNamespace

import pytest
import torch
from torch.utils import flop_counter

from memlab.simulator.constants import gpu_model
from memlab.simulator.rank.stand_ins import attention, torch_operators
from memlab.simulator.trace.events import Alloc
from memlab.simulator.trace.work_items import KernelLaunch
from tests.shadow.one_rank import run

pytestmark = pytest.mark.shadow


def heads(batch: int, count: int, tokens: int, size: int):
    return SimpleNamespace(shape=(batch, count, tokens, size), element_size=lambda: 2)


@pytest.mark.parametrize(
    ("query", "key", "nbytes"),
    [
        (heads(1, 9, 512, 64), heads(1, 3, 512, 64), 2_377_984),  # SmolLM2-135M
        (heads(1, 16, 512, 64), heads(1, 16, 512, 64), 2_130_176),  # Qwen1.5-0.5B
        (heads(1, 32, 501, 128), heads(1, 8, 501, 128), 16_481_152),  # Llama-3-8B
    ],
)
def test_cudnn_takes_it_at_once(query, key, nbytes):
    assert attention.cudnn_workspaces(None, query, key, key) == [nbytes]


def test_the_efficient_kernel_takes_sums_of_products_then_parts_of_the_query_gradient():
    """Requests of mt0-small's attention to its encoder, in float32, on an H200: 36,864, 1,024 and 787,456 bytes."""
    query = SimpleNamespace(shape=(8, 6, 3, 64), element_size=lambda: 4)
    assert attention.efficient_sums(query, query) == [36_864, 576]
    assert attention.efficient_workspaces(query, query, query, query) == [576, 787_200]
    assert attention.efficient_sums(heads(8, 6, 3, 64), heads(8, 6, 3, 64)) == []


@pytest.mark.parametrize(
    ("gpu", "key_heads", "enable_gqa", "kernel"),
    [
        ("NVIDIA H200", 32, False, "cudnn"),
        ("NVIDIA H200", 8, True, "cudnn"),
        ("NVIDIA A100-SXM4-80GB", 32, False, "flash"),
        ("NVIDIA H200", 1, False, "math"),  # Falcon's: what is broadcast has no fused kernel
        ("NVIDIA A100-SXM4-80GB", 1, False, "math"),
    ],
)
def test_who_shares_key_heads_has_to_say_so(gpu, key_heads, enable_gqa, kernel):
    query, key = (torch.empty(1, count, 64, 64, dtype=torch.bfloat16, device="meta") for count in (32, key_heads))
    assert attention.choose(gpu_model(gpu), query, key, key, None, enable_gqa) == kernel


def test_fused_kernels_need_rows_of_neighbours_and_cudnn_a_mask_without_gradient():
    """``check_last_dim_stride_equals_1_dense`` and ``check_attn_mask_shape`` in torch's ``sdp_utils_cpp.h``."""
    choose = functools.partial(attention.choose, gpu_model("NVIDIA H200"))
    query = torch.empty(2, 16, 64, 64, dtype=torch.bfloat16, device="meta")
    bias = torch.empty(2, 16, 64, 64, dtype=torch.bfloat16, device="meta")
    assert choose(query, query, query, bias, False) == "cudnn"
    assert choose(query, query, query, bias.requires_grad_(), False) == "efficient"
    assert choose(query, query, query, bias.permute(0, 2, 3, 1), False) == "math"


def test_a_softmax_needs_memory_beside_its_result():
    """What Falcon-7B's backward on an H200 needed beside its tensors: 1,136 MiB for the scores of 2,048 tokens in fp32,
    and forward 284 for a mask of them."""
    scores = torch.empty(1, 71, 2048, 2048, device="meta")
    assert torch_operators.softmax_backward_product(scores, scores, -1, torch.float32) == [1136 << 20]
    assert torch_operators.safe_softmax_masks(scores, -1) == [284 << 20, 71 * 2048, 4]


@pytest.mark.parametrize(("tokens", "row"), [(16, 16), (20, 24), (24, 24), (501, 504)])
def test_the_efficient_kernel_needs_rows_of_a_multiple_of_8_elements(tokens, row):
    """``mem_eff_alignment`` in torch's ``aten/src/ATen/native/transformers/attention.cpp``."""
    found = attention.aligned(torch.empty(2, 1, tokens, tokens, dtype=torch.bfloat16, device="meta"))
    assert found.shape == (2, 1, tokens, tokens)
    assert found.stride() == (tokens * row, tokens * row, row, 1)


def _refuse_shared_heads(*shapes):
    """torch 2.11's check of shapes, whose formulas follow it."""
    if len({shape[1] for shape in shapes}) > 1:
        raise AssertionError("sdpa_flop_count: query/key/value shapes are incompatible")


@pytest.mark.parametrize("key_heads", [32, 8, 1])
def test_flops_are_those_of_every_query_head(monkeypatch, key_heads):
    for formula in ("sdpa_flop_count", "sdpa_backward_flop_count"):
        monkeypatch.setattr(flop_counter, formula, _refuse_shared_heads)
    for module, change in attention.stand_in(gpu_model("NVIDIA H200")).changes.items():
        if module == flop_counter.__name__:
            change(flop_counter, None)
    query, key = (torch.empty(2, count, 512, 64, device="meta") for count in (32, key_heads))
    product = 2 * 2 * 32 * 512 * 512 * 64  # of one batched product of two matrices
    for kernel in ("efficient", "flash", "cudnn"):
        forward, backward = (
            flop_counter.flop_registry[getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention{suffix}")]
            for suffix in ("", "_backward")
        )
        assert forward(query, key, key, out_val=query) == 2 * product
        assert backward(query, query, key, key, out_val=query) == 5 * product


PACKED = """
import torch
heads = torch.ones(100, 4, 64, dtype=torch.bfloat16, device="cuda")
ends = torch.zeros(3, dtype=torch.int32, device="cuda")
weight = torch.nn.Parameter(torch.ones(1, device="cuda"))
optimizer = torch.optim.SGD([weight])
for _ in range(2):
    for longest in (50, 90):
        torch.ops.aten._flash_attention_forward(
            heads, heads, heads, ends, ends, longest, longest, 0.0, False, False)
    weight.sum().backward()
    optimizer.step()
"""


def test_flops_of_packed_samples_follow_from_the_longest_of_each_call(tmp_path):
    trace, _ = run(tmp_path, PACKED)
    found = [item.flops for item in trace.work if isinstance(item, KernelLaunch) and item.flops]
    assert found == [2 * 2 * (2 * 4 * longest * longest * 64) for longest in (50, 90)]  # 2 samples, 2 products


PEAKS = """
import torch
from torch.nn.functional import scaled_dot_product_attention
heads = torch.ones(32, 14, 110, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
weights = torch.ones(32, 151936, device="cuda")
def more_at_most(call):
    torch.cuda.reset_peak_memory_stats()
    before, result = torch.cuda.memory_allocated(), call()
    return torch.cuda.max_memory_allocated() - before
for trains in (True, False):
    with torch.set_grad_enabled(trains):
        print("more", more_at_most(lambda: scaled_dot_product_attention(heads, heads, heads)))
print("more", more_at_most(lambda: torch.multinomial(weights, 1)))
"""


def test_a_generation_keeps_no_sums_of_scores_and_divides_by_a_draw(tmp_path):
    """Blocks that a memory history of a generation on an H100 has: 32 samples, 14 heads of 64, 110 tokens; 151,936
    words. The sums, 197,120 bytes, are those of a backward."""
    _, printed = run(tmp_path, PEAKS)
    seed_and_offset, out, index = 2 * 512, 6_307_840, 512
    assert [int(line.split()[1]) for line in printed.splitlines() if line.startswith("more")] == [
        out + 197_120 + seed_and_offset,
        out + seed_and_offset,
        19_447_808 + index,
    ]


BIASED = """
import torch
every, chosen = torch.ones(8, 128, dtype=torch.bool, device="cuda"), torch.arange(8, device="cuda")
bias = torch.ones(128, 128, 6, device="cuda", requires_grad=True)
heads = torch.ones(8, 6, 128, 64, device="cuda").requires_grad_()
every[chosen[:, None], torch.arange(128, device="cuda")[None]]
scores = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, bias.permute(2, 0, 1)[None], 0.1)
scores.sum().backward()
heads.detach()[torch.arange(8, device="cuda")[:, None], torch.arange(6, device="cuda")] = bias[0, 0, 0].detach()
picked = torch.ones(8, 128, device="cuda", requires_grad=True)[chosen[:, None], torch.arange(128, device="cuda")]
picked.sum().backward()
assert bias.grad is not None and heads.grad is not None
"""


def test_scores_get_their_mask_in_place_and_indices_of_unequal_strides_are_copied(tmp_path):
    """What a memory history of mt0-small on an H200 has at its index of a mask, and at its attention with a position
    bias, whose rows are no neighbours."""
    trace, _ = run(tmp_path, BIASED)
    made = [event.nbytes for event in trace.events if isinstance(event, Alloc)]
    at = made.index(1024, made.index(8 * 6 * 128 * 64 * 4) + 1)
    assert made[at + 1 : at + 4] == [8192, 8192, 1024]
    scaled, scores, of_cublas, mask = 1_572_864, 3_145_728, 32 << 20, 786_432
    softmax = [scores, mask, 6_144, 4]
    assert made[at + 4 : at + 14] == [scaled, scaled, scores, of_cublas, *softmax, mask, scores]
    put = made.index(8 * 6 * 8, at + 14)
    assert made[put : put + 2] == [384, 384]


FLOATS = """
import torch
heads = torch.ones(8, 6, 3, 64, device="cuda", requires_grad=True)
keys = torch.ones(8, 6, 128, 64, device="cuda", requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(heads, keys, keys).sum().backward()
"""


def test_the_backward_of_the_efficient_kernel_requests_its_results_then_what_it_gives_back(tmp_path):
    """Sizes as in a memory history of mt0-small on an H200: 36,864, 1,024 and 787,456 bytes, rounded up."""
    trace, _ = run(tmp_path, FLOATS)
    made = [event.nbytes for event in trace.events if isinstance(event, Alloc)]
    query, keys = 36_864, 1_572_864
    at = max(index for index, size in enumerate(made) if size == 787_200)
    assert made[at - 6 : at + 1] == [query, keys, keys, query, 576, 576, 787_200]
