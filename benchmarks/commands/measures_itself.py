"""What both scripts share: a model, texts of different lengths, and a clock that knows nothing of memlab.

The scripts are called with OUTPUT SIZE WARMUP STEPS [KIND...]: where to write the figures, a name of ``SIZES``, the
steps of the warm-up, and those of each block (blocks.py), of which there is one for each KIND.
"""

import json
import resource
import sys
import time

import torch
from blocks import Blocks
from transformers import LlamaConfig, LlamaForCausalLM

TINY = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 2000,
}
LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
"""The shape of Llama-3.2-1B."""

SIZES = {"tiny": (TINY, 64), "1b": (LLAMA_1B, 1024)}
"""Size -> configuration, and the most tokens of a text."""


def read_arguments() -> tuple[str, str, Blocks]:
    """Return the path for the figures, the size, and the steps."""
    output, size, warmup, steps, *kinds = sys.argv[1:]
    return output, size, Blocks(int(warmup), int(steps), kinds)


def model_and_rows(size: str, blocks: Blocks, device: str):
    """Return a model with random weights, a batch of 4 texts for each step, and what pads the texts of a batch.

    All blocks have the same batches, in the same order.
    """
    shape, longest = SIZES[size]
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16 if device == "cuda" else torch.float32)

    def texts(steps: int) -> list[dict[str, torch.Tensor]]:
        lengths = torch.randint(longest // 4, longest + 1, (4 * steps,)).tolist()
        return [{"input_ids": torch.randint(3, shape["vocab_size"], (length,))} for length in lengths]

    return model.train(), texts(blocks.warmup) + texts(blocks.steps) * len(blocks.kinds), pad


def pad(rows):
    width = max(len(row["input_ids"]) for row in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row["input_ids"])] = row["input_ids"]
        mask[index, : len(row["input_ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class Clock:
    """Times between calls of ``step``: with events on a GPU, which nobody waits for before the end."""

    def __init__(self, blocks: Blocks):
        self.blocks = blocks
        self.marks = [self.mark()]

    def mark(self):
        if not torch.cuda.is_available():
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def step(self):
        self.marks.append(self.mark())
        self.blocks.step()

    def write(self, path):
        """Write seconds and bytes. On a CPU the peak is that of the resident set."""
        pairs = list(zip(self.marks, self.marks[1:], strict=False))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            seconds = [begin.elapsed_time(end) / 1000 for begin, end in pairs]
            peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        else:
            seconds = [end - begin for begin, end in pairs]
            peaks = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, None
        with open(path, "w") as file:
            json.dump({"step_seconds": seconds, "peak_bytes": peaks[0], "peak_reserved_bytes": peaks[1]}, file)
