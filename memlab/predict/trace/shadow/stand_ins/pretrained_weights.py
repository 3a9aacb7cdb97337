"""Pretrained weights: random ones have the same shapes, and nothing is downloaded or read."""

from dataclasses import replace

from memlab.core.config import Config
from memlab.predict.constants import Generation
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: Generation) -> StandIn | None:
    if config.model.weights == "random":
        return None
    return StandIn(configured=lambda config: replace(config, model=replace(config.model, weights="random")))
