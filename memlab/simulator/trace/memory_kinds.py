"""Purposes of allocations, derived from the code that made them. For display only: no predicted quantity depends on
them."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from memlab.meters.owner import BUCKETS, GATHERED, GRADIENTS, MASTER, OPTIMIZER, WEIGHTS, Owner  # weights: or a shard
from memlab.simulator.trace.events import Alloc, BeginPhase, of_kinds
from memlab.simulator.trace.trace_format import BUT_SHAPE, Site, Trace

ACTIVATIONS = "activations"
ACTIVATION_GRADIENTS = "activation gradients"
LOGITS = "logits and loss"
WRITTEN_OUT = "weights out of 4 bits"
CASTS = "weights cast to 16 bits"  # copies of float32 weights, made by autocast
STEP = "temporaries of the step"
KERNEL_SCRATCH = "kernel workspaces"
SMALL = "small tensors"

PASSES_ON = (
    "torch/",
    "memlab/",
    "accelerate/",
    "transformers/trainer.py",
    "deepspeed/runtime/zero/linear.py",
    "deepspeed/runtime/engine.py",
    "deepspeed/utils/",
)
"""Code, by package, that only passes calls on: the caller that explains an allocation is further out on the stack."""

EXPLAINS = (
    "torch/optim/",
    "torch/nn/parallel/distributed.py",
    "torch/distributed/fsdp/_fully_shard/_fsdp_param.py",
    "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
)
"""The parts of torch that explain their allocations themselves."""

HEADS = ("lm_head", "embed_out")
"""Modules that make the logits, as transformers' models name them."""

PARAMETER_GRADIENT = "parameter gradient"
"""Placeholder for the function's name when a backward node produced the gradient of a parameter."""

FLATTEN = "flatten_dense_tensors_aligned"
"""Function of ZeRO-1 and 2 that copies tensors into one."""

LOSSES = ("_log_softmax", "_log_softmax_backward_data", "nll_loss_backward")
"""Operators of the cross entropy, whose results are as large as the logits. A measured history has no shapes."""

_OPTIMIZERS = ("/optim/", "optimizer", "transformers/optimization.py", "ops/adam/", "ops/lion/")
"""Parts of the paths of files with optimizers."""

_BY_CODE = (
    # part of the file's path, function or operator ("": any), kind; the first matching row decides
    ("transformers/loss/", "", LOGITS),
    ("liger_kernel/ops/fused_linear_cross_entropy.py", "", LOGITS),
    ("bitsandbytes/functional.py", "dequantize_4bit", WRITTEN_OUT),
    ("bitsandbytes/autograd/", "bitsandbytes_dequantize_4bit", WRITTEN_OUT),
    ("bitsandbytes/backends/", "empty", WRITTEN_OUT),
    ("bf16_optimizer.py", "zeros_like", GRADIENTS),
    ("bf16_optimizer.py", "_setup_for_real_optimizer", MASTER),
    *((part, "zeros_like", OPTIMIZER) for part in _OPTIMIZERS),
    *((part, "", STEP) for part in _OPTIMIZERS),
    ("partition_parameters.py", "_partition_param", WEIGHTS),
    ("partition_parameters.py", "wrapped_fn", WEIGHTS),
    ("partition_parameters.py", "", GATHERED),
    ("zero/utils.py", "defragment", WEIGHTS),
    ("coalesced_collectives.py", "", BUCKETS),
    ("stage3.py", "_create_fp32_partitions", MASTER),
    ("stage3.py", "zeros", GRADIENTS),
    ("stage3.py", "_setup_for_real_optimizer", BUCKETS),
    ("stage3.py", "partition_grads", GRADIENTS),
    ("stage_1_and_2.py", FLATTEN, WEIGHTS),
    ("stage_1_and_2.py", "copy_grads_in_partition", GRADIENTS),
    ("stage_1_and_2.py", "setup_buckets", BUCKETS),
    ("stage_1_and_2.py", "allreduce_bucket", BUCKETS),
    ("stage_1_and_2.py", "__init__", MASTER),
    ("nn/parallel/distributed.py", "empty", BUCKETS),  # with gradient_as_bucket_view they are the gradients, too
    ("nn/parallel/distributed.py", "cat", BUCKETS),  # of weights, which rank 0 sends to the other ranks
    ("_fsdp_param.py", "_init_sharded_param", WEIGHTS),
    ("_fsdp_param.py", "", GATHERED),
    ("_fsdp_collectives.py", "foreach_reduce", GRADIENTS),
    ("_fsdp_collectives.py", "", BUCKETS),
    ("transformers/trainer_pt_utils.py", "", LOGITS),  # outputs of an evaluation, put together
)

_BY_PHASE = {
    "load": WEIGHTS,
    "model_build": WEIGHTS,
    "engine_init": MASTER,
    "forward": ACTIVATIONS,
    "backward": ACTIVATION_GRADIENTS,
    "optimizer_step": STEP,
    "resume": OPTIMIZER,
    "save": GATHERED,
}
"""Kind of an allocation that matches no row of ``_BY_CODE``, by phase."""


