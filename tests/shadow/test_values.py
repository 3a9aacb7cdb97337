"""Integers and masks keep their values on a GPU that is not there; floats are as in a healthy run, and that is said."""

import re
import subprocess
import sys

import pytest

from memlab.simulator.trace.events import Alloc
from tests.shadow.one_rank import run

pytestmark = pytest.mark.shadow

MODES = ("enable_grad", "no_grad", "inference_mode")


def run_in_each_mode(folder, lines):
    """Return the trace of a script that is run three times in one process, and what it printed each time."""
    script = "def rules():" + lines.replace("\n", "\n ")  # the lines keep their numbers
    calls = "".join(f"\nwith torch.{mode}(): print('--'), rules()" for mode in MODES)
    trace, printed = run(folder, f"{script}\nimport torch{calls}\n")
    return trace, [text.splitlines() for text in printed.split("--\n")[1:]]


KNOWN = """
import torch
ids = torch.tensor([[5, 7, 0, 0], [3, 0, 0, 0]]).cuda()
mask = ids != 0
positions = mask.cumsum(-1) - 1
labels = ids.masked_fill(~mask, -100)
packed = torch.zeros(8, dtype=torch.long, device="cuda")
packed[2:5] = ids[mask]
parts = packed.view(2, 4).split([1, 1])
parts[1].fill_(9)
padded = torch.nn.functional.pad(ids, (0, 2), value=1)
print(mask.sum().item(), mask.all().item(), mask[:, 0].all().item())
print(positions.tolist(), labels.tolist())
print(mask.nonzero().tolist(), torch.masked_select(ids, mask).tolist())
print(packed.cpu().numpy().tolist(), padded[:, -1].tolist(), torch.equal(ids, ids.clone()))
print(torch.arange(3, device="cuda").repeat_interleave(torch.tensor([1, 0, 2], device="cuda")).tolist())
ids[0, 1:3], ids[ids == 3] = 8, 4
on_host = torch.empty(2, 4, dtype=torch.long)
on_host.copy_(ids)
print(on_host.tolist(), ids.to("cpu", torch.int32)[0].tolist(), [int(each) for each in ids[1]], f"{ids.sum():03d}")
print(bool(mask.any()), float(ids.float().mean()), ids.new_zeros(2).tolist(), torch.as_tensor([ids[0, 0]]).tolist())
print(torch.asarray(7, device=ids.device).item(), torch.asarray(ids, copy=True)[0].tolist())
print([each.tolist() for each in torch.where(mask)], ids.unique().tolist(), torch.isin(ids, ids[:1, :1])[0].tolist())
print(torch.bincount(ids.view(-1), minlength=10).tolist(), torch.nn.functional.one_hot(ids).shape[-1])
print(torch.bincount(torch.rand(1 << 13, device="cuda").long(), minlength=20).shape[0])
"""


def test_integers_and_masks_are_true(tmp_path):
    trace, printed = run_in_each_mode(tmp_path, KNOWN)
    assert printed == 3 * [
        [
            "3 False True",
            "[[0, 1, 1, 1], [0, 0, 0, 0]] [[5, 7, -100, -100], [3, -100, -100, -100]]",
            "[[0, 0], [0, 1], [1, 0]] [5, 7, 3]",
            "[0, 0, 5, 7, 9, 9, 9, 9] [1, 1] True",
            "[0, 2, 2]",
            "[[5, 8, 8, 0], [4, 0, 0, 0]] [5, 8, 8, 0] [4, 0, 0, 0] 025",
            "True 3.125 [0, 0] [5]",
            "7 [5, 8, 8, 0]",
            "[[0, 0, 1], [0, 1, 0]] [0, 4, 5, 8] [True, False, False, False]",
            "[4, 0, 0, 0, 1, 1, 0, 0, 2, 0] 9",
            "20",
        ]
    ]
    assert len(trace.assumed) == 1  # the last line


UNKNOWN = """
import torch
weights = torch.nn.Linear(64, 1000).cuda()
loss = weights(torch.randn(8, 64, device="cuda")).logsumexp(-1).mean()
if loss.item() > 100:
    raise ValueError("diverged")
if not torch.isfinite(loss):
    print("not finite")
tokens = weights(torch.randn(8, 64, device="cuda")).argmax(-1)
print(loss.isnan().item(), len(set(tokens.tolist())) > 1, max(tokens.tolist()) < 1000)
"""


