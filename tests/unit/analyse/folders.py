"""Run folders made by the tests, through the same Record and RunFolder that measuring and predicting use."""

from pathlib import Path
from typing import Any

from memlab.core.config import Allocator, Batch, Config, Hardware, Measure, Model, SeqLen, ZeroStage
from memlab.core.plan import make_plan
from memlab.core.record import Phase, RankResult, Record
from memlab.core.summary import summarise
from memlab.runs.folder import RunFolder

MIB = 2**20


def make_config(tokens: int = 512, micro: int = 1, stage: int = 2, **parts: Any) -> Config:
    """Two GPUs, four steps."""
    config = Config(
        model=Model(path="test/model", config={"hidden_size": 64, "vocab_size": 1000, "intermediate_size": 128}),
        zero_stage=ZeroStage(stage=stage),
        allocator=Allocator(conf=""),
        seq_len=SeqLen(tokens=tokens),
        batch=Batch(micro=micro),
        hardware=Hardware(gpu="A100", gpus=2, memory_gib=80.0, usd_per_gpu_hour=1.8),
        measure=Measure(steps=4),
    )
    for name, part in parts.items():
        setattr(config, name, part)
    return config


def make_ranks(config: Config, allocated: int = 100 * MIB, seconds: float = 0.5, **changes: Any) -> list[RankResult]:
    """Rank 1 needs 2 MiB less than rank 0; the steps take ``seconds``, give or take 1 %."""
    return [
        RankResult(
            rank=rank,
            device=f"cuda:{rank}",
            device_name="A100",
            memory_source="cuda_caching_allocator",
            peak_allocated_bytes=allocated - 2 * rank * MIB,
            peak_reserved_bytes=allocated + (20 - 2 * rank) * MIB,
            phases={"forward": Phase(allocated // 2, allocated, 0), "backward": Phase(allocated, allocated, 0)},
            step_seconds=[seconds, seconds * 1.01, seconds * 0.99, seconds],
            warmup_seconds=[2 * seconds, seconds],
            losses=[7.0, 6.9, 6.8, 6.7, 6.6, 6.5],
            parameters=1_000_000,
            **changes,
        )
        for rank in range(config.hardware.gpus)
    ]


def make_record(
    config: Config | None = None, choices: dict[str, str] | None = None, status: str = "ok", **figures: Any
) -> Record:
    """A record; ``figures`` go to :func:`make_ranks`."""
    config = config or make_config()
    plan = make_plan(config, choices or {"zero_stage": f"zero{config.zero_stage.stage}", "offload": "none"})
    ranks = [rank.to_json() for rank in make_ranks(config, **figures)] if status == "ok" else []
    return Record(
        run_id=plan.run_id,
        source="measured",
        status=status,
        config=plan.config,
        choices=plan.choices,
        fingerprint=plan.run_id[-8:],
        environment={"torch": "2.9.0", "deepspeed": "0.19.8", "driver": "570.1"},
        ranks=ranks,
        steps={"warmup": 2, "measured": 4, "repeats": 1, "seconds": []},
        summary=summarise(config, ranks, 60.0),
        timing={"total_s": 60.0},
    )


def write(folder: Path, record: Record) -> Path:
    """``folder``/<run id> with this record in it."""
    path = folder / record.run_id
    path.mkdir(parents=True, exist_ok=True)
    RunFolder(path).finish(record)
    return path
