"""Shadow runs of the real engine and the real Trainer, a few seconds each. No GPU, no compiler, two cores."""

import itertools
import json

import pytest

from memlab.analyse.collect import collect
from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.core.record import FIRST_STEP_PHASES, PHASES
from memlab.prediction.prediction import predict, predict_one
from memlab.prediction.traces import choose_traces
from memlab.prediction.traces.store import traced_ranks
from memlab.runs.folder import RunFolder
from memlab.runs.job import Job
from memlab.simulator.trace.events import Alloc, EmptyCache
from memlab.training.simulated.shadow_process import TraceKey
from tests.shadow.traced_points import shadow_traces

pytestmark = [pytest.mark.shadow, pytest.mark.long(85)]

GRID = [
    *(f"zero_stage=zero{stage} offload=none" for stage in range(4)),
    *(f"zero_stage=zero{stage} offload=optimizer" for stage in (1, 2, 3)),
    "zero_stage=zero3 offload=param",
    "zero_stage=zero3 offload=all",
    "zero_stage=zero3 offload=all checkpointing=full",
    "zero_stage=zero2 checkpointing=full checkpointing.reentrant=true",
    "zero_stage=zero2 precision=fp16",
    "zero_stage=zero3 precision=fp32",
    "zero_stage=zero2 attention=eager",
    "zero_stage=zero2 attention=flash2",
    "zero_stage=zero1 precision.grad_accum_dtype=fp32",
    "zero_stage=zero2 optimizer=adamw_torch",
    "zero_stage=zero2 offload=optimizer optimizer=adamw_torch",
    "zero_stage=zero3 optimizer=adamw_torch_foreach",
    "zero_stage=zero2 optimizer=sgd",
    "zero_stage=zero2 optimizer.name=Lion",
    "zero_stage=zero3 optimizer.name=Muon zero_stage.reduce_scatter=false",
    "zero_stage=zero2 optimizer=adamw_paged",
    "zero_stage=zero3 optimizer=lion_8bit",
    "zero_stage=zero2 batch.accumulation=2",
    "zero_stage=zero2 data=sample",
    "zero_stage=zero3 adapter=lora checkpointing=full checkpointing.reentrant=true",
    "zero_stage=zero3 adapter=qlora adapter.quant_storage=bf16 kernels=liger batch.accumulation=2",
]

RANKS = [f"zero_stage=zero0 adapter=lora adapter.rank={rank}" for rank in (16, 32)]
BITS = [f"zero_stage=zero0 adapter={adapter}" for adapter in ("lora", "qlora")]
KERNELS = [f"zero_stage=zero0 seq_len=s2048 kernels={kernels}" for kernels in ("none", "liger")]
TOO_LARGE = "zero_stage=zero2 hardware.memory_gib=1.5"
GPUS = [f"zero_stage=zero3 hardware={gpu}" for gpu in ("h200_x8", "a100_80g_x8")]  # with a calibration, and without one


def plan_of(words: str):
    config, choices = compose_config(
        ["mode=predict", "model=tiny", "hardware=h100_x8", "hardware.gpus=3", *words.split()]
    )
    return make_plan(config, choices)


