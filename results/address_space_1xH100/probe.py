"""Where the driver places allocations on a GPU: ``python probe.py placed`` or ``python probe.py frees``, as CSV.

Each case has its own process. ``placed`` is about allocations one after another. In ``frees``, some or all are freed
before others come, as torch does when it empties its cache between two trainings of a process.
"""

import ctypes
import random
import subprocess
import sys
from collections.abc import Iterator

MIB = 2**20
CASES = {
    "placed": ("two", "twenty", "grow", "model", "random 1", "random 2"),
    "frees": (
        *(f"middle {size}" for size in (20, 34, 580, 600, 1100)),  # what a freed region in the middle is used for
        *(f"lowest {size}" for size in (20, 34, 580, 600, 1100)),
        *(f"all {size}" for size in (2, 20, 34, 600)),
        *(f"two {size}" for size in (20, 600, 1100)),  # two neighbouring regions are freed
        *(f"random {seed}" for seed in range(12)),
    ),
}

Call = tuple[str, int]
"""``("allocate", MiB)`` or ``("free", number of the allocation)``."""


def placed(case: str) -> Iterator[Call]:
    yield from (("allocate", size) for size in sizes(case))
    yield from (("free", number) for number in (5, 20, 33))
    yield from (("allocate", size) for size in (2, 20, 34, 20, 2, 600))


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
    draw = random.Random(int(seed[0]))
    return [draw.choice([2, 2, 2, 20, 20, 22, 34, 66, 130, 258, 600, 1100]) for _ in range(60)]


def frees(case: str) -> Iterator[Call]:
    name, number = case.split()
    if name == "random":
        yield from at_random(random.Random(int(number)))
        return
    yield from (("allocate", 600) for _ in range(4))
    yield from (("free", index) for index in {"middle": (1,), "lowest": (3,), "all": (0, 1, 2, 3), "two": (1, 2)}[name])
    yield from (("allocate", int(number)) for _ in range(3))
    yield from (("allocate", size) for size in (34, 600, 20, 1100, 2))


def at_random(draw: random.Random) -> Iterator[Call]:
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


def probe(case: str, calls: Iterator[Call]) -> None:
    import torch

    torch.ones(1, device="cuda")
    driver = ctypes.CDLL("libcuda.so.1")
    made: list[tuple[int, int]] = []
    for call, number in calls:
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
    name, *chosen = sys.argv[1:]
    if chosen:
        probe(chosen[0], {"placed": placed, "frees": frees}[name](chosen[0]))
    else:
        print("case,call,mib,address", flush=True)
        for each in CASES[name]:
            subprocess.run([sys.executable, __file__, name, each], check=True)
