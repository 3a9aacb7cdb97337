"""Findings by name: each is found where it is, and not where the same memory is meant."""

from types import SimpleNamespace

import pytest

from memlab.analyse.explain import findings
from memlab.analyse.explain.accounting import Share
from memlab.analyse.explain.findings import found_in, gradients_kept, growth, weights_cloned
from memlab.analyse.explain.outside import RANKS
from memlab.meters.owner import GRADIENTS, OPTIMIZER, WEIGHTS, Owner
from memlab.prediction.memory.ledger import Holding
from memlab.report.findings_text import sentence
from memlab.simulator.trace.events import Alloc, BeginPhase, Free
from memlab.simulator.trace.memory_kinds import CASTS, name_sites
from memlab.simulator.trace.trace_format import Piece, Site, Trace

MIB = 1 << 20


def owned(parameter, nbytes, kind=WEIGHTS, model="Llama", dtype="bfloat16", trains=True, where="train.py:3") -> Holding:
    owner = Owner(kind, model, parameter, dtype, trains)
    return Holding(Site("", "aten._to_copy", where, "", "", ()).owned_by(owner), nbytes, 1)


def free(nbytes, count, kind="activations", where="ema.py:9", module="") -> Holding:
    return Holding(Site(kind, "aten.clone", where, "", module, ()), nbytes, count)


def found(*holdings) -> dict[str, findings.Finding]:
    by_name = {finding.name: finding for finding in found_in(holdings)}
    assert all(sentence(finding).endswith(".") for finding in by_name.values())
    return by_name


BASE = [owned(f"layers.{number}.up.weight", MIB) for number in range(10)]
FROZEN = [owned(f"layers.{number}.up.weight", MIB, trains=False) for number in range(10)]
LORA = owned("layers.0.up.lora_A.weight", MIB, dtype="float32")


def test_a_plain_training_has_no_findings():
    states = [owned("layers.0.up.weight", 2 * MIB, kind, dtype="float32") for kind in (GRADIENTS, OPTIMIZER)]
    assert found(*BASE, *states, free(20 * MIB, 3)) == {}
    assert found(*FROZEN, LORA) == {}


def test_parameters_that_train_beside_the_adapter():
    wrong = [owned("embed.weight", 4 * MIB), owned("embed.weight", 8 * MIB, OPTIMIZER, dtype="float32")]
    (finding,) = found(*FROZEN, LORA, *wrong).values()
    assert (finding.name, finding.nbytes) == (findings.TRAINS_BESIDE_ADAPTER, 12 * MIB)
    assert finding.parts == (("optimizer states of embed", 8 * MIB), ("weights of embed", 4 * MIB))
    saved = owned("embed.modules_to_save.default.weight", 4 * MIB)  # the adapter's own, as peft names them
    assert found(*FROZEN, LORA, saved) == {}


def test_gradients_and_states_of_frozen_parameters():
    wrong = [owned("head.weight", MIB, kind, trains=False) for kind in (GRADIENTS, OPTIMIZER)]
    finding = found(*BASE, *wrong)[findings.STATES_OF_FROZEN]
    assert (finding.nbytes, finding.times, finding.where) == (2 * MIB, 1, "train.py:3")


def test_weights_in_float32_among_smaller_ones():
    head = owned("lm_head.weight", 4 * MIB, dtype="float32", where="peft/utils/other.py:160")
    finding = found(*FROZEN, head)[findings.UPCAST]
    assert (finding.nbytes, finding.parts, finding.subject) == (4 * MIB, (("lm_head", 4 * MIB),), "Llama")
    packed = [owned(f"layers.{number}.up.weight", MIB, dtype="uint8", trains=False) for number in range(10)]
    assert findings.UPCAST in found(*packed, head)


def test_frozen_weights_in_float32_but_not_trained_ones():
    in_full = [owned("up.weight", 4 * MIB, dtype="float32", trains=trains) for trains in (True, False)]
    assert found(in_full[0]) == {}
    assert found(in_full[1])[findings.FROZEN_IN_FLOAT32].nbytes == 4 * MIB


