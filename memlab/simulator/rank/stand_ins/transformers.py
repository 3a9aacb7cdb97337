"""transformers: what it does for fake tensors alone, and generation.

Which tokens end a generation is noted, so that its length can be chosen (rank/choices.py). Decoding steps that are
alike are computed (rank/decoding_steps.py).
"""

import functools
from types import ModuleType
from typing import Any

import torch

from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(
        changes={"transformers.utils.import_utils": _skip_masks, "transformers.generation.utils": _announce_generations}
    )


def _skip_masks(import_utils: ModuleType, recorder: Recorder) -> None:
    """Skip masks that are not needed, which transformers does except for fake tensors."""
    import_utils.is_fake_tensor = lambda tensor: False


def _announce_generations(utils: ModuleType, recorder: Recorder) -> None:
    from memlab.simulator.rank.decoding_steps import DecodingSteps  # needs numpy, as transformers does

    mixin, choices = utils.GenerationMixin, recorder.values.choices
    processors, generate, continuations = mixin._get_logits_processor, mixin.generate, mixin._get_top_k_continuations

    @functools.wraps(processors)
    def processors_of(model: Any, generation_config: Any, input_ids_seq_length: int, *args: Any, **options: Any) -> Any:
        ending = generation_config.eos_token_id
        tokens = [ending] if isinstance(ending, int) else list(ending or ())
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        at_least = (generation_config.min_length or 0) - input_ids_seq_length
        choices.begin_generation(vocabulary, tokens, max(at_least, generation_config.min_new_tokens or 0))
        return processors(model, generation_config, input_ids_seq_length, *args, **options)

    @functools.wraps(generate)
    def generate_announced(*args: Any, **options: Any) -> Any:
        try:
            return generate(*args, **options)
        finally:
            choices.end_generation()

    @functools.wraps(continuations)
    def continuations_of(*args: Any, num_beams: int, **options: Any) -> tuple[torch.Tensor, ...]:
        with choices.among_beams(num_beams):
            found = continuations(*args, num_beams=num_beams, **options)
        scores = torch.arange(0, -found[0].shape[-1], -1, dtype=torch.float32, device="cpu")
        recorder.values.write(found[0], scores.expand(found[0].shape))  # so that beams are compared as in a real run
        return found

    mixin._sample = DecodingSteps(recorder).within(mixin._sample)
    mixin._get_logits_processor, mixin.generate = processors_of, generate_announced
    mixin._get_top_k_continuations = continuations_of
