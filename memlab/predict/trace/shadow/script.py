"""An unmodified script, run as one rank on simulated GPUs: ``python -m memlab.predict.trace.shadow.script REQUEST``.

REQUEST is a JSON file: see :class:`memlab.predict.trace.parse_command.RankRequest`.
"""

import faulthandler
import os
import runpy
import sys
import time
from pathlib import Path

from memlab.files.cache_folder import cache_folder
from memlab.predict.trace.parse_command import RankRequest
from memlab.predict.trace.shadow import native


def main(request: RankRequest) -> int:
    """Run the script and write its trace. Returns the exit code of the script, or 1 after an exception."""
    library = native.load(cache_folder("native"))
    from torch._subclasses.fake_tensor import FakeTensorMode  # imports torch

    from memlab.attach import start
    from memlab.attach.options import Options
    from memlab.core.config import Config
    from memlab.predict.trace.shadow import beside_dispatcher, device, run, stand_ins, unpredictable
    from memlab.predict.trace.shadow.recorder import Recorder
    from memlab.predict.trace.shadow.script_steps import ScriptSteps
    from memlab.predict.trace.shadow.short_epochs import ShortEpochs
    from memlab.predict.trace.trace_format import Trace

    gpus = device.Gpus(request.node.gpu, request.node.memory_bytes, request.node.gpus, request.local_rank)
    device.start(library)
    run.install()
    trace = Trace(request.rank, request.world_size)
    recorder = Recorder(trace, FakeTensorMode(allow_non_fake_inputs=True))
    device.install(recorder, gpus)
    beside_dispatcher.install_in_threads(recorder)
    stand_ins.install(recorder, Config(), gpus.model)
    unpredictable.explain_at_the_end()
    faulthandler.enable()  # compiled code may read memory that is not there
    meters = start.begin(Options(request.folder, request.steps, time.time()))
    if request.steps is None:
        ShortEpochs(meters.session, recorder).install()
    steps = ScriptSteps(meters.session, recorder)
    sys.argv = [request.program, *request.arguments]
    with recorder:
        code = _run(request)
    meters.session.exits(code)
    error = getattr(sys, "last_value", None)
    if meters.session.is_worth_a_file(error):
        meters.write_at_the_end(error)
    steps.finish()
    trace.seconds = time.process_time()
    trace.save(Path(request.trace))
    return code


def _run(request: RankRequest) -> int:
    try:
        if request.is_module:
            runpy.run_module(request.program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(request.program)))
            runpy.run_path(request.program, run_name="__main__")
    except SystemExit as end:
        return 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        sys.last_value = error  # as the interpreter would, for the rank file
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


if __name__ == "__main__":
    code = main(RankRequest.load(Path(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads and destructors of the program's libraries expect a GPU
