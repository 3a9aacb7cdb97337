"""One launch inside one rank: build the model once, then train and measure each point in turn with Trainer.

All points of a launch run in one ``Trainer.train()`` with the same engine; only the shape of the data changes. Between
points the rank frees unused memory and resets all peaks. A launch may also have a single point.
"""

import gc
import inspect
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import deepspeed
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from memlab.attach.facts.machine import runtime_versions
from memlab.attach.facts.models import parameter_counts
from memlab.attach.memory_history import MemoryHistory
from memlab.attach.out_of_memory import FailedRequest, OutOfMemoryKeeper
from memlab.attach.script_errors import describe
from memlab.core.config import Config
from memlab.core.plan import Plan
from memlab.core.record import BEFORE_STEPS, MODEL_FLOPS, RankResult, left_out
from memlab.files.json_file import write_json
from memlab.runs.folder import RunFolder
from memlab.system.shared_memory import segment
from memlab.worker.data import Batches, Shape
from memlab.worker.flops import model_flops
from memlab.worker.memory import CpuDevice, CudaDevice
from memlab.worker.model import base_model, build_model
from memlab.worker.output import write_output_to
from memlab.worker.point import Point


def map_and_release(rank: int) -> None:
    """Map the segments of all ranks, then remove the name of this rank's segment."""
    deepspeed.init_distributed()  # otherwise zero.Init or the engine maps them, later, in code that may fail
    torch.distributed.barrier()
    # Ranks on several hosts share no memory: then the segment is missing.
    segment(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], rank).unlink(missing_ok=True)


ENGINE_PHASES = {"forward": "forward", "backward": "backward", "step": "optimizer_step"}
"""Method of the DeepSpeed engine -> phase of its calls."""


def run_points(folders: Sequence[RunFolder], rank: int) -> int:
    """Measure the points of ``folders``, whose plans differ only in shape. Returns the exit code of the rank.

    After an error, the rank file of the point that failed holds the reason, and later points have no rank file.
    """
    session = None
    try:
        session = Session(folders, rank)
        session.run()
    except BaseException as error:
        traceback.print_exc()
        if session is None:
            fail_before_the_device(folders[0], rank, error)
        else:
            session.fail(error)
        return 1
    return 0


def fail_before_the_device(folder: RunFolder, rank: int, error: BaseException) -> None:
    """Write the rank file of a rank that failed before it had a device: status and reason only."""
    status, reason, oom = describe(error)
    result = RankResult(rank, device="", device_name="", memory_source="", status=status, reason=reason, oom=oom)
    write_json(folder.rank_file(rank), result.to_json())


