"""What a shadow run counts of a step, and the step time in a prediction's record. No GPU."""

import pytest

from memlab.cli.compose import compose_config
from memlab.core.plan import Plan, make_plan
from memlab.core.record import PHASES
from memlab.prediction.prediction import predict
from memlab.prediction.time.calibrate import shipped
from memlab.prediction.time.work_by_phase import work_by_phase
from memlab.prediction.traces import choose_traces
from memlab.simulator.trace.trace_format import Trace
from memlab.simulator.trace.work_items import CONVERTED_FROM_HOST, CONVERTED_TO_HOST, PINNED, Copy, Item, KernelLaunch
from memlab.training.simulated.shadow_process import Task, TraceKey, run_shadow

pytestmark = [pytest.mark.shadow, pytest.mark.long(35)]

LAYERS, WIDTH, MLP, HEADS, KEY_HEADS, VOCABULARY = 2, 128, 352, 4, 2, 2048  # conf/model/tiny.yaml
KEYS = WIDTH * KEY_HEADS // HEADS
MATRICES = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * KEYS + 3 * WIDTH * MLP) + VOCABULARY * WIDTH


COUNTED = [  # words; whether backward recomputes; whether attention's kernel is causal
    ("zero_stage=zero0", False, True),
    ("zero_stage=zero3", False, True),
    ("zero_stage=zero2 attention=eager", False, False),
    ("zero_stage=zero2 checkpointing=full", True, True),
]
FURTHER = [  # words; the batches from which another one is computed
    ("zero_stage=zero3", (1, 2, 3)),
    ("zero_stage=zero2 offload=optimizer", (1, 2, 3)),
    ("attention=eager", (2, 3, 5)),  # whose kernels differ for a batch of one
]
TOKENS = (150, 330, 515)
FURTHER_POINT = TraceKey(0, 4, 260)
GATHERED = "zero_stage=zero3 hardware.gpus=4 zero_stage.stage3_param_persistence_threshold=0"
GATHERED_POINT = TraceKey(0, 1, 64)
COPIED = [  # words; by way of what; bytes for each weight
    ("zero_stage=zero2 offload=optimizer", PINNED, 4 + 2),  # gradients, and weights back
    ("zero_stage=zero3 offload=optimizer", CONVERTED_FROM_HOST, 2),
    ("zero_stage=zero3 offload=param", CONVERTED_TO_HOST, 4),
]
ADAPTERS = [f"zero_stage=zero0 adapter={adapter}" for adapter in ("lora", "qlora")]
FEW_ROWS = "zero_stage=zero0 adapter=qlora seq_len.tokens=16"
FUSED = "zero_stage=zero0 kernels=liger"
FULL, TIMED = "zero_stage=zero0 precision=fp32", "zero_stage=zero2"
UNCALIBRATED = "zero_stage=zero2 hardware=a100_80g_x1"


def plan_of(words: str):
    config, choices = compose_config(["mode=predict", "model=tiny", "hardware=h200_x1", *words.split()])
    return make_plan(config, choices)


def others(words: str, batches: tuple[int, ...]) -> list[Plan]:
    shapes = zip(batches, TOKENS, strict=True)
    return [plan_of(f"{words} batch.micro={micro} seq_len.tokens={tokens}") for micro, tokens in shapes]


