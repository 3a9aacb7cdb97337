"""Cost of torch's ring of allocator actions without stacks, which memlab does not keep: for each request, and in steps.

    python -m benchmarks.allocator_ring

Prints the host's time for a request and its free with the ring and without, and for three models the step time that the
ring adds: the median over pairs of neighbouring blocks of steps, with a bootstrap interval of 95 %. Needs a GPU. The
first step of a block is left out. The first two models are so small that the device waits for the host.
"""

import random
import time
from collections.abc import Iterator
from statistics import median

import torch

ENTRIES = 10_000
PAIRS, STEPS, WARMUP = 40, 10, 20
REQUESTS = 100_000
SHAPES = ((12, 768, 1, 128), (24, 1024, 4, 512), (16, 2048, 4, 1024))
"""Layers, width, batch and tokens of each model."""


def main() -> None:
    print(torch.__version__, torch.cuda.get_device_name())
    bare, with_ring = (median(values) for values in seconds_of_requests())
    print(f"request and free: {bare * 1e9:.0f} ns, with the ring {with_ring * 1e9:.0f} ns")
    for shape in SHAPES:
        report(*shape)


def keep_ring(on: bool) -> None:
    if on:
        torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=ENTRIES)
    else:
        torch.cuda.memory._record_memory_history(enabled=None)


def seconds_of_requests() -> tuple[list[float], list[float]]:
    """Return seconds of a request with its free, in blocks without the ring and with it."""
    found: tuple[list[float], list[float]] = ([], [])
    for on in (False, True, True, False) * 5:
        keep_ring(on)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(REQUESTS):
            torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        found[on].append((time.perf_counter() - began) / REQUESTS)
    return found


def report(layers: int, width: int, batch: int, tokens: int) -> None:
    pairs = list(blocks(layers, width, batch, tokens))
    ratios = [with_ring / bare - 1 for bare, with_ring in pairs]
    low, high = interval(ratios)
    step = median(bare for bare, _ in pairs)
    print(
        f"{layers} layers, width {width}, {batch} x {tokens} tokens: step {step * 1e3:.2f} ms, "
        f"the ring adds {median(ratios):+.3%} (95 %: {low:+.3%} to {high:+.3%})",
        flush=True,
    )


def blocks(layers: int, width: int, batch: int, tokens: int) -> Iterator[tuple[float, float]]:
    """Yield the seconds of a step without the ring and with it, block by block."""
    torch.manual_seed(0)
    options = {"batch_first": True, "dropout": 0.0, "device": "cuda", "dtype": torch.bfloat16}
    layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, **options)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    inputs = torch.randn(batch, tokens, width, device="cuda", dtype=torch.bfloat16)

    def run(steps: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            model(inputs).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    run(WARMUP)
    for pair in range(PAIRS):
        seconds = {}
        for on in (False, True) if pair % 2 else (True, False):
            keep_ring(on)
            run(1)
            seconds[on] = run(STEPS)
        yield seconds[False], seconds[True]


def interval(values: list[float], samples: int = 4000) -> tuple[float, float]:
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(samples))
    return medians[int(0.025 * samples)], medians[int(0.975 * samples)]


if __name__ == "__main__":
    main()
