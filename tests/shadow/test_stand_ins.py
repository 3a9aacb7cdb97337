"""A new kernel is one file: what it says it takes and launches is in the trace."""

import pytest

from memlab.core.config import Config
from memlab.predict.constants import UNKNOWN
from memlab.predict.trace.events import Alloc, Free
from memlab.predict.trace.trace_format import Trace
from memlab.predict.trace.work_items import KernelLaunch

pytestmark = pytest.mark.shadow

NEW_KERNEL = """
import torch
from memlab.predict.trace.shadow.kernel import Kernel
from memlab.predict.trace.shadow.stand_ins import StandIn

def stand_in(config, gpu):
    kernel = Kernel(
        temporaries=lambda tensor: [100],
        workspaces=lambda tensor: [200, 300],
        kept=lambda tensor: [400],
        launches=lambda tensor: [[10, 20]],
        owner="new",
    )
    return StandIn(kernels={torch.ops.aten.asinh.default: kernel}, smooth_from=7)
"""


def test_a_stand_in_is_found_in_the_folder_and_recorded(tmp_path, monkeypatch):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memlab.predict.trace.shadow import stand_ins
    from memlab.predict.trace.shadow.recorder import Recorder

    (tmp_path / "new_kernel.py").write_text(NEW_KERNEL)
    monkeypatch.setattr(stand_ins, "__path__", [str(tmp_path)])
    trace, fake_mode = Trace(0, 1), FakeTensorMode()
    recorder = Recorder(trace, fake_mode)
    config = Config()
    assert stand_ins.install(recorder, config, UNKNOWN) == config
    with fake_mode:
        tensor = torch.empty(4)
        with recorder:
            recorder.counter.start()
            torch.asinh(tensor)
            recorder.stop()

    allocated = {event.key: event.nbytes for event in trace.events if isinstance(event, Alloc)}
    assert list(allocated.values()) == [100, 200, 300, 400]
    assert [allocated[event.key] for event in trace.events if isinstance(event, Free)] == [100, 200, 300]
    assert {site.op for site in trace.sites} == {"new"}
    assert [item.sizes for item in trace.work if isinstance(item, KernelLaunch)] == [(10, 20)]
    assert trace.smooth_from == 7
