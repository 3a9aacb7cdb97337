"""What copies between a GPU and its host take, and the host's own work: python benchmarks/host_links.py [--processes N]

Every process uses its own GPU, and all processes run the same operation at the same time. The rate of one process is in
GB/s: for a copy, it counts the bytes on the GPU; for work on the host, the bytes read and written. The rates are for
single operations; docs/step_time.md has the measured times of whole steps with offload.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator

import torch
from torch.multiprocessing import get_context

SECONDS = 0.5
"""Seconds for which each operation is repeated."""

ELEMENTS = 1 << 27


def operations() -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield name, number of bytes, and function of each operation."""
    for mib in (1, 8, 64, 512):
        nbytes = mib << 20
        on_gpu = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        pageable = torch.zeros(nbytes, dtype=torch.uint8)
        pinned = pageable.pin_memory()
        for name, host in (("pinned", pinned), ("pageable", pageable)):
            yield f"{mib} MiB from {name} memory", nbytes, lambda a=on_gpu, b=host: a.copy_(b, non_blocking=True)
            yield f"{mib} MiB to {name} memory", nbytes, lambda a=on_gpu, b=host: b.copy_(a, non_blocking=True)
    single_gpu = torch.zeros(ELEMENTS, device="cuda")
    half_gpu = torch.zeros(ELEMENTS, dtype=torch.bfloat16, device="cuda")
    single, gradient = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    half = torch.zeros(ELEMENTS, dtype=torch.bfloat16)
    yield "fp32 to the host, converted to bf16 there", 4 * ELEMENTS, lambda: half.copy_(single_gpu)
    yield "bf16 from the host, converted from fp32 there", 2 * ELEMENTS, lambda: half_gpu.copy_(single)
    yield "host: in-place product", 8 * ELEMENTS, lambda: single.mul_(1.0)
    yield "host: fp32 to bf16", 6 * ELEMENTS, lambda: half.copy_(single)
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    parameter = torch.nn.Parameter(single)
    parameter.grad = gradient
    yield "host: CPU Adam", 28 * ELEMENTS, DeepSpeedCPUAdam([parameter]).step


def measure(rank: int, together, found) -> None:
    try:
        _measure(rank, together, found)
    except BaseException:
        together.abort()  # otherwise the other processes wait for ever
        raise


def _measure(rank: int, together, found) -> None:
    torch.cuda.set_device(rank)
    for name, nbytes, operate in operations():
        operate()
        torch.cuda.synchronize()
        together.wait()
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            operate()
            torch.cuda.synchronize()
            done += 1
        found.put((name, nbytes * done / (time.perf_counter() - began) / 1e9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=torch.cuda.device_count())
    count = parser.parse_args().processes
    context = get_context("spawn")
    together, found = context.Barrier(count), context.Queue()
    processes = [context.Process(target=measure, args=(rank, together, found)) for rank in range(count)]
    for process in processes:
        process.start()
    rates: dict[str, list[float]] = {}
    while any(process.is_alive() for process in processes) or not found.empty():
        if not found.empty():
            name, rate = found.get()
            rates.setdefault(name, []).append(round(rate, 2))
        else:
            time.sleep(0.05)
    if any(process.exitcode for process in processes):
        raise SystemExit("A process failed; what it said is above.")
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    print(json.dumps({**about, "processes": count, "gb_per_s": rates}, indent=1))


if __name__ == "__main__":
    main()