@pytest.fixture(scope="module", autouse=True)
def all_is_traced(tmp_path_factory):
    """In one shadow process, which imports torch, DeepSpeed and transformers once."""
    plans = [plan_of(words) for words in (*(words for words, _, _ in COUNTED), FULL, TIMED, UNCALIBRATED)]
    plans += [plan for further in FURTHER for plan in others(*further)]
    plans += [plan_of(words) for words in (*(words for words, _, _ in COPIED), *ADAPTERS, FEW_ROWS, FUSED)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        assert not choose_traces.trace_missing(plans)
        yield


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> dict[str, Trace]:
    """Words -> the trace of one point, made in one shadow process and unknown to the cache."""
    folder = tmp_path_factory.mktemp("traced")
    points = {**{further_words(words): FURTHER_POINT for words, _ in FURTHER}, GATHERED: GATHERED_POINT}
    tasks = {
        words: Task(plan_of(words), point, folder / f"{n}.json") for n, (words, point) in enumerate(points.items())
    }
    assert run_shadow(list(tasks.values()), folder) == []
    return {words: Trace.load(task.path) for words, task in tasks.items()}


def further_words(words: str) -> str:
    return f"{words} batch.micro={FURTHER_POINT.micro} seq_len.tokens={FURTHER_POINT.tokens}"


def flops_of(tokens: int, *, recomputed: bool, causal: bool) -> int:
    """Two FLOPs for each weight and token, forward once and backward twice; scores and values likewise, where a fused
    backward computes the scores once more and a causal kernel half of all. Recomputing adds a forward of the blocks but
    for their last product, whose result backward does not need: it ends there."""
    products = 2 * MATRICES * tokens
    attention = LAYERS * 4 * tokens * tokens * WIDTH
    needed = MATRICES - VOCABULARY * WIDTH - LAYERS * WIDTH * MLP
    blocks = 2 * needed * tokens + (attention // 2 if causal else attention)
    whole = 3 * products + (int(3.5 * attention) // 2 if causal else 3 * attention)
    return whole + (blocks if recomputed else 0)


@pytest.mark.parametrize(("words", "recomputed", "causal"), COUNTED)
def test_flops_are_the_closed_form(words, recomputed, causal):
    plan = plan_of(words)
    found = work_by_phase(choose_traces.traces(plan)[0])
    expected = flops_of(512, recomputed=recomputed, causal=causal)
    assert sum(phase["flops"] for phase in found.values()) == pytest.approx(expected, rel=0.01)


def test_the_optimizer_step_touches_every_state():
    """Adam reads gradient, parameter and two moments and writes all but the gradient, 4 bytes each."""
    trace = choose_traces.traces(plan_of(FULL))[0]
    assert work_by_phase(trace)["optimizer_step"]["memory_bytes"] >= 7 * 4 * trace.parameters


def test_products_with_weights_in_4_bits_count_as_any_other():
    plain, packed = (choose_traces.traces(plan_of(words))[0] for words in ADAPTERS)
    for phase in ("forward", "backward"):
        assert work_by_phase(plain)[phase]["flops"] == work_by_phase(packed)[phase]["flops"] > 0


def _is_kernel(item: Item, sizes: tuple[int, ...]) -> bool:
    return isinstance(item, KernelLaunch) and item.flops == 0 and item.sizes == sizes


def test_with_many_rows_a_weight_in_4_bits_is_written_out_first():
    """That is a kernel of its own; with few rows one of bitsandbytes' reads the 4 bits."""
    written_out = (WIDTH * WIDTH // 2, WIDTH * WIDTH * 2)
    many, few = (choose_traces.traces(plan_of(words))[0].work for words in (ADAPTERS[1], FEW_ROWS))
    assert sum(_is_kernel(item, written_out) for item in many) == 2 * LAYERS  # q_proj and o_proj
    assert not any(_is_kernel(item, written_out) for item in few)


def test_kernels_of_triton_are_counted():
    """SwiGLU is one in each layer: it reads what two products made and writes as much. Its backward writes in place."""
    trace = choose_traces.traces(plan_of(FUSED))[0]
    of_one = 512 * MLP * 2
    fused = [item for item in trace.work if _is_kernel(item, (of_one, of_one, of_one))]
    assert len(fused) == 2 * LAYERS


def test_zero3_gathers_the_weights_twice_and_reduces_once(traced):
    """Each GPU sends its share of the weights for forward and for backward, and of the gradients: 3 x 2 bytes x 3/4."""
    trace = traced[GATHERED]
    sent = sum(phase["link_bytes"] for phase in work_by_phase(trace).values())
    assert 2 * 2 * 0.75 * trace.parameters <= sent <= 1.05 * 3 * 2 * 0.75 * trace.parameters


@pytest.mark.parametrize(("words", "way", "for_each"), COPIED)
def test_what_offload_copies_and_by_way_of_what(words, way, for_each):
    trace = choose_traces.traces(plan_of(words))[0]
    nbytes = sum(item.nbytes for item in trace.work if isinstance(item, Copy) and item.route == way)
    assert nbytes == pytest.approx(for_each * trace.parameters, rel=0.01)


@pytest.mark.parametrize(("words", "batches"), FURTHER)
def test_a_further_point_is_counted_as_a_traced_one(words, batches, traced):
    computed = choose_traces.known(plan_of(further_words(words)), FURTHER_POINT)
    whole = traced[further_words(words)]
    assert computed.work == whole.work
    assert computed.model_flops == whole.model_flops


def test_the_record_tells_the_time_and_how_sure_it_is():
    record = predict(plan_of(TIMED))
    summary, timing = record.summary, record.timing
    low, high = timing["step_s_range"]
    assert 0 < timing["step_s_lower_bound"] <= low <= timing["step_s"] <= high
    assert record.steps["basis"] == "calibrated"
    assert record.steps["error"] == shipped().error
    assert summary["step_seconds"] == timing["step_s"]
    assert summary["tokens_per_second"] == pytest.approx(512 / timing["step_s"])
    assert summary["model_flops_utilization"] == pytest.approx(
        record.ranks[0]["model_flops_per_step"] / timing["step_s"] / 989.5e12
    )
    assert summary["usd_per_million_tokens"] > 0
    assert {*PHASES[2:], "between"} == set(record.ranks[0]["work"])


def test_without_a_calibration_it_is_a_lower_bound():
    record = predict(plan_of(UNCALIBRATED))
    timing = record.timing
    assert (record.steps["basis"], record.steps["error"]) == ("lower bound", None)
    assert timing["step_s"] == timing["step_s_lower_bound"]
    assert timing["step_s_range"] == [timing["step_s"], None]
    assert "A100" in record.steps["basis_reason"]


def test_an_entry_without_figures_has_no_time():
    record = predict(plan_of("zero_stage=zero2 hardware.memory_gb_per_s=null"))
    assert record.status == "ok" and "step_seconds" not in record.summary
