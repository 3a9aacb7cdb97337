"""A training script without torch: writes the files that a rank with memlab's meters would write."""

import json
import os
import pathlib
import sys

folder = pathlib.Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).parent
options = json.loads((folder / ".attach" / "options.json").read_text())
asked = dict(word.split("=") for word in sys.argv[1:])
micro = min(int(asked["micro"]), int(asked.get("most", "4096")))
fits = int(asked.get("fits", "4096"))
steps, warmup = options["steps"], options["warmup"] or 1

(folder / ".attach" / "loaded").touch()
row = {"samples": micro, "tokens": 8 * micro, "padded_length": 8, "largest_micro_batch": micro, "micro_batches": 1}
rows = [json.dumps({"step": step, **row}) + "\n" for step in range(1, steps + 1)]
(folder / "rank0.steps.jsonl").write_text("".join(rows))
rank = {
    **{"rank": 0, "device": "cpu", "device_name": "CPU", "memory_source": "host", "status": "ok", "reason": None},
    **{"host_peak_bytes": micro * 2**20, "warmup_seconds": [1.0] * warmup, "step_seconds": [0.5] * (steps - warmup)},
    **{"timing": {"train_s": 1.0}, "runtime": {}, "oom": None},
    "attached": {"world_size": 1, "phases": {}, "steps": steps},
}
if micro > fits:
    rank |= {"status": "gpu_oom", "reason": "no memory", "oom": {"phase": "forward", "step": 1}}
(folder / "rank0.json").write_text(json.dumps(rank))
with open(asked["notes"], "a") as notes:
    notes.write(f"{micro}\n")
sys.exit(micro > fits)
