"""Histories of ranks for tests of the page: explained runs of made-up traces."""

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from memlab.analyse.explain.accounting import by_kind, side_by_side
from memlab.analyse.explain.explained import Explained, History, explain_history
from memlab.analyse.explain.explained_run import ExplainedRun
from memlab.analyse.explain.outside import ModelledDevice
from memlab.analyse.explain.remedies import NeededPeaks, Remedies, Remedy
from memlab.core.config import Config, Hardware
from memlab.core.record import PHASES
from memlab.simulator.allocator import Options, RecordingAllocator, parse
from memlab.simulator.outside.parts import OutsidePart
from memlab.simulator.trace.events import Alloc, BeginPhase, EmptyCache, Event, Free, HostAlloc, RecordStream
from memlab.simulator.trace.memory_kinds import ACTIVATIONS, GRADIENTS, OPTIMIZER, WEIGHTS
from memlab.simulator.trace.trace_format import Piece, Site, Trace

MIB, GIB = 1 << 20, 1 << 30
CONFIG = Config(
    hardware=Hardware(gpu="a round one", bf16_tflops=100.0, fp32_tflops=10.0, memory_gb_per_s=1e3, host_gb_per_s=10.0)
)
STEP_PHASES = ("forward", "backward", "optimizer_step")
LAYERS = 12


def sites(layers: int = LAYERS) -> list[Site]:
    found = [Site(WEIGHTS, "aten.empty.memory_format", "load.py:1", "load", "", ())]
    for layer in range(layers):
        module = f"model.layers.{layer}.mlp"
        found += [
            Site(ACTIVATIONS, "aten.mm.default", "model.py:7", "forward", module, (4, 8), "train.py:3"),
            Site(GRADIENTS, "aten.mm.default", "MmBackward0", "", module, (8, 8), "train.py:4"),
            Site(OPTIMIZER, "aten.zeros_like.default", "adam.py:9", "step", "", (8,), "train.py:5"),
        ]
    return [*found, replace(found[0], kind="")]  # requests nothing: a prediction names kinds at its end, in copies


def training(steps: int, requests: int, held: int = 40, layers: int = LAYERS) -> Trace:
    """Return a trace of ``steps`` steps, each phase of which makes ``requests`` requests of random sizes on two streams
    and holds about ``held`` blocks at the most."""
    chance, known = random.Random(1), sites(layers)
    events: list[Event] = [BeginPhase(0), HostAlloc(-1, 3 * MIB, True), HostAlloc(-2, MIB, False)]
    events += [Alloc(key, 30 * MIB, 0, 0) for key in range(layers)]
    pieces, key, alive = [Piece(None, None, True)], layers, []
    for step in range(1, steps + 1):
        for number, phase in enumerate(STEP_PHASES):
            events.append(BeginPhase(1 + number))
            pieces.append(Piece(step, "train.py:3", True))
            for _ in range(requests):
                nbytes = chance.choice([700, MIB // 2, 3 * MIB, 21 * MIB + 5])
                events.append(
                    Alloc(key, nbytes, chance.choice([0, 0, 0, 1]), 1 + number + 3 * chance.randrange(layers))
                )
                alive.append(key)
                if chance.random() < 0.05:
                    events.append(RecordStream(key, 2))
                key += 1
                while len(alive) > held or (alive and chance.random() < (0.2 if phase == "forward" else 0.55)):
                    events.append(Free(alive.pop(chance.randrange(len(alive))), chance.choice([None, 40])))
        events.append(EmptyCache())
    return Trace(0, 1, events=events, sites=known, phases=["model_build", *STEP_PHASES], pieces=pieces)


def explained(trace: Trace, settings: str = "") -> Explained:
    """Explain a made-up trace as a measured rank, whose driver told nothing."""
    recorder = partial(RecordingAllocator, parse(settings))
    history = History(trace, settings, recorder, [event * 1e-5 for event in range(len(trace.events))])
    return explain_history("measured", history, ModelledDevice([OutsidePart(0, "CUDA context", "", 500 * MIB)]))


def out_of_memory() -> Explained:
    """Explain a rank whose every step keeps 40 MiB of activations, until the fifth step finds no room for them."""
    known = [
        Site(WEIGHTS, "aten.empty.memory_format", "load.py:1", "load", "", ()),
        Site(ACTIVATIONS, "aten.mm.default", "model.py:7", "forward", "model.layers.0.mlp", (4, 8), "train.py:3"),
    ]
    events: list[Event] = [BeginPhase(0), Alloc(0, 100 * MIB, 0, 0)]
    for step in range(1, 6):
        events += [BeginPhase(1), Alloc(2 * step, 40 * MIB, 0, 1), Alloc(2 * step + 1, 5 * MIB, 0, 1)]
        events += [BeginPhase(3), Free(2 * step + 1)]
    pieces = [Piece(None, None, True), *(Piece(step, "train.py:3", True) for step in range(1, 6) for _ in range(2))]
    trace = Trace(0, 1, events=events, sites=known, phases=["model_build", *STEP_PHASES], pieces=pieces)
    recorder = partial(RecordingAllocator, Options(), 290 * MIB)
    device = ModelledDevice([OutsidePart(0, "CUDA context", "", MIB)])
    return explain_history("predicted", History(trace, "", recorder), device)


def remedies_of(rank: Explained) -> Remedies:
    """Return one change that would save 40 MiB, one that saves nothing, one without a prediction, and one not tried."""
    base = NeededPeaks(280 * MIB, 290 * MIB, 300 * MIB, GIB, "does_not_fit", None, rank)
    saved = replace(base, verdict="fits", allocated=240 * MIB, reserved=250 * MIB, used=260 * MIB)
    blocks = side_by_side([by_kind(rank.peak.holdings)] * 2)
    tried = [
        Remedy("checkpointing=full", "a second forward pass", saved, blocks),
        Remedy("allocator=expandable", "no extra computation", base, blocks),
        Remedy("batch.micro=1", "more steps", "no such word"),
    ]
    return Remedies(base, None, tried, ["kernels=liger"])


def explained_run(path: Path, rank: Explained, ranks: int = 1) -> ExplainedRun:
    """Return the run of a folder that need not exist, whose record has figures of several ``ranks``."""
    figures = [
        {
            **dict.fromkeys(("device_used_bytes", "process_used_bytes", "host_rss_bytes", "attached")),
            "rank": number,
            "status": "ok",
            "same_as_rank": None,
            "device_total_bytes": 80 * GIB,
            "host_peak_bytes": 2 * GIB,
            "host_pinned_bytes": GIB,
            "phases": {
                phase: {"peak_allocated_bytes": (1 + place) * GIB + number, "peak_reserved_bytes": 7 * GIB}
                for place, phase in enumerate(PHASES)
            },
        }
        for number in range(ranks)
    ]
    record = SimpleNamespace(source=rank.source, ranks=figures, config=CONFIG)
    return ExplainedRun(SimpleNamespace(path=path), record, [rank])
