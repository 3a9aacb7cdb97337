"""What torch's allocator counted in this process, read at its exit without memlab: OWN_COUNTERS names the folder."""

import atexit
import json
import os
import sys


def write_counters() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    statistics = torch.cuda.memory_stats()
    names = ("allocated_bytes.all.peak", "active_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries")
    counters = {"pid": os.getpid(), "rank": os.environ.get("RANK", "0"), **{name: statistics[name] for name in names}}
    with open(os.path.join(os.environ["OWN_COUNTERS"], f"{os.getpid()}.json"), "w") as file:
        json.dump(counters, file)


if "OWN_COUNTERS" in os.environ:
    atexit.register(write_counters)