@pytest.fixture(scope="module", autouse=True)
def all_is_traced(tmp_path_factory):
    """In one shadow process, which imports torch, DeepSpeed and transformers once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        assert not choose_traces.trace_missing(
            [plan_of(words) for words in (*GRID, *RANKS, *BITS, *KERNELS, TOO_LARGE, *GPUS)]
        )
        yield


@pytest.mark.parametrize("words", GRID)
def test_every_combination_is_predicted(words):
    record = predict(plan_of(words))
    assert (record.status, record.source) == ("ok", "predicted"), record.reason
    assert [rank["rank"] for rank in record.ranks] == [0, 1, 2]
    for rank in record.ranks:
        assert set(rank["phases"]) == {*PHASES, *FIRST_STEP_PHASES}
        assert 0 < rank["peak_allocated_bytes"] <= rank["peak_active_bytes"] <= rank["peak_reserved_bytes"]
        for name, kinds in rank["breakdown"]["phases"].items():
            assert sum(kinds.values()) == rank["phases"][name]["peak_reserved_bytes"]
        assert 0 < len(rank["curve"]["event"]) <= 500


def test_the_record_is_in_the_run_folder(tmp_path):
    plan = plan_of("zero_stage=zero3")
    record = predict_one(Job(plan, RunFolder(tmp_path)))
    written = json.loads((tmp_path / "record.json").read_text())
    assert written["summary"]["peak_allocated_bytes"]["max"] == record.summary["peak_allocated_bytes"]["max"]
    assert written["ranks"][2]["same_as_rank"] == 0
    assert predict_one(Job(plan, RunFolder(tmp_path))).fingerprint == record.fingerprint


@pytest.mark.parametrize("words", GPUS)
def test_tables_and_diffs_can_read_the_record(tmp_path, words):
    record = predict_one(Job(plan_of(words), RunFolder(tmp_path)))
    assert record.timing["step_s"] > 0
    found = collect([tmp_path])
    assert found.skipped == []
    assert found.runs[0].summary["step_seconds_basis"] in ("calibrated", "lower bound")


def test_ranks_of_stage_3_are_alike(tmp_path):
    """What lets one rank stand for all: whatever the padding, every rank's events are the same.

    The cache is emptied in each step, as a value beside the groups says.
    """
    plan = plan_of("zero_stage=zero3 training_args.torch_empty_cache_steps=1")
    assert traced_ranks(plan) == [0]
    found = shadow_traces(plan, [TraceKey(rank, 1, 64) for rank in (0, 1, 2)], tmp_path)
    sizes = [
        [(event.nbytes, event.stream) for event in trace.events if isinstance(event, Alloc)] for trace in found.values()
    ]
    assert sizes[0] == sizes[1] == sizes[2]
    for trace in found.values():
        for begins, ends in itertools.pairwise([*trace.steps, len(trace.events)]):
            assert any(isinstance(event, EmptyCache) for event in trace.events[begins:ends])


def phases_of(words: str) -> tuple[dict, dict]:
    """The phases of the first rank of a prediction, and the breakdown of their peaks."""
    record = predict(plan_of(words))
    assert record.status == "ok", record.reason
    return record.ranks[0]["phases"], record.ranks[0]["breakdown"]["phases"]


def test_adapters_pay_for_what_is_trained():
    """Twice the rank: twice the adapters in bf16, with their fp32 master and Adam's two states."""
    left = [phases_of(words)[0]["optimizer_step"]["end_allocated_bytes"] for words in RANKS]
    assert left[1] - left[0] == pytest.approx((2 + 12) * 74_752, rel=0.01)


def test_weights_in_4_bits_are_a_quarter():
    """4 bits a weight and 8 for the scale of 64; each of the 14 has tables of 5 KiB at most."""
    lora, qlora = map(phases_of, BITS)
    linear = 893_568 - 2 * 2048 * 128 - 5 * 128  # without the embedding, the output layer and the norms
    saved = lora[0]["engine_init"]["end_allocated_bytes"] - qlora[0]["engine_init"]["end_allocated_bytes"]
    assert saved == pytest.approx(linear * (2 - 1 / 2 - 1 / 64), abs=14 * 5120)
    # down_proj is written out in bf16 for its product: 352 columns are no multiple of the 64 that share a scale
    assert qlora[1]["forward"]["kernel workspaces"] >= 2 * 128 * 352


def test_a_weight_in_4_bits_is_written_out_before_its_product_has_a_result():
    trace = choose_traces.traces(plan_of(BITS[1]))[0]
    made = [(trace.sites[event.site], event.nbytes) for event in trace.events if isinstance(event, Alloc)]
    of_bits = [(site.operator, site.kind, nbytes) for site, nbytes in made if "4bit" in site.op]
    down_proj = next(place for place, (_, _, nbytes) in enumerate(of_bits) if nbytes == 2 * 128 * 352)
    assert [each[:2] for each in of_bits[down_proj : down_proj + 2]] == [
        ("bitsandbytes_dequantize_4bit", "weights out of 4 bits"),
        ("bitsandbytes_gemm_4bit", "activations"),
    ]


def test_a_training_in_4_bits_begins_with_an_emptied_cache():
    """peft does it where there is CUDA."""
    plain, packed = (
        sum(isinstance(event, EmptyCache) for event in choose_traces.traces(plan_of(words))[0].events) for words in BITS
    )
    assert packed == plain + 1


def test_the_fused_loss_never_has_all_logits():
    """Of 2,048 tokens, 128 at a time: hidden size over vocabulary, up to a power of two. Gradients are made at once."""
    plain, fused = (phases_of(words)[1]["forward"] for words in KERNELS)
    assert plain["logits and loss"] >= 4 * 2048 * 2048
    assert fused["logits and loss"] == 2 * 128 * 2048 + 2 * 2048 * 128
    assert fused["gradients"] == 2 * 2048 * 128  # of the weights of the last layer


def test_what_does_not_fit_is_an_out_of_memory_with_a_reason():
    record = predict(plan_of(TOO_LARGE))
    assert (record.status, record.summary["verdict"]) == ("gpu_oom", "does_not_fit")
    assert "GiB" in record.reason
