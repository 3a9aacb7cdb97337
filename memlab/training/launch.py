"""One launch inside one rank: build the model once, then train and measure each point in turn with Trainer.

All points of a launch run in one ``Trainer.train()`` with the same engine; only the shape of the data changes. Between
points the rank frees unused memory and resets all peaks. A launch may also have a single point. The meters are those of
any command (memlab/meters/).
"""

import gc
import os
import traceback
from collections.abc import Sequence
from typing import Any

import deepspeed
import torch

from memlab.core.record import MODEL_FLOPS, left_out
from memlab.meters import start
from memlab.meters.facts.models import parameter_counts
from memlab.meters.phases import FORWARD
from memlab.runs.folder import RunFolder
from memlab.system.shared_memory import segment
from memlab.training.data import Batches
from memlab.training.flops import model_flops
from memlab.training.live_tensors import LiveTensors
from memlab.training.model import build_model
from memlab.training.output import write_output_to
from memlab.training.point import Driver, Point
from memlab.training.trainer import PointsTrainer, StepCallback, trainer_arguments

MEASURED = (
    *("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "phases", "num_alloc_retries", "num_ooms"),
    *("host_rss_bytes", "host_peak_bytes", "host_pinned_bytes", "skipped_steps"),
)
"""Figures that the profiled steps do not change."""


def map_and_release(rank: int) -> None:
    """Map the segments of all ranks, then remove the name of this rank's segment."""
    deepspeed.init_distributed()  # otherwise zero.Init or the engine maps them, later, in code that may fail
    torch.distributed.barrier()
    # Ranks on several hosts share no memory: then the segment is missing.
    segment(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], rank).unlink(missing_ok=True)


def run_points(folders: Sequence[RunFolder], rank: int) -> int:
    """Measure the points of ``folders``, whose plans differ only in shape. Returns the exit code of the rank.

    After an error, the rank file of the point that failed holds the reason, and later points have no rank file.
    """
    launch = None
    try:
        launch = RankLaunch(folders, rank)
        launch.run()
    except BaseException as error:
        traceback.print_exc()
        if launch is not None:
            launch.fail(error)
        return 1
    return 0


class RankLaunch:
    """The points that a rank measures one after another. ``session``: of the meters, one for all points. ``file``: of
    the rank, in the folder of the point that runs. ``live``: the meter of a CPU; ``None`` on a GPU."""

    def __init__(self, folders: Sequence[RunFolder], rank: int):
        self.rank, self.plans = rank, [folder.read_plan() for folder in folders]
        self.config = self.plans[0].config
        local_rank = None if self.config.hardware.device == "cpu" else int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cpu") if local_rank is None else torch.device("cuda", local_rank)
        self.live = LiveTensors() if local_rank is None else None
        driver = Driver(local_rank)
        self.points = [Point(folder, plan.config, driver) for folder, plan in zip(folders, self.plans, strict=True)]
        self.index = 0
        self.file = start.begin(self.point.options(is_first=True), self.live)
        self.session = self.file.session
        # A rank that fails early has used no GPU and has no losses: else its file would give reasons for that.
        self.known_at_start = {"losses": [], **({} if local_rank is None else {"device": str(self.device)})}
        self.session.given |= self.known_at_start
        # A memory history ends before the driver is read, and a profile begins after that.
        callbacks = self.session.callbacks.step
        callbacks.insert(len(callbacks) - self.config.measure.profile, self.after_step)

    @property
    def point(self) -> Point:
        """The point that is being measured."""
        return self.points[self.index]

    def run(self) -> None:
        if self.live is None:
            torch.cuda.set_device(self.device)
        # TrainingArguments starts the process group; without one, zero.Init would put the whole model on every rank.
        # While it is alive, transformers builds the model under zero.Init at stage 3, with its DeepSpeed JSON.
        arguments = trainer_arguments(self.plans[0], self.point.folder, sum(point.num_steps for point in self.points))
        if self.live is not None:
            map_and_release(self.rank)
            self.live.resume()
        gc.collect()  # so that which cycles are freed in this phase does not depend on what ran before
        self.model = build_model(self.config, self.device)
        self.describe_point()
        shapes, world_size = [point.shape for point in self.points], int(os.environ["WORLD_SIZE"])
        batches = Batches(self.model, self.config, shapes, self.rank, world_size)
        trainer = PointsTrainer(self.model, arguments, batches, on_loss=lambda loss: self.point.losses.append(loss))
        trainer.add_callback(StepCallback(self, trainer))
        trainer.train()

    def describe_point(self) -> None:
        session = self.session
        parameters, trainable = parameter_counts(self.model)
        session.given |= {**self.known_at_start, "parameters": parameters, "trainable_parameters": trainable}
        batch = self.point.config.batch
        with left_out(MODEL_FLOPS, session.unknown):
            samples, tokens = batch.micro * batch.accumulation, self.point.config.seq_len.tokens
            session.given[MODEL_FLOPS] = model_flops(self.model, samples, tokens)

    # --- called by Trainer's callback, and by the meters

    def engine_is_ready(self, engine: torch.nn.Module) -> None:
        """Make each call of the engine's forward a phase. By themselves the meters end a forward when the backward
        begins: what the script frees in between would count as freed in the forward."""
        timeline, forward = self.session.timeline, engine.forward
        timeline.begin_base(None)
        timeline.is_marked_by_script = True

        def marked(*args: Any, **kwargs: Any) -> Any:
            with self.session.running(FORWARD):
                return forward(*args, **kwargs)

        engine.forward = marked

    def step_begin(self) -> None:
        if self.point.has_begun:
            return
        self.point.has_begun = True
        write_output_to(self.point.folder, self.rank)
        if self.config.measure.protocol == "steps":
            if self.live is not None:
                self.live.resume()
            self.session.start_over(self.point.options(is_first=self.index == 0))
            self.describe_point()

    def after_step(self) -> bool:
        """Read the driver after each step of the warm-up and after the last measured one. Returns whether it did."""
        step, warmup = self.session.steps_done, self.config.measure.warmup
        if warmup < step != self.point.num_measured:
            return False
        self.session.given |= self.point.read_driver(step)
        if step == warmup and self.live is not None:
            self.live.pause()
        return True

    def step_end(self) -> None:
        self.session.close_step()
        if self.session.steps_done == self.point.num_measured:
            losses = self.session.given["losses"] = self.point.step_losses()
            if None in losses:
                raise FloatingPointError(f"the loss was not finite at step {losses.index(None) + 1}")
            self.file.keep(MEASURED)
            self.point.is_measured = True
        if self.session.steps_done == self.point.num_steps:
            self.file.write_at_the_end(None)
            self.index = min(self.index + 1, len(self.points) - 1)

    def fail(self, error: BaseException) -> None:
        """Write the error into the file of the point that runs, or of the next point if none runs. After the last point
        nothing is written. A point that fails in a profiled step stays as it was measured."""
        is_between_points = self.session.pid is None
        if is_between_points and self.point.has_begun:
            return
        if is_between_points:
            self.session.start_over(self.point.options(is_first=False))
        self.file.write_at_the_end(None if self.point.is_measured else error)
