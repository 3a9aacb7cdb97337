"""Where the driver places allocations after others were freed: ``python probe_frees.py > frees.csv``.

Each case has its own process. The random cases allocate, free some or all, and allocate again, as torch does when it
empties its cache between two trainings of a process.
"""

import ctypes
import random
import subprocess
import sys
from collections.abc import Iterator

import torch

MIB = 2**20
CASES = (
    *(f"middle {size}" for size in (20, 34, 580, 600, 1100)),  # what a freed region in the middle is used for
    *(f"lowest {size}" for size in (20, 34, 580, 600, 1100)),
    *(f"all {size}" for size in (2, 20, 34, 600)),
    *(f"two {size}" for size in (20, 600, 1100)),  # two neighbouring regions are freed
    *(f"random {seed}" for seed in range(12)),
)


def calls(case: str) -> Iterator[tuple[str, int]]:
    """Yield ``("allocate", MiB)`` and ``("free", number of the allocation)``."""
    name, number = case.split()
    if name != "random":
        yield from (("allocate", 600) for _ in range(4))
        freed = {"middle": (1,), "lowest": (3,), "all": (0, 1, 2, 3), "two": (1, 2)}[name]
        yield from (("free", index) for index in freed)
        yield from (("allocate", int(number)) for _ in range(3))
        yield from (("allocate", size) for size in (34, 600, 20, 1100, 2))
        return
    draw = random.Random(int(number))
    held: list[int] = []
    made = 0
    for _ in range(6):
        for _ in range(draw.choice((10, 25, 40))):
            yield "allocate", draw.choice([2, 2, 2, 20, 20, 22, 34, 66, 130, 258, 600])
            held.append(made)
            made += 1
        kept = draw.choice((0, 0.2, 0.5, 0.8))
        for index in [index for index in held if draw.random() >= kept]:
            held.remove(index)
            yield "free", index


def probe(case: str) -> None:
    torch.ones(1, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")
    made: list[tuple[int, int]] = []
    for call, number in calls(case):
        if call == "allocate":
            address = ctypes.c_uint64()
            assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(number * MIB)) == 0
            made.append((number, address.value))
            size, place = made[-1]
        else:
            size, place = made[number]
            assert driver.cuMemFree_v2(ctypes.c_uint64(place)) == 0
        print(f"{case},{call},{size},{place:#x}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        probe(sys.argv[1])
    else:
        print("case,call,mib,address", flush=True)
        for each in CASES:
            subprocess.run([sys.executable, __file__, each], check=True)