class Session:
    def __init__(self, folders: Sequence[RunFolder], rank: int):
        self.plans = [folder.read_plan() for folder in folders]
        self.config = self.plans[0].config
        self.rank = rank
        self.history = self.start_history(folders[0])
        is_cpu, local_rank = self.config.hardware.device == "cpu", int(os.environ["LOCAL_RANK"])
        self.device: CpuDevice | CudaDevice = CpuDevice() if is_cpu else CudaDevice(local_rank)
        self.points = [
            Point(folder, plan.config, rank, self.device) for folder, plan in zip(folders, self.plans, strict=True)
        ]
        self.index = 0
        self.engine: Any = None  # the model as it trains, once it is ready
        self.keeper = OutOfMemoryKeeper(lambda: self.point.folder.rank_file(rank))
        self.device.memory.on_leaving = self.phase_ends
        if self.history is not None:
            self.points[0].on_warm = self.history.keep
        if not is_cpu:
            torch._C._cuda_attach_out_of_memory_observer(self.runs_out_of_memory)

    @property
    def point(self) -> Point:
        """The point that is being measured."""
        return self.points[self.index]

    def run(self) -> None:
        memory = self.device.memory
        self.note("launch_s", time.perf_counter() - (time.time() - float(os.environ["MEMLAB_STARTED_AT"])))
        # TrainingArguments starts the process group; without one, zero.Init would put the whole model on every rank.
        # While it is alive, transformers builds the model under zero.Init at stage 3, with its DeepSpeed JSON.
        steps = sum(point.num_steps + point.num_profiled for point in self.points)
        arguments = training_arguments(self.plans[0], self.point.folder, steps)
        if self.config.hardware.device == "cpu":
            map_and_release(self.rank)
        memory.install()
        began = time.perf_counter()
        gc.collect()  # so that which cycles are freed in this phase does not depend on what ran before
        with memory.phase("model_build"):
            model = build_model(self.config, self.device.torch_device)
        self.note("build_s", began)
        self.describe_model(model)
        shapes, world_size = [point.shape for point in self.points], int(os.environ["WORLD_SIZE"])
        batches = batches_for(model, self.config, shapes, self.rank, world_size)
        trainer = PointsTrainer(model, arguments, batches, on_loss=lambda loss: self.point.losses.append(loss))
        trainer.add_callback(Steps(self, trainer))
        self.began_init = time.perf_counter()
        memory.enter("engine_init")
        trainer.train()

    def start_history(self, folder: RunFolder) -> MemoryHistory | None:
        """Record torch's memory history, if the plan says so, from before the rank uses its GPU until the end of the
        first point's warm-up: it slows every allocation."""
        measure, is_on_gpu = self.config.measure, self.config.hardware.device != "cpu"
        if not (measure.snapshot and is_on_gpu and self.rank in (measure.snapshot_ranks or [self.rank])):
            return None
        place = folder.rank_file(self.rank)
        return MemoryHistory(
            lambda: place, lambda: optimizers_of(self.engine), lambda: self.piece(self.device.memory.current)
        )

    def phase_ends(self, phase: str | None) -> None:
        """Note a phase for the history, for an out-of-memory, and in the profile."""
        phase, step, where = self.piece(phase)
        allocated, peak_allocated, _, peak_reserved = self.device.memory.latest
        self.keeper.part_ends(phase, step, allocated, peak_allocated, peak_reserved)
        if self.history is not None:
            self.history.piece_ends(phase, step, where, ends_phase=True)
        if self.point.profiler:
            self.point.profiler.piece_ends(phase)

    def runs_out_of_memory(self, device: int, requested: int, limit: int, free: int) -> None:
        """Keep what the allocator holds: torch calls this when a request has failed."""
        request = FailedRequest(device, requested, limit, free)
        if self.history is not None and self.history.records:
            self.history.out_of_memory(request)
        else:
            self.keeper.keep(request, *self.piece(self.device.memory.current))
            self.keeper.end()

    def piece(self, phase: str | None) -> tuple[str | None, int | None, None]:
        """Return phase and step (from 1) of a part of the run. No line of a script belongs to it."""
        return phase, None if phase is None or phase in BEFORE_STEPS else self.point.step + 1, None

    def describe_model(self, model: torch.nn.Module) -> None:
        parameters, trainable = parameter_counts(model)
        for point in self.points:
            samples = point.config.batch.micro * point.config.batch.accumulation
            point.facts |= {
                "runtime": runtime_versions(),
                "parameters": parameters,
                "trainable_parameters": trainable,
                "unknown": {},
            }
            with left_out(MODEL_FLOPS, point.facts["unknown"]):
                point.facts[MODEL_FLOPS] = model_flops(model, samples, point.config.seq_len.tokens)

    def engine_is_ready(self, engine: torch.nn.Module) -> None:
        """End the phase of engine initialisation and wrap the engine's methods in phases, before the first step."""
        self.device.memory.enter(None)
        self.device.synchronize()
        self.note("init_s", self.began_init)
        self.engine = engine
        for method, phase in ENGINE_PHASES.items():
            measured = self.device.memory.during(self.phase_namer(phase), getattr(engine, method))
            setattr(engine, method, measured)

    def phase_namer(self, phase: str) -> Callable[[], str]:
        return lambda: self.point.phase(phase)

    def step_begin(self) -> None:
        if self.point.step == 0:
            write_output_to(self.point.folder, self.rank)
            self.skipped_before = self.engine.skipped_steps
            self.point.begin()

    def step_end(self) -> None:
        if self.point.is_measured:
            self.point.profiled_step_end()
        else:
            self.point.step_end()
            if self.point.is_measured:
                self.point.facts["skipped_steps"] = self.engine.skipped_steps - self.skipped_before
                self.point.all_is_measured()
        if self.point.is_done:
            self.point.write()
            self.keeper.forget_parts()
            self.index = min(self.index + 1, len(self.points) - 1)

    def fail(self, error: BaseException) -> None:
        status, reason, oom = describe(error)
        if self.history is not None:
            self.history.end()
        self.point.write(status, reason, oom)

    def note(self, name: str, began: float) -> None:
        """Record the seconds since ``began`` with the first point, which alone counts the start of the launch."""
        self.points[0].timing[name] = time.perf_counter() - began


def optimizers_of(engine: torch.nn.Module | None) -> Iterator[torch.optim.Optimizer]:
    """Yield torch's optimizers below the wrappers of DeepSpeed and accelerate."""
    wrapper = getattr(engine, "optimizer", None)
    while wrapper is not None:
        if isinstance(wrapper, torch.optim.Optimizer):
            yield wrapper
        wrapper = getattr(wrapper, "optimizer", None)


class PointsTrainer(Trainer):
    """transformers.Trainer with batches that are already this rank's, and with ``on_loss`` called for each loss."""

    def __init__(self, model, arguments: TrainingArguments, batches: Batches, on_loss: Callable[[torch.Tensor], None]):
        super().__init__(model=model, args=arguments, train_dataset=batches)
        self.on_loss = on_loss

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, batch_size=None)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.on_loss(loss)
        return loss


class Steppable(Protocol):
    """Receiver of the calls of :class:`Steps`: a session, or its stand-in in a shadow run."""

    def engine_is_ready(self, engine: torch.nn.Module) -> None: ...

    def step_begin(self) -> None: ...

    def step_end(self) -> None: ...


class Steps(TrainerCallback):
    """Callback that informs the session when training and each step begin, and when a step ends."""

    def __init__(self, session: Steppable, trainer: Trainer):
        self.session, self.trainer = session, trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.session.engine_is_ready(self.trainer.model_wrapped)

    def on_step_begin(self, args, state, control, **kwargs):
        self.session.step_begin()

    def on_step_end(self, args, state, control, **kwargs):
        self.session.step_end()


def training_arguments(plan: Plan, folder: RunFolder, steps: int) -> TrainingArguments:
    """Return the plan's arguments with the total ``steps`` of all points. Trainer writes nothing into
    ``output_dir``."""
    changed = {
        "deepspeed": plan.deepspeed,
        "output_dir": str(folder),
        "max_steps": steps,
    }
    return TrainingArguments(**{**plan.training_args, **changed})


def batches_for(model: torch.nn.Module, config: Config, shapes: Sequence[Shape], rank: int, world_size: int) -> Batches:
    """Make the batches of a rank. The model accepts shifted labels if ``forward`` passes keyword arguments to the loss
    function, determined as Trainer does it."""
    parameters = inspect.signature(base_model(model).forward).parameters.values()
    return Batches(
        config,
        shapes,
        vocabulary=model.config.get_text_config().vocab_size,
        rank=rank,
        world_size=world_size,
        shift_labels=any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters),
    )
