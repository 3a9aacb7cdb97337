"""Where the driver places allocations on a GPU: ``python probe.py > placed.csv``. Each case has its own process."""

import ctypes
import random
import subprocess
import sys

import torch

MIB = 2**20
CASES = ("two", "twenty", "grow", "model", "random 1", "random 2")


def sizes(case: str) -> list[int]:
    """Return the sizes of allocations in MiB."""
    name, *seed = case.split()
    if name == "two":
        return [2] * 60
    if name == "twenty":
        return [20] * 40
    if name == "grow":
        return [14, 2, 32, 2, 2, 14, 14, 14, 14, 2] + [34] * 20 + [260, 260, 94, 260, 132, 150]
    if name == "model":
        return [2] * 3 + [20] * 6 + [150] * 4 + [594] * 2 + [20] * 40 + [34] * 8 + [2] * 6
    numbers = random.Random(int(seed[0]))
    return [numbers.choice([2, 2, 2, 20, 20, 22, 34, 66, 130, 258, 600, 1100]) for _ in range(60)]


def probe(case: str) -> None:
    torch.ones(1, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")

    def allocate(size: int) -> int:
        address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size * MIB)) == 0
        print(f"{case},allocate,{size},{address.value:#x}")
        return address.value

    held = [(size, allocate(size)) for size in sizes(case)]
    for index in (5, 20, 33):
        size, address = held[index]
        assert driver.cuMemFree_v2(ctypes.c_uint64(address)) == 0
        print(f"{case},free,{size},{address:#x}")
    for size in (2, 20, 34, 20, 2, 600):
        allocate(size)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        probe(sys.argv[1])
    else:
        print("case,call,mib,address", flush=True)
        for each in CASES:
            subprocess.run([sys.executable, __file__, each], check=True)
