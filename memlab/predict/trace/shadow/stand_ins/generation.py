"""Generation with transformers: which tokens end it, so that its length can be chosen (shadow/choices.py)."""

import functools
from types import ModuleType
from typing import Any

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(changes={"transformers.generation.utils": _announce_generations})


def _announce_generations(utils: ModuleType, recorder: Recorder) -> None:
    mixin, choices = utils.GenerationMixin, recorder.values.choices
    criteria, generate = mixin._get_stopping_criteria, mixin.generate

    @functools.wraps(criteria)
    def criteria_of(model: Any, generation_config: Any, *args: Any, **options: Any) -> Any:
        ending = generation_config.eos_token_id
        tokens = [ending] if isinstance(ending, int) else list(ending or ())
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        choices.begin_generation(vocabulary, tokens, generation_config.min_new_tokens or 0)
        return criteria(model, generation_config, *args, **options)

    @functools.wraps(generate)
    def generate_announced(*args: Any, **options: Any) -> Any:
        try:
            return generate(*args, **options)
        finally:
            choices.end_generation()

    mixin._get_stopping_criteria, mixin.generate = criteria_of, generate_announced
