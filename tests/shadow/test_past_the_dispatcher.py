"""What torch or a library would ask CUDA past the dispatcher is answered, or ends with its own name."""

import subprocess
import sys

import pytest

from memlab.simulator.trace.events import RecordStream
from memlab.simulator.trace.work_items import Copy, HostWaits
from tests.shadow.one_rank import run, run_script

pytestmark = pytest.mark.shadow

ONE_KERNEL = """
import torch
torch.nn.functional.silu(torch.ones(1 << 20, device="cuda", requires_grad=True)).sum().backward()
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.SiLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()).cuda()
for mode in (torch.no_grad, torch.inference_mode):
    with mode():
        torch.cuda.reset_peak_memory_stats()
        model(torch.ones(8, 3, 64, 64, device="cuda"))
        print(torch.cuda.max_memory_allocated())
"""


def test_an_operator_with_a_kernel_for_cuda_is_not_taken_apart(tmp_path):
    trace, printed = run(tmp_path, ONE_KERNEL)
    assert len(set(printed.splitlines())) == 1
    assert "aten.silu_backward.default" in {site.op for site in trace.sites}
    assert "aten.sigmoid.default" not in {site.op for site in trace.sites}


FILES = """
import torch
weight = torch.ones(1024, 1024)
state = {"weight": weight, "rows": weight.view(4, -1)[1:], "ids": torch.arange(5)}
for name, options in (("new", {}), ("old", {"_use_new_zipfile_serialization": False})):
    torch.save(state, name + ".pt", **options)
torch.serialization.location_tag = lambda storage: "cuda:0"
torch.save(state, "from_a_gpu.pt")
"""

LOADED = """
import torch
def loaded(name, **options):
    before = torch.cuda.memory_allocated()
    state = torch.load(name + ".pt", **options)
    shared = state["rows"].untyped_storage().data_ptr() == state["weight"].untyped_storage().data_ptr()
    ids = state["ids"].tolist() if name != "old" else len(state["ids"])
    print({str(each.device) for each in state.values()}, shared, ids, torch.cuda.memory_allocated() - before >> 10)
loaded("new", map_location=torch.device("cuda"))
loaded("new", map_location="cuda:0", mmap=True)
loaded("new", map_location={"cpu": "cuda:0"})
loaded("new", map_location=lambda storage, place: storage.cuda(0))
loaded("old", map_location="cuda")
loaded("from_a_gpu")
loaded("from_a_gpu", map_location="cpu")
"""


