"""Training of one rank on the simulated device: the same steps as memlab's worker, without measuring.

Model, data, Trainer and phases are the worker's own code, so a prediction runs exactly what a measurement runs.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from memlab.core.config import Config
from memlab.core.plan import Plan
from memlab.core.record import MODEL_FLOPS, left_out
from memlab.meters.facts.models import parameter_counts
from memlab.meters.owner import Owner
from memlab.meters.ownership import Ownership
from memlab.runs.folder import RunFolder
from memlab.simulator.rank import device
from memlab.simulator.rank.memory_events import block_of
from memlab.simulator.rank.recorder import Recorder
from memlab.simulator.trace.memory_kinds import name_sites
from memlab.training.data import Batches, Shape
from memlab.training.flops import model_flops
from memlab.training.model import build_model
from memlab.training.trainer import PointsTrainer, StepCallback, trainer_arguments

ENGINE_PHASES = {"forward": "forward", "backward": "backward", "step": "optimizer_step"}
"""Method of the DeepSpeed engine -> phase of its calls."""


@dataclass
class Shadow:
    """The launch of a rank (``memlab.training.launch.RankLaunch``), recorded instead of measured. It trains as in
    ``plan``, with the model and data of ``config``.

    ``split`` returns (batch, tokens) and is called once the engine is ready. It may fork, because nothing before
    depends on these two values.
    """

    plan: Plan
    config: Config
    recorder: Recorder
    split: Callable[[], tuple[int, int]]
    steps: int
    scratch: RunFolder
    step: int = 0
    engine: torch.nn.Module | None = None
    owners: dict[int, Owner] = field(default_factory=dict)  # by the block's key

    def run(self) -> None:
        arguments = trainer_arguments(self.plan, self.scratch, self.steps)
        gc.collect()  # so that which cycles are freed in this phase does not depend on the modules imported before
        self.recorder.phase("model_build")
        model = build_model(self.config, torch.device(device.NAME, device.current()))
        trace = self.recorder.trace
        self.ownership = Ownership(lambda: optimizers_of(self.engine), block_of, model)
        self._phase_ends("model_build")
        trace.parameters, trace.trainable_parameters = parameter_counts(model)
        with left_out(MODEL_FLOPS, trace.unknown):
            trace.model_flops = _flops_by_token_and_pair(model)
        self.recorder.sites.follow_modules(on_entering=self.recorder.counter.module)
        shape = self._shape(self.config.batch.micro, self.config.seq_len.tokens)
        self.batches = Batches(model, self.config, [shape], trace.rank, trace.world_size)
        trainer = PointsTrainer(model, arguments, self.batches, on_loss=lambda loss: None)
        trainer.add_callback(StepCallback(self, trainer))
        self.recorder.phase("engine_init")
        trainer.train()
        name_sites(trace, self.owners, self.recorder.sites.vocabularies)

    def _shape(self, micro: int, tokens: int) -> Shape:
        return Shape(micro, tokens, self.config.batch.accumulation * self.steps)

    # --- called by the worker's callback

    def engine_is_ready(self, engine: torch.nn.Module) -> None:
        self.engine = engine
        self._phase_ends("engine_init")
        micro, tokens = self.split()
        self.recorder.trace.micro, self.recorder.trace.tokens = micro, tokens
        self.batches.shapes = [self._shape(micro, tokens)] * len(self.batches)
        for method, phase in ENGINE_PHASES.items():
            setattr(engine, method, self._in_phase(phase, getattr(engine, method)))

    def step_begin(self) -> None:
        if self.step == 0:
            gc.collect()
            self.recorder.memory.empty_cache()
            self.recorder.memory.start_over()
        if self.step == self.steps - 1:
            self.recorder.counter.start()
        self.recorder.trace.steps.append(len(self.recorder.trace.events))

    def step_end(self) -> None:
        self.step += 1
        if self.step == self.steps:
            self.recorder.stop()

    def _in_phase(self, phase: str, method):
        def recorded(*args, **kwargs):
            name = phase if self.step else f"first_{phase}"
            self.recorder.phase(name)
            result = method(*args, **kwargs)
            self._phase_ends(name)
            return result

        return recorded

    def _phase_ends(self, phase: str) -> None:
        self.owners |= self.ownership.after(phase)  # a later look knows more
        self.recorder.phase(None)


def optimizers_of(engine: torch.nn.Module | None) -> Iterator[torch.optim.Optimizer]:
    """Yield torch's optimizers below the wrappers of DeepSpeed and accelerate."""
    wrapper = getattr(engine, "optimizer", None)
    while wrapper is not None:
        if isinstance(wrapper, torch.optim.Optimizer):
            yield wrapper
        wrapper = getattr(wrapper, "optimizer", None)


def _flops_by_token_and_pair(model: torch.nn.Module) -> tuple[float, float]:
    """Return the coefficients (a, b) of :func:`model_flops` for one sample: ``a * tokens + b * tokens**2``."""
    one, two = model_flops(model, 1, 1), model_flops(model, 1, 2)
    by_pair = (two - 2 * one) / 2
    return one - by_pair, by_pair