def test_values_that_are_assumed_are_listed_with_their_line(tmp_path):
    trace, printed = run_in_each_mode(tmp_path, UNKNOWN)
    assert [lines[-1] for lines in printed] == 3 * ["False True True"]
    lines = {int(re.search(r" at script\.py:(\d+) ", where).group(1)) for where in trace.assumed}
    assert lines == {5, 7, 10}
    assert trace.assumed["loss.item() at script.py:5 was taken as 1.0, which decided a branch"] == 3
    assert trace.assumed["torch.isfinite(loss) at script.py:7 was taken as True, which decided a branch"] == 3
    assert trace.assumed["loss.isnan().item() at script.py:10 was taken as False"] == 3


HEALTHY = """
import torch
model = torch.nn.Linear(3000, 3000).cuda()
optimizer = torch.optim.AdamW(model.parameters())
weight, scaler = model.weight, torch.amp.GradScaler("cuda")
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(8, 3000, device="cuda")).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
print(len(optimizer.state), scaler.get_scale())
"""


def test_a_healthy_run_has_no_overflow_so_that_no_step_is_skipped(tmp_path):
    assert run(tmp_path, HEALTHY)[1].splitlines() == ["2 65536.0"]


CONDITIONS = """
import torch
weight = torch.nn.Linear(3000, 3000).cuda().weight
loss = (weight @ weight).mean()
print(bool(torch.isfinite(loss)), torch.isfinite(weight).all().item(), bool(loss < float("inf")), bool(loss > 100))
troubles = torch.zeros(1, device="cuda")
troubles += torch.isfinite(weight.detach().amax()).logical_not()
print(troubles.bool().item())
print(torch.isnan(weight).any().item(), weight.isinf().float().max().item(), loss.isnan().is_nonzero())
print(torch.allclose(weight, weight * 2), torch.equal(weight, weight * 2), loss.cpu().numpy(), f"{loss:.1f}")
"""


def test_floats_of_a_healthy_run_are_finite(tmp_path):
    assert run_in_each_mode(tmp_path, CONDITIONS)[1] == 3 * [
        ["True True True False", "False", "False 0.0 False", "True False 1.0 1.0"]
    ]


VIEWS = """
import torch
flat = torch.empty(4 << 20, device="cuda")
parts = [*flat.split(1 << 20), *flat.chunk(2), *flat.view(4, -1).unbind()]
del flat
parts[0].zero_()
"""


def test_split_chunk_and_unbind_take_no_memory_of_their_own(tmp_path):
    trace, _ = run_in_each_mode(tmp_path, VIEWS)
    assert [event.nbytes for event in trace.events if isinstance(event, Alloc)] == 3 * [16 << 20]


RANDOM_STATE = """
import torch
torch.manual_seed(3)
before = torch.rand(1).item()
torch.manual_seed(3)
on_the_gpu = torch.randint(10, (64,), device="cuda")
print(torch.rand(1).item() == before, 0 <= on_the_gpu.min().item() <= on_the_gpu.max().item() < 10)
"""


def test_the_random_numbers_of_the_host_are_those_of_a_gpu_run(tmp_path):
    assert run_in_each_mode(tmp_path, RANDOM_STATE)[1] == 3 * [["True True"]]


LARGE_ON_THE_HOST = """
import torch
torch.manual_seed(3)
torch.nn.Linear(1100, 1000)
torch.randn((1 << 20) + 5), torch.empty(1 << 20, dtype=torch.float64).normal_(), torch.rand(1 << 21).bfloat16()
torch.empty(1 << 20).normal_(generator=torch.Generator().manual_seed(1))
torch.ones(4, device="cuda") if torch.cuda.is_available() else None
print(torch.randperm(1000)[:3].tolist())
"""


def test_large_tensors_on_the_host_take_their_random_numbers(tmp_path):
    plain = subprocess.run([sys.executable, "-c", LARGE_ON_THE_HOST], capture_output=True, text=True, check=True)
    assert run(tmp_path, LARGE_ON_THE_HOST)[1].splitlines()[-1:] == plain.stdout.splitlines()