LISTS = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(2):
    assert torch.arange(60, device="cuda").view(3, 20).tolist()[2][19] == 59
    model(torch.ones(8, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_a_list_of_numbers_is_one_copy_to_the_host(tmp_path):
    work = run(tmp_path, LISTS)[0].work
    assert [item.nbytes for item in work if isinstance(item, Copy)] == [60 * 8]
    assert not any(isinstance(item, HostWaits) for item in work)


def test_a_real_file_is_loaded_to_a_gpu_without_a_real_storage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", FILES], check=True)
    there = "{'cuda:0'} True [0, 1, 2, 3, 4] 4096"
    assert run(tmp_path, LOADED)[1].splitlines() == [
        *[there] * 4,
        "{'cuda:0'} True 5 4096",
        there,
        "{'cpu'} True [0, 1, 2, 3, 4] 0",
    ]


ANSWERED = """
import torch
from accelerate import init_empty_weights
from torch.utils._mode_utils import no_dispatch
print("CUDA Runtime" in torch.__config__.show())
layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
encoder, padding = torch.nn.TransformerEncoder(layer, 2).cuda().eval(), torch.zeros(2, 8, dtype=torch.bool).cuda()
for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
    with mode():
        print(encoder(torch.randn(2, 8, 64, device="cuda"), src_key_padding_mask=padding).shape)
with init_empty_weights():
    model = torch.nn.Linear(2048, 2048)
print({str(weight.device) for weight in model.parameters()}, isinstance(model.weight, torch.nn.Parameter))
print({str(weight.device) for weight in model.to_empty(device="cuda").parameters()})
with no_dispatch():  # as FSDP does
    model.weight.record_stream(torch.cuda.Stream())
torch.nn.BatchNorm1d(64).cuda()(torch.randn(2, 64, device="cuda")).sum().backward()  # a result that nobody needs
small = torch.randn(4, 2, device="cuda")
print(torch.nn.functional.logsigmoid(small).shape)  # a result that only the host's kernel fills
print(torch.nn.functional.batch_norm(small, small[0], small[0].abs()).shape, small.sum().sum(0).shape)
"""

ON_CUDA = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
sounds = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
labels, lengths = torch.ones(4, 10, device="cuda").long(), torch.tensor([10, 7, 8, 9])
for places in (labels, labels.masked_select(torch.arange(10, device="cuda") < lengths.cuda()[:, None])):
    for where in ("cpu", "cuda"):
        F.ctc_loss(sounds.log_softmax(-1), places, torch.full((4,), 50).to(where), lengths.to(where)).backward()
print(sounds.grad.shape)
image = torch.randn(1, 3, 16, 16, device="cuda", requires_grad=True)
F.grid_sample(image, torch.rand(1, 8, 8, 2, device="cuda"), align_corners=False).sum().backward()
dist.init_process_group("nccl")
nn.SyncBatchNorm(3).cuda()(image).sum().backward()
nn.GRUCell(16, 32).cuda()(image[0, 0]).sum().backward()
F.multi_margin_loss(image[0, 0], labels[0].repeat(2)[:16]).backward()
rates = torch.ones(4, device="cuda", requires_grad=True)
for distribution in (torch.distributions.Dirichlet(rates), torch.distributions.Gamma(rates, rates)):
    distribution.rsample().sum().backward()
for kind in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.AdamW):
    kind([rates], lr=0.1, fused=True).step()
print(torch.fake_quantize_per_tensor_affine(image, 0.1, 0, 0, 255).shape, image.grad.shape, rates.grad.shape)
"""


def test_operators_without_a_fake_implementation_have_the_shapes_of_cuda(tmp_path):
    (tmp_path / "script.py").write_text(ON_CUDA)
    _, printed = run_script(tmp_path, tmp_path / "script.py", rank=0)
    assert printed.splitlines() == [
        "torch.Size([50, 4, 20])",
        "torch.Size([1, 3, 16, 16]) torch.Size([1, 3, 16, 16]) torch.Size([4])",
    ]


SMALL = ("torch.Size([4, 2])", "torch.Size([4, 2]) torch.Size([])")


def test_what_has_a_rule_is_answered(tmp_path):
    trace, printed = run(tmp_path, ANSWERED)
    assert printed.splitlines() == ["True", *["torch.Size([2, 8, 64])"] * 3, "{'meta'} True", "{'cuda:0'}", *SMALL]
    assert len([event for event in trace.events if isinstance(event, RecordStream)]) == 1


ENDED = """
import torch, torch.nn.attention.flex_attention
from memlab.simulator.rank.unpredictable import explain
ones, targets, lengths = torch.ones(50, 4, 20, device="cuda"), torch.ones(4, 10).long().cuda(), torch.tensor([10] * 4)
ATTEMPTS = (
    lambda: torch.histogram(ones, 10),
    lambda: torch.nn.functional.ctc_loss(ones, targets.int().flatten(), lengths * 5, lengths),
    lambda: torch.nn.attention.flex_attention.flex_attention(*[ones[None]] * 3),
    lambda: torch._cudnn_rnn_flatten_weight([ones[0, 0]] * 4, 4, 1, 2, 1, 0, 1, False, False),
    lambda: torch.UntypedStorage(8, device="cuda"),
    lambda: torch.backends.cuda.cufft_plan_cache.clear(),
    lambda: torch.cuda.caching_allocator_alloc(8),
)
for mode in (torch.enable_grad, torch.inference_mode):
    for attempt in ATTEMPTS:
        try:
            with mode():
                attempt()
        except Exception as error:
            print("-", explain(error))
"""

NAMED = (
    "aten.histogram.bin_ct has no fake",
    "cuDNN may compute the CTC loss",
    "flex_attention is not predicted",
    "aten._cudnn_rnn_flatten_weight.default has no fake",
    "a prediction has no answer: lambda: torch.UntypedStorage(8",
    "it would access cuFFT plan cache, which is not predicted",
    "_cuda_cudaCachingAllocator_raw_alloc asks NVIDIA's driver",
)


def test_what_has_none_ends_with_its_own_name_at_the_line_of_the_script(tmp_path):
    said = [line for line in run(tmp_path, ENDED)[1].splitlines() if line.startswith("- ")]
    assert len(said) == 2 * len(NAMED)
    for number, (name, line) in enumerate(zip(2 * NAMED, said, strict=True)):
        assert f"script.py:{6 + number % len(NAMED)}: " in line and name in line


SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
torch.cuda.set_device(0)
dist.init_process_group("nccl")
model = FullyShardedDataParallel(torch.nn.Linear(64, 64), sync_module_states=True, device_id=0)
model(torch.randn(2, 64, device="cuda")).sum().backward()
"""


def test_fsdp_sends_the_weights_of_rank_0(tmp_path):
    (tmp_path / "script.py").write_text(SHARDED)
    trace, _ = run_script(tmp_path, tmp_path / "script.py", rank=0)
    assert any(isinstance(event, RecordStream) for event in trace.events)