@pytest.mark.parametrize(
    ("op", "module", "is_cast"), [("_to_copy", "up", True), ("mm", "up", False), ("_to_copy", "down", False)]
)
def test_16_bit_copies_of_float32_weights(op, module, is_cast):
    weight = owned("up.weight", 4 * MIB, dtype="float32").site
    copy = Site("activations", f"aten.{op}", "model.py:7", "forward", module, ())
    trace = Trace(0, 1, events=[Alloc(0, 4 * MIB, 0, 0), Alloc(1, 2 * MIB, 0, 1)], sites=[weight, copy])
    name_sites(trace, {})
    kind = trace.sites[trace.events[1].site].kind
    assert kind == (CASTS if is_cast else "activations")
    assert (findings.CAST_IN_FORWARD in found(Holding(trace.sites[trace.events[1].site], 2 * MIB, 1))) is is_cast


def test_two_copies_of_a_model():
    second = [
        owned(f"layers.{number}.up.weight", MIB, model="Llama 2", trains=False, where="dpo.py:5")
        for number in range(10)
    ]
    finding = found(*BASE, *second)[findings.MODEL_TWICE]
    assert (finding.subject, finding.nbytes, finding.where) == ("Llama 2", 10 * MIB, "dpo.py:5")


def test_an_adapted_model_and_its_base_are_two_copies_and_other_models_are_not():
    base = [
        owned(f"base_model.model.layers.{number}.up.base_layer.weight", MIB, model="Peft", trains=False)
        for number in range(10)
    ]
    adapter = owned("base_model.model.layers.0.up.lora_A.weight", MIB, model="Peft", dtype="float32")
    assert found(*base, adapter, *FROZEN)[findings.MODEL_TWICE].nbytes == 10 * MIB
    other = [owned(f"blocks.{number}.up.weight", MIB, model="Reward") for number in range(10)]
    assert found(*BASE, *other) == {}
    assert found(*BASE, owned("layers.0.up.weight", MIB, model="Small")) == {}


def test_a_model_that_zero_made_flat_has_a_copy_in_another_of_its_class():
    flat = Owner(WEIGHTS, "Llama", "layers", "bfloat16", True, parameters=10)
    trained = Holding(Site("", "aten.cat", "stage_1_and_2.py:1399", "", "", ()).owned_by(flat), 10 * MIB, 1)
    reference = [owned(f"layers.{number}.up.weight", MIB, model="Llama 2", where="dpo.py:5") for number in range(10)]
    finding = found(trained, *reference)[findings.MODEL_TWICE]
    assert (finding.subject, finding.nbytes, finding.where) == ("Llama 2", 10 * MIB, "dpo.py:5")
    reward = [owned(f"layers.{number}.up.weight", MIB, model="Reward") for number in range(10)]
    assert found(trained, *reward) == {} == found(trained, *reference[:5])


def test_a_clone_of_the_weights_in_another_precision():
    (finding,) = weights_cloned([*BASE, free(20 * MIB, 10)])
    assert (finding.name, finding.nbytes) == (findings.WEIGHTS_CLONED, 20 * MIB)
    assert (finding.where, finding.subject) == ("ema.py:9", "Llama")
    assert list(weights_cloned([*BASE, free(20 * MIB, 11)])) == [] == list(weights_cloned([*BASE, free(30 * MIB, 10)]))


@pytest.mark.parametrize("stays", [False, True])
def test_activations_and_temporaries_of_the_optimizer_step_are_no_clones(stays):
    def moment(*holdings: Holding) -> SimpleNamespace:
        return SimpleNamespace(holdings=holdings, allocated=20 * MIB)

    start, alike = moment(*BASE), moment(*BASE, free(10 * MIB, 10))
    step = [
        SimpleNamespace(part=SimpleNamespace(phase=phase, step=2), start=start, peak=alike, end=end)
        for phase, end in (("forward", alike), ("backward", start), ("optimizer_step", alike if stays else start))
    ]
    device = SimpleNamespace(index=0, outside=lambda event: [])
    history = SimpleNamespace(trace=Trace(0, 1))
    rank = SimpleNamespace(phases=step, peak=alike, history=history, device=device, growth=None)
    assert [finding.name for finding in findings.findings(rank)] == [findings.WEIGHTS_CLONED] * stays


