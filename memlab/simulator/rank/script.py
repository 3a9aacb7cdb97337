"""A process of a command on simulated GPUs: the bootstrap calls ``prepare`` before the script begins.

Whatever runs in the process then is the command's own: its launcher, or a rank with its unmodified script.
"""

import atexit
import gc
import os
import sys
import time

from memlab.meters import import_hook
from memlab.simulator.rank import launchers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from ctypes import CDLL
    from types import ModuleType
    from typing import NoReturn

    from memlab.meters.rank_file import RankFile
    from memlab.simulator.rank.device import Gpus
    from memlab.simulator.rank.recorder import Recorder
    from memlab.simulator.rank.script_steps import ScriptSteps
    from memlab.simulator.simulation import Simulation

MORE_OBJECTS = 2
"""Factor of the threshold of Python's garbage collector. A simulated rank makes more objects than a real one, so its
collector would run more often, and free GPU memory in reference cycles too early. Measured: a Llama of 24 layers in
transformers' Trainer has 10 collections of the youngest objects while it is built (8 on a CPU without simulation), and
385 in eight steps (70). With this factor it has 4 and 186."""

OLDEST_TORCH = (2, 11)
"""The oldest version of torch that predictions are tested with."""


def prepare() -> None:
    """Give this process simulated GPUs as soon as it imports torch. A rank that is not needed ends here."""
    if not launchers.takes_part(os.environ):
        os._exit(0)
    libraries: list[CDLL] = []
    start = _see_gpus if launchers.is_launcher() else _record
    import_hook.before("torch", lambda: libraries.append(_load()))
    import_hook.after("torch", lambda torch: _start(start, libraries[0]))


def _load() -> "CDLL":
    """Load what torch must find when it is imported. Ends the process where it cannot be had."""
    from memlab.simulator.rank import native
    from memlab.simulator.simulation import own_folder, refuse

    try:
        native.check_torch(OLDEST_TORCH)
        return native.load(native.of_commands(), new=own_folder())
    except native.NativeLibraryError as error:
        refuse(str(error))


def _start(start: "Callable[[Simulation, CDLL], None]", library: "CDLL") -> None:
    from memlab.simulator.simulation import Simulation

    simulation = Simulation.of_this_process()
    simulation.note_loaded()
    simulation.tell_where_time_ends()
    start(simulation, library)


def _gpus(simulation: "Simulation") -> "Gpus":
    from memlab.simulator.rank.device import Gpus

    node = simulation.node
    return Gpus(node.gpu, node.memory_bytes, node.gpus)


def _see_gpus(simulation: "Simulation", library: "CDLL") -> None:
    """Let a launcher see the GPUs that it starts ranks for."""
    import torch

    from memlab.simulator.rank import cuda, device

    device.start(library)
    device.install(None, _gpus(simulation))
    cuda.install()
    # DeepSpeed compiles a function at its import that is never called, which takes two seconds.
    torch.compile = lambda model=None, **options: model or (lambda function: function)
    launchers.start_one_node()


def _record(simulation: "Simulation", library: "CDLL") -> None:
    """Record everything that the script does on its GPU, until the process ends."""
    import faulthandler

    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memlab.meters import start
    from memlab.meters.options import MeterOptions
    from memlab.simulator import own_stand_ins
    from memlab.simulator.rank import beside_dispatcher, device, exits, mailbox, patches, stand_ins, unpredictable
    from memlab.simulator.rank.counted_memory import CountedMemory
    from memlab.simulator.rank.recorder import Recorder
    from memlab.simulator.rank.script_steps import ScriptSteps
    from memlab.simulator.rank.short_epochs import ShortEpochs
    from memlab.simulator.simulation import SEED, own_folder
    from memlab.simulator.trace.trace_format import Trace

    def compute_micro_steps(trainer: "ModuleType") -> None:
        from memlab.simulator.rank.trainer_micro_steps import TrainerMicroSteps  # needs numpy, as transformers does

        TrainerMicroSteps(meters.session, recorder).install(trainer)

    mailbox.note_rank(os.environ.get("RANK"))
    gpus = _gpus(simulation)
    device.start(library)
    patches.install()
    recorder = Recorder(Trace(0, 1), FakeTensorMode(allow_non_fake_inputs=True))
    recorder.values.choices.other_end = simulation.other_end
    device.install(recorder, gpus)
    beside_dispatcher.install_in_threads(recorder)
    stand_ins.install(recorder, gpus.model)
    stand_ins.install_own(recorder, gpus.model, own_stand_ins.files())
    unpredictable.explain_at_the_end(recorder.assumptions.of_sizes)
    faulthandler.enable()  # compiled code may read memory that is not there
    ending = _Ending(recorder)
    options = MeterOptions(str(own_folder()), simulation.steps, started_at=simulation.started_at, probes_host=False)
    meters = ending.file = start.begin(options, CountedMemory(recorder.trace.events, recorder.memory))
    exits.listen(meters.session.exits)
    if simulation.steps is None:
        ShortEpochs(meters.session, recorder).install()
    import_hook.after("transformers.trainer", compute_micro_steps)
    ending.steps = ScriptSteps(meters.session, recorder)
    torch.manual_seed(SEED)
    youngest, *older = gc.get_threshold()
    gc.set_threshold(MORE_OBJECTS * youngest, *older)
    recorder.__enter__()


class _Ending:
    """The end of a rank: it writes the trace after the meters' file, and skips destructors that expect a GPU."""

    def __init__(self, recorder: "Recorder"):
        self.recorder = recorder
        self.file: RankFile  # of the meters, which begin after this
        self.steps: ScriptSteps
        self._pid = os.getpid()
        self._exit = os._exit
        atexit.register(self._at_exit)
        os._exit = self._write_and_exit  # type: ignore[assignment]  # the parameter has another name

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            from memlab.meters.rank_file import rank_number
            from memlab.simulator.rank import mailbox

            error, session = getattr(sys, "last_value", None), self.file.session
            failed, ending = error is not None and session.outcome(error)["status"] != "ok", session.ending
            if ending.exit_code and not failed:
                print(f"SystemExit: {ending.exit_line}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            mailbox.leave(rank_number())
            launchers.wait_for_started_ranks()
            self._write_and_exit(1 if failed else ending.exit_code)

    def _write_and_exit(self, code: int) -> "NoReturn":
        if os.getpid() == self._pid:
            self._write_trace()
        self._exit(code)

    def _write_trace(self) -> None:
        """Write the trace beside the file of this rank, or where that file would be: nothing was trained."""
        from pathlib import Path

        from memlab.meters.rank_file import rank_number
        from memlab.simulator.rank import device

        self.steps.finish()
        trace = self.recorder.trace
        trace.rank = rank_number() if self.file.rank is None else self.file.rank
        trace.world_size = int(os.environ.get("WORLD_SIZE", self.file.world_size))
        if self.recorder.memory.requests:
            trace.gpu = device.index_on_node(self.recorder.memory.gpu)
        if len(self.recorder.memory.gpus) > 1:
            trace.gpus = list(self.recorder.memory.gpus)
        trace.seconds = time.process_time()
        ranks, own = Path(self.file.session.options.folder), self.file.path
        path = (own or ranks / f"rank{trace.rank}.json").with_suffix(".trace.json")
        if own is not None or not path.exists():
            trace.save(path)
