"""vLLM in the trainer's own process (``vllm_mode="colocate"`` of TRL): the memory that it takes (not measured), and
completions as long as they may be.

An engine takes ``gpu_memory_utilization`` of the GPU's memory, beside what the trainer has: its weights and its largest
activations, and the rest for its cache. ``sleep`` gives all of it back. The first ``wake_up`` takes all of it again,
where vLLM maps weights and cache one after the other. The memory is a block of torch's allocator, as in vLLM without
sleep mode. With it, ``torch.cuda.memory_reserved`` on a GPU still counts what sleeps, which the device has back.

Source: ``request_memory`` in ``vllm/v1/worker/utils.py``, ``Worker.determine_available_memory`` and ``Worker.sleep`` in
``vllm/v1/worker/gpu_worker.py``, and ``vllm/device_allocator/cumem.py`` of vLLM 0.26.
"""

import gc
import math
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch

from memlab.core.sizes import in_gib
from memlab.simulator.rank import device
from memlab.simulator.rank.stand_ins import GpuModel, Package, Recorder, StandIn
from memlab.simulator.rank.unpredictable import UnpredictableError
from memlab.simulator.trace.trace_format import DECIDED, GENERATION

VERSION = "0.26.0"

_INSTALLED = (
    f"vLLM, which is not installed here, was taken as installed on the GPUs, in version {VERSION}, with the memory "
    f"that its source says (not measured){DECIDED}"
)


def stand_in(gpu: GpuModel) -> StandIn:
    parameters = {"SamplingParams": SamplingParams, "StructuredOutputsParams": SimpleNamespace}
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": LLM, "RequestOutput": SimpleNamespace, **parameters},
        "vllm.sampling_params": parameters,
        "vllm.utils.network_utils": dict.fromkeys(("get_ip", "get_open_port"), _no_server),
        "vllm.distributed.weight_transfer.nccl_engine": dict.fromkeys(
            ("NCCLTrainerSendWeightsArgs", "NCCLWeightTransferEngine"), _no_server
        ),
    }
    package = Package("vllm", VERSION, modules)
    return StandIn(packages=(package,), changes={"trl.generation.vllm_client": _without_server})


def _without_server(client: ModuleType, recorder: Recorder) -> None:
    client.VLLMClient = _no_server


def _no_server(*arguments: Any, **options: Any) -> NoReturn:
    raise UnpredictableError("no vLLM server is there. Predict with vllm_mode='colocate', or without use_vllm")


class SamplingParams:
    def __init__(self, n: int = 1, max_tokens: int = 16, min_tokens: int = 0, logprobs: int | None = None, **options):
        self.n, self.max_tokens, self.min_tokens, self.logprobs = n, max_tokens, min_tokens, logprobs


class LLM:
    """An engine. ``llm_engine`` has what trainers reach into: the longest sample, and the model that gets weights."""

    def __init__(
        self, model: str, gpu_memory_utilization: float = 0.9, max_model_len: int | None = None,
        enable_sleep_mode: bool = False, **options: Any,
    ):  # fmt: skip
        device.recorder.trace.assumed.setdefault(_INSTALLED, 1)
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        self._nbytes = math.ceil(total * gpu_memory_utilization)
        if free < self._nbytes:
            raise UnpredictableError(
                f"vLLM refuses to start: {in_gib(free)} of {in_gib(total)} are free, and gpu_memory_utilization="
                f"{gpu_memory_utilization} asks for {in_gib(self._nbytes)}. Lower it, or make vLLM's engine first"
            )
        self._sleeps = enable_sleep_mode
        self.wake_up()
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=SimpleNamespace(load_weights=lambda weights: None)))
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=max_model_len or _longest(model)),
            model_executor=SimpleNamespace(driver_worker=worker),
        )

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        if getattr(self, "_memory", None) is None:
            self._memory: torch.Tensor | None = torch.empty(self._nbytes, dtype=torch.uint8, device=device.NAME)

    def sleep(self, level: int = 1) -> None:
        if not self._sleeps:
            raise UnpredictableError("vLLM sleeps only with enable_sleep_mode=True")
        self._memory = None
        gc.collect()
        torch.cuda.empty_cache()

    def reset_prefix_cache(self) -> bool:
        return True

    def generate(
        self, prompts: Sequence[dict[str, Any]], sampling_params: SamplingParams, **options: Any
    ) -> list[SimpleNamespace]:
        """Return completions of tokens that occur in the prompts, since those that end a completion are not known."""
        recorder = device.recorder
        recorder.reads.note_choice(GENERATION)
        ends = recorder.values.choices.other_end == GENERATION
        length = max(sampling_params.min_tokens, 1) if ends else sampling_params.max_tokens
        return [_answer(_tokens(prompt), length, sampling_params) for prompt in prompts]


def _longest(model: str) -> int:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model).get_text_config().max_position_embeddings


def _tokens(prompt: Any) -> list[int]:
    if isinstance(prompt, dict) and "prompt_token_ids" in prompt:
        return prompt["prompt_token_ids"]
    raise UnpredictableError("vLLM's prompts are predicted as prompt_token_ids alone, and this one has none")


def _answer(tokens: list[int], length: int, sampling_params: SamplingParams) -> SimpleNamespace:
    last = tokens[-1]
    scores = None if sampling_params.logprobs is None else [{last: SimpleNamespace(logprob=-1.0, rank=1)}] * length
    one = SimpleNamespace(token_ids=[last] * length, logprobs=scores, finish_reason="length")
    return SimpleNamespace(prompt_token_ids=tokens, outputs=[one] * sampling_params.n)
