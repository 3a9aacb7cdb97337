"""One rank's training on the device that is not there: transformers.Trainer over the plan, step for step as it is measured."""

import gc
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from memlab.plan import Plan
from memlab.predict.shadow import device
from memlab.predict.shadow.trace import Recorder

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def train(plan: Plan, recorder: Recorder, batch: int, tokens: int, steps: int) -> None:
    """Build, initialise and train for ``steps`` optimizer steps at one (batch, tokens); ``recorder`` sees everything."""
    arguments = TrainingArguments(**{**plan.training_args, "deepspeed": plan.deepspeed, "max_steps": steps})
    recorder.phase("model_build")
    model = build_model(plan.config)
    _count_parameters(model, recorder)
    recorder.sites.name_modules(model)
    recorder.phase("engine_init")
    batches = Batches(batch, tokens, steps * arguments.gradient_accumulation_steps)
    trainer = ShadowTrainer(model=model, args=arguments, train_dataset=batches)
    trainer.add_callback(_Protocol(trainer, recorder))
    trainer.train()


def build_model(config: dict[str, Any]) -> torch.nn.Module:
    """The plan's model with weights that are not there, built on the device; under ``zero.Init`` at stage 3."""
    model = config["model"]
    if model["config"]:
        hf_config = AutoConfig.for_model(**(model["config"] | model["overrides"]))
    else:
        hf_config = AutoConfig.from_pretrained(
            model["path"], trust_remote_code=model["trust_remote_code"], **model["overrides"]
        )
    hf_config.use_cache = False
    with torch.device(device.DEVICE):
        return AutoModelForCausalLM.from_config(
            hf_config,
            dtype=DTYPES[config["precision"]["dtype"]],
            attn_implementation=_attention(config["attention"]["implementation"]),
            trust_remote_code=model["trust_remote_code"],
        )


def _attention(implementation: str) -> str:
    """The flash-attn package needs not be installed to predict for it: attention.py has its memory."""
    return "memlab_fa" if implementation.startswith("flash") else implementation


def _count_parameters(model: torch.nn.Module, recorder: Recorder) -> None:
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    recorder.trace.parameters = sum(size for size, _ in sizes)
    recorder.trace.trainable_parameters = sum(size for size, trainable in sizes if trainable)


@dataclass
class Batches:
    """A data loader of ``count`` equal batches of exactly ``tokens`` tokens, as ``data=random`` draws them."""

    batch: int
    tokens: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        for _ in range(self.count):
            tokens = torch.zeros(self.batch, self.tokens, dtype=torch.long)
            yield {"input_ids": tokens, "labels": tokens.clone()}


class ShadowTrainer(Trainer):
    """Trainer, but for the data: sampling and collating need values."""

    def get_train_dataloader(self):
        return self.accelerator.prepare(self.train_dataset)


class _Protocol(TrainerCallback):
    """Marks the phases, and empties the cache before the first step, as the worker does."""

    def __init__(self, trainer: Trainer, recorder: Recorder):
        self._trainer = trainer
        self._recorder = recorder

    def on_train_begin(self, args, state, control, **kwargs):
        engine = self._trainer.deepspeed
        for method, phase in (("forward", "forward"), ("backward", "backward"), ("step", "optimizer_step")):
            setattr(engine, method, self._in_phase(getattr(engine, method), phase, state))

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            gc.collect()
            self._recorder.empty_cache()

    def on_train_end(self, args, state, control, **kwargs):
        self._recorder.stop()

    def _in_phase(self, method, phase: str, state):
        def call(*args, **kwargs):
            self._recorder.phase(phase if state.global_step else f"first_{phase}")
            return method(*args, **kwargs)

        return call