def test_the_copy_of_a_model_is_the_one_that_no_optimizer_trains():
    names = "Model", "Model 2"  # the one that was found first may be the copy; gradients are required of both
    both = [owned(f"{n}.weight", MIB, model=name, where=f"{name}.py:1") for name in names for n in range(10)]
    for copy, model in (names, names[::-1]):
        (finding,) = (each for each in found_in(both, {model: 4 * MIB}) if each.name == findings.MODEL_TWICE)
        assert (finding.subject, finding.where) == (copy, f"{copy}.py:1")


def test_gradients_kept_through_an_evaluation():
    held = [owned("up.weight", MIB, GRADIENTS), free(8 * MIB, 1, GRADIENTS)]  # ZeRO's own buffers have no owner
    (finding,) = gradients_kept("first_evaluate", held)
    assert (finding.nbytes, finding.subject) == (MIB, "first_evaluate")
    assert list(gradients_kept("forward", held)) == []


# --- growth

SITES = [
    Site("activations", "aten.mm", "model.py:7", "forward", "layers.3.mlp", (), "train.py:4"),
    Site("activations", "aten.add", "model.py:9", "forward", "layers.3.mlp", (), "train.py:4"),
    Site("logits and loss", "aten.cat", "trainer.py:5", "evaluate", "", (), "train.py:8"),
    Site("activations", "aten.embedding", "model.py:3", "forward", "embed", (), "train.py:4"),
]
PHASES = ["forward", "optimizer_step", "evaluate"]


def steps(kept: list[list[int]]) -> Trace:
    """Steps that request a block at SITES[1] and free it in the next one, and keep blocks of SITES[0]."""
    events, pieces = [], []
    for number, sizes in enumerate(kept):
        events += [BeginPhase(0), Alloc(100 + number, 8 * MIB, 0, 1), *([Free(99 + number)] if number else [])]
        events += [Alloc(1000 + 10 * number + place, size, 0, 0) for place, size in enumerate(sizes)]
        events += [BeginPhase(1)]
        pieces += [Piece(number + 1, None, True)] * 2
    return Trace(0, 1, events=events, sites=SITES, phases=PHASES, pieces=pieces)


def test_what_each_step_keeps_grows():
    (finding,) = growth(steps([[], [2 * MIB], [3 * MIB, MIB], [3 * MIB]]))
    assert (finding.name, finding.nbytes, finding.times) == (findings.GROWS_OVER_STEPS, 3 * MIB, 3)
    assert (finding.parts, finding.where) == ((("layers.*.mlp", 3 * MIB),), "model.py:7")


