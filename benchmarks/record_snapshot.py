"""Recorder of what torch's allocator really does, for tests of the replay: run it on a GPU, and commit its output.

    python benchmarks/record_snapshot.py tests/data/allocator_default.json
    python benchmarks/record_snapshot.py tests/data/allocator_expandable.json --expandable

It runs a small training with torch alone: two streams, ``record_stream``, and sizes on both sides of the allocator's
limits.
"""

import argparse
import json
import os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("output", type=Path)
parser.add_argument("--expandable", action="store_true")
arguments = parser.parse_args()
conf = f"expandable_segments:{arguments.expandable}"
os.environ |= {"PYTORCH_CUDA_ALLOC_CONF": conf, "PYTORCH_ALLOC_CONF": conf}  # before torch is imported

import torch  # noqa: E402
from torch import nn  # noqa: E402

SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
KEPT = ("action", "addr", "size", "stream")


def train(steps: int = 4) -> None:
    """Train a small model. Each step has its own sequence length, and a side stream concatenates the gradients."""
    blocks = [nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(6)]
    model = nn.Sequential(nn.Embedding(8192, 1024), *blocks, nn.Linear(1024, 8192)).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    side = torch.cuda.Stream()
    for step in range(steps):
        tokens = torch.randint(8192, (2, 200 + 313 * step), device="cuda")
        logits = model(tokens).float()
        nn.functional.cross_entropy(logits.view(-1, 8192), tokens.view(-1)).backward()
        del logits
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).float()
            for p in model.parameters():
                p.grad.record_stream(side)
        flat.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(side)
        del flat
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step == 1:
            torch.cuda.empty_cache()


def main() -> None:
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python", context=None)
    train()
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    trace = [{key: entry[key] for key in KEPT} for entry in snapshot["device_traces"][torch.cuda.current_device()]]
    reserved = sum(SEGMENTS.get(entry["action"], 0) * entry["size"] for entry in trace)
    assert reserved == torch.cuda.memory_reserved(), "the history does not begin with an empty allocator"
    facts = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "expandable_segments": arguments.expandable,
        "max_reserved": torch.cuda.max_memory_reserved(),
        "max_allocated": torch.cuda.max_memory_allocated(),
    }
    arguments.output.write_text(json.dumps({**facts, "trace": trace}, separators=(",", ":")))
    print(f"{arguments.output}: {len(trace)} entries, {facts}")


if __name__ == "__main__":
    main()
