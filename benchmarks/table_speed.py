"""How long `memlab table` takes for many run folders, first and again, and `memlab report`, and how large the page is:

    python benchmarks/table_speed.py [FOLDERS ...]

The benchmark makes the folders itself (records of 8 ranks, 8 phases and 10 steps). It prints wall-clock and CPU seconds
of each command, and CPU milliseconds a folder. If the cost grows linearly, these last columns stay constant. Each
command is a separate process, including start-up and imports.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from memlab.core.config import Allocator, Batch, Config, Hardware, Model, SeqLen
from memlab.core.plan import make_plan
from memlab.core.record import FIRST_STEP_PHASES, PHASES, Phase, RankResult, Record
from memlab.core.summary import summarise
from memlab.runs.folder import RunFolder

ROOT = Path(__file__).parents[1]


def make_folder(root: Path, number: int) -> int:
    """Make one run folder. Returns the size of its record in bytes."""
    config = Config(
        model=Model(path="test/model", config={"hidden_size": 4096, "vocab_size": 128256}),
        allocator=Allocator(conf=""),
        seq_len=SeqLen(tokens=1 + number // 8),
        batch=Batch(micro=1 + number % 8),
        hardware=Hardware(gpu="H100", gpus=8, memory_gib=80.0, usd_per_hour=20.0),
    )
    plan = make_plan(config, {"model": "hf", "zero_stage": "zero3"})
    phases = {name: Phase(2**33, 2**34, 2**32) for name in (*PHASES, *FIRST_STEP_PHASES)}
    ranks = [
        RankResult(
            rank=rank,
            device=f"cuda:{rank}",
            device_name="NVIDIA H100 80GB HBM3",
            memory_source="cuda_caching_allocator",
            peak_allocated_bytes=2**34 + number,
            peak_reserved_bytes=2**35 + number,
            phases=phases,
            step_seconds=[0.5 + number * 1e-6] * 10,
            warmup_seconds=[1.0] * 3,
            losses=[11.8] * 13,
        ).to_json()
        for rank in range(8)
    ]
    environment = {"torch": "2.9.0", "deepspeed": "0.19.8", "driver": "570.1", "gpus": ["NVIDIA H100 80GB HBM3"] * 8}
    record = Record(
        run_id=plan.run_id,
        source="measured",
        status="ok",
        config=plan.config,
        choices=plan.choices,
        fingerprint=plan.run_id[-8:],
        environment=environment,
        ranks=ranks,
        steps={"warmup": 3, "measured": 10, "repeats": 1, "seconds": [0.5] * 10},
        summary=summarise(config, ranks, 90.0),
        timing={"total_s": 90.0},
    )
    text = json.dumps(record.to_json(), indent=2)
    folder = root / plan.run_id
    folder.mkdir()
    (folder / RunFolder.RECORD).write_text(text)  # not RunFolder.finish, whose fsync is slow and not measured here
    return len(text)


def seconds_of(words: Sequence[str], cache: Path) -> tuple[float, float]:
    """Run one memlab command. Returns its wall-clock and CPU seconds, which differ much on a busy machine."""
    begin, used = time.perf_counter(), _children_seconds()
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    subprocess.run(
        [sys.executable, "-m", "memlab", *words], check=True, env=environment, stdout=subprocess.DEVNULL, cwd=ROOT
    )
    return time.perf_counter() - begin, _children_seconds() - used


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=int, default=[1000, 2000, 4000, 10000])
    commands = ("table", "table again", "report")
    print(
        f"folders  records MB  {'  '.join(f'{name} s (CPU s)' for name in commands)}  page MB  CPU ms a folder of each"
    )
    for count in parser.parse_args().folders:
        with tempfile.TemporaryDirectory() as temporary:
            root, cache, page = (Path(temporary) / name for name in ("runs", "cache", "page.html"))
            root.mkdir()
            size = sum(make_folder(root, number) for number in range(count))
            table, report = ["table", str(root)], ["report", str(root), "--output", str(page)]
            times = [seconds_of(words, cache) for words in (table, table, report)]
            shown = "  ".join(f"{wall:.2f} ({cpu:.2f})" for wall, cpu in times)
            each = "  ".join(f"{1000 * cpu / count:.2f}" for _, cpu in times)
            print(f"{count:7,}  {size / 1e6:10.0f}  {shown}  {page.stat().st_size / 1e6:.1f}  {each}")


if __name__ == "__main__":
    main()