def name_sites(trace: Trace, owners: Mapping[int, Owner], vocabularies: Collection[int] = ()) -> None:
    """Give the site of each request its purpose, and the site of a block with an owner the owner's kind and module.

    ``owners``: key of a block -> its owner. ``vocabularies``: sizes of the vocabularies of the models in the trace.
    """
    sites = trace.sites
    kinds: dict[tuple, str] = {}  # sites that differ in their shapes alone share one, but for those of logits
    numbers: dict[tuple[int, str | Owner], int] = {}  # not by phase: equal steps have equal sites
    of_phases: dict[str, dict[int, int]] = defaultdict(dict)  # phase -> site -> the same site with its kind
    phase, named = "", of_phases[""]

    def copy_of(number: int, change: str | Owner) -> int:
        if (number, change) not in numbers:
            numbers[number, change] = len(sites)
            site = sites[number]
            sites.append(site.owned_by(change) if isinstance(change, Owner) else site.changed(kind=change))
        return numbers[number, change]

    for index, event in of_kinds(trace.events, BeginPhase, Alloc):
        if type(event) is BeginPhase:
            phase = trace.phases[event.phase]
            named = of_phases[phase]
            continue
        number = named.get(event.site)
        if number is None:
            site, number = sites[event.site], event.site
            if not site.kind:
                alike = phase, bool(site.shape) and site.shape[-1] in vocabularies, BUT_SHAPE(site)
                if alike not in kinds:
                    kinds[alike] = kind_of(site, phase, vocabularies)
                number = copy_of(event.site, kinds[alike])
            named[event.site] = number
        if event.key in owners and sites[number].kind != SMALL:
            number = copy_of(number, owners[event.key])
        if number != event.site:
            trace.events[index] = event.at(number)
    _name_casts(trace, copy_of)


def _name_casts(trace: Trace, copy_of: Callable[[int, str], int]) -> None:
    """Name the copies of weights that are half as large as a float32 weight of the module that made them.

    ``copy_of``: returns the number of the copy of a site with another kind.
    """
    owned, copies = set(), set()
    for number, site in enumerate(trace.sites):
        if site.owner is None and site.op.startswith("aten._to_copy"):
            copies.add(number)
        elif site.owner is not None and site.owner.kind == WEIGHTS and site.owner.dtype == "float32":
            owned.add(number)
    if not (owned and copies):
        return
    chosen = owned | copies
    requests = [(index, event) for index, event in of_kinds(trace.events, Alloc) if event.site in chosen]
    weights = {(trace.sites[event.site].module, event.nbytes) for _, event in requests if event.site in owned}
    sizes = {nbytes for _, nbytes in weights}
    for index, event in requests:
        site = trace.sites[event.site]
        of_module = (site.module, 2 * event.nbytes) in weights
        of_head = is_head(site.module) and 2 * event.nbytes in sizes  # its weights may be those of the embeddings
        if event.site in copies and (of_module or of_head):
            trace.events[index] = event.at(copy_of(event.site, CASTS))


def kind_of(site: Site, phase: str, vocabularies: Collection[int] = ()) -> str:
    """Return the purpose of an allocation. ``vocabularies``: of the models; none for a history, which has no shapes."""
    phase = phase.removeprefix("first_")
    if site.function == PARAMETER_GRADIENT:
        return GRADIENTS
    if site.shape and site.shape[-1] in vocabularies and phase in ("forward", "backward", "evaluate"):
        return LOGITS
    is_result_of_head = is_head(site.module) and site.operator != "_to_copy"  # and not the input in another dtype
    if site.operator in LOSSES or (phase != "backward" and is_result_of_head):
        return LOGITS
    if site.function == FLATTEN and phase == "optimizer_step":
        return GRADIENTS  # of a step, in one piece; before the steps the weights
    path = "/" + site.where.partition(":")[0]
    if "fused_optimizer" in path:
        return _of_half_precision_optimizer(phase, site)
    names = ("", site.function, site.operator)
    found = (kind for part, name, kind in _BY_CODE if part in path and name in names)
    return next(found, ACTIVATIONS if phase == "backward" and _recomputes(site) else _BY_PHASE.get(phase, ACTIVATIONS))


def is_flat_buffer(site: Site) -> bool:
    """Whether a library keeps data of all modules in the memory, whichever of them ran when it was requested."""
    of_parameters = site.kind in (GRADIENTS, MASTER, OPTIMIZER)
    of_no_module = not site.module or site.where.startswith("deepspeed/")
    return site.owner is None and (site.kind == BUCKETS or (of_parameters and of_no_module))


def _recomputes(site: Site) -> bool:
    """Whether a line of a forward requests the memory: in backward, code of a model that is checkpointed."""
    file, _, number = site.where.rpartition(":")
    return number.isdecimal() and "backward" not in site.function and not file.startswith(("deepspeed/", "torch/"))


def is_head(module: str) -> bool:
    """Whether a module makes the logits, also inside of an adapter's."""
    return module.rpartition(".")[2] in HEADS


def _of_half_precision_optimizer(phase: str, site: Site) -> str:
    """Kind of an allocation by DeepSpeed's optimizers without ZeRO.

    Engine initialisation creates the flattened weights and their fp32 copy.
    """
    flattened = MASTER if site.op.startswith("aten._to_copy") else WEIGHTS
    return flattened if phase == "engine_init" else STEP