@pytest.mark.parametrize(
    "kept",
    [
        [[2 * MIB], [], [], []],  # made in the first step
        [[], [2 * MIB], [], [2 * MIB]],  # not in each step
        [[], [2 * MIB]],  # too few steps
        [[], [MIB // 2], [MIB // 2], [MIB // 2]],  # too little
    ],
)
def test_other_memory_of_steps_does_not_grow(kept):
    assert growth(steps(kept)) == []


def evaluation(held: list[int], freed_after: int) -> Trace:
    """An evaluation whose batch k requests ``held[k]`` bytes, and frees those of batch ``k - freed_after``."""
    events = [BeginPhase(2)]
    for batch, nbytes in enumerate(held):
        events += [Alloc(batch, MIB, 0, 3), Alloc(100 + batch, nbytes, 0, 2), Free(batch)]
        events += [Free(100 + batch - freed_after)] if batch >= freed_after else []
    return Trace(0, 1, events=events, sites=SITES, phases=PHASES, pieces=[Piece(None, None, True)])


@pytest.mark.parametrize(
    ("held", "freed_after"),
    [([2 * MIB] * 4, 9), ([2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB], 1)],  # a list of outputs; outputs put together
)
def test_outputs_kept_in_evaluation_grow(held, freed_after):
    (finding,) = growth(evaluation(held, freed_after))
    assert (finding.name, finding.nbytes, finding.times) == (findings.GROWS_IN_EVALUATION, 2 * MIB, 3)
    assert (finding.subject, finding.user_line) == ("logits and loss", "train.py:8")


@pytest.mark.parametrize("held", [[2 * MIB] * 4, [6 * MIB, 7 * MIB, 8 * MIB, 9 * MIB], [9 * MIB, 2 * MIB, 8 * MIB]])
def test_outputs_that_only_the_next_batch_replaces_do_not_grow(held):
    assert growth(evaluation(held, 1)) == []


def test_contexts_of_other_ranks_are_named():
    held = Share(RANKS, 1536 * MIB, tuple(Share(f"rank {rank}", 512 * MIB) for rank in (1, 2, 3)))
    device = SimpleNamespace(index=0, outside=lambda event: (held,))
    rank = SimpleNamespace(device=device, history=SimpleNamespace(trace=Trace(0, 4, events=[Free(1)])))
    (finding,) = findings.stray_contexts(rank)
    assert sentence(finding) == (
        "3 other ranks of this run hold 1.50 GiB on cuda:0 of this rank: rank 1 0.50 GiB, rank 2 0.50 GiB, rank 3 0.50 "
        "GiB. Each has a CUDA context there, because it used a GPU before torch.cuda.set_device(local_rank)."
    )


def put_together(sizes: list[int], keeps: bool) -> Trace:
    """An evaluation as of transformers' Trainer: batch k makes outputs, copies them, and puts them together with those
    of the batches before it, in turns at two lines. Without ``keeps``, it makes the copy alone."""
    sites = [*SITES, Site("logits and loss", "aten.copy", "trainer.py:3", "evaluate", "", (), "train.py:8")]
    sites.append(Site("logits and loss", "aten.new_full", "trainer.py:7", "evaluate", "", (), "train.py:8"))
    events = [BeginPhase(2)]
    for batch, size in enumerate(sizes):
        events += [Alloc(batch, size, 0, 3), Alloc(100 + batch, 2 * size, 0, 4)]
        events += [Free(99 + batch)] if batch else []
        if keeps and batch:
            events += [Alloc(200 + batch, 2 * sum(sizes[: batch + 1]), 0, (2, 5)[batch % 2])]
            events += [Free(199 + batch)] if batch > 1 else []
        events += [Free(batch)]
    return Trace(0, 1, events=events, sites=sites, phases=PHASES, pieces=[Piece(None, None, True)])


SIZES = [4 * MIB, 2 * MIB, 3 * MIB, MIB, 5 * MIB]


def test_outputs_that_two_lines_put_together_grow():
    (finding,) = growth(put_together(SIZES, keeps=True))
    assert (finding.name, finding.times) == (findings.GROWS_IN_EVALUATION, 4)
    assert finding.nbytes == (2 * sum(SIZES[:4]) + 2 * MIB) // 4  # put together, and the last batch's own
    assert finding.where == "trainer.py:7"


@pytest.mark.parametrize("sizes", [SIZES, sorted(SIZES), SIZES[::-1]])
def test_outputs_of_batches_of_several_lengths_do_not_grow(sizes):
    assert growth(put_together(sizes, keeps=False)) == []


def test_a_finding_is_a_sentence_with_its_line():
    of_growth = findings.Finding(
        findings.GROWS_OVER_STEPS, 3 << 30, (("layers.*.mlp", 3 << 30),), "model.py:7", "train.py:4", "activations", 3
    )
    assert sentence(of_growth) == (
        "Memory grows by 3.00 GiB in each step, 3 steps in a row: activations (layers.*.mlp 3.00 GiB), requested "
        "at model.py:7 (called at train.py:4). Nothing frees them. A tensor of each step is kept together with its "
        "graph, as in total += loss: keep loss.detach()."
    )
