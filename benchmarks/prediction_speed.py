"""What a prediction costs, and how that grows: python benchmarks/prediction_speed.py [--model llama3_8b] [WORD ...]

Each row is one prediction in its own process with an empty cache; only the rows of different batches share one process.
A row has wall-clock seconds, CPU seconds, the largest resident set of its processes, and the number of traced events.
Layers and ranks grow from row to row. The first points of a configuration are traced, all others are computed.
A training command has one row, its first two steps: prediction_speed.py hardware=h200_x8 -- torchrun ...
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

PREDICT = """
import json, resource, sys, time
from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.prediction.traces.store import traces
from memlab.prediction.prediction import predict
for words in json.loads(sys.argv[1]):
    plan = make_plan(*compose_config(["mode=predict", *words]))
    began = time.perf_counter()
    record = predict(plan)
    seconds = time.perf_counter() - began
    assert record.ranks, record.reason
    print(json.dumps({"seconds": seconds, "events": sum(len(trace.events) for trace in traces(plan).values())}))
"""

PREDICT_COMMAND = """
import json, sys, time
from pathlib import Path
from tempfile import TemporaryDirectory
from memlab.cli.compose import compose_config
from memlab.planner.user_command import predict_command
from memlab.runs.folder import RunFolder
hardware, words = json.loads(sys.argv[1])
config, _ = compose_config(["mode=predict", *hardware])
with TemporaryDirectory() as folder:
    began = time.perf_counter()
    record = predict_command(words, config.hardware, RunFolder(folder), steps=2)
    seconds = time.perf_counter() - began
    assert record.ranks, record.reason
    traces = [json.loads(path.read_text()) for path in Path(folder).glob("rank*.trace.json")]
print(json.dumps({"seconds": seconds, "events": sum(len(trace["events"]) for trace in traces)}))
"""

LAYERS = (8, 16, 32, 64)
GPUS = (1, 2, 8, 64)
POINTS = (1, 2, 5, 6, 20)
"""Micro batches, predicted in this order."""


def predicted(
    configurations: Sequence[Sequence[str]], program: str = PREDICT
) -> tuple[list[dict], float, float, float]:
    """Predict configurations, or a command, in one process with its own cache.

    Returns the result of each, then for all together: wall-clock seconds, CPU seconds, and the largest resident set of
    any process so far in MiB.
    """
    with tempfile.TemporaryDirectory() as cache:
        began, used = time.perf_counter(), _children().ru_utime + _children().ru_stime
        words = [sys.executable, "-c", program, json.dumps(configurations)]
        done = subprocess.run(
            words, check=True, env={**os.environ, "XDG_CACHE_HOME": cache}, stdout=subprocess.PIPE, text=True
        )
        wall = time.perf_counter() - began
    cpu = _children().ru_utime + _children().ru_stime - used
    return [json.loads(line) for line in done.stdout.splitlines()], wall, cpu, _children().ru_maxrss / 1024


def _children() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_CHILDREN)


def show_command(hardware: Sequence[str], command: Sequence[str]) -> None:
    """Predict a command with an empty cache, so that the native library is compiled, too."""
    (result,), wall, cpu, size = predicted([hardware, command], PREDICT_COMMAND)
    print(f"wall {wall:.1f} s, CPU {cpu:.1f} s, largest process {size:,.0f} MiB, {result['events']:,} events")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", default=["zero_stage=zero3"], help="of every prediction")
    parser.add_argument("--model", default="llama3_8b")
    words = sys.argv[1:]
    here = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:here])
    if here < len(words):
        return show_command(arguments.words, words[here + 1 :])
    common = [f"model={arguments.model}", "hardware=h100_x8", "seq_len.tokens=2048", *arguments.words]
    for title, variants in (
        ("layers", {layers: [f"model.overrides.num_hidden_layers={layers}"] for layers in LAYERS}),
        ("ranks", {gpus: [f"hardware.gpus={gpus}"] for gpus in GPUS}),
    ):
        print(f"{title:>8}  wall s   CPU s  a layer or rank, CPU ms  largest MiB   events")
        for number, words in variants.items():
            (result,), wall, cpu, size = predicted([[*common, *words]])
            print(f"{number:8} {wall:7.1f} {cpu:7.1f} {1000 * cpu / number:24.0f} {size:12,.0f} {result['events']:8,}")
    results, _, _, _ = predicted([[*common, f"batch.micro={micro}"] for micro in POINTS])
    print(f"{'batch':>8}  wall s  of the first")
    for micro, result in zip(POINTS, results, strict=True):
        print(f"{micro:8} {result['seconds']:7.2f} {result['seconds'] / results[0]['seconds']:12.1%}")


if __name__ == "__main__":
    main()
