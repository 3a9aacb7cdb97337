"""Large arrays that a program reads from tensors without values have no memory."""

import pytest

from memlab.simulator.trace.events import HostAlloc
from tests.shadow.one_rank import run

pytestmark = pytest.mark.shadow

LOGITS = """
import numpy as np, torch
from transformers.trainer_pt_utils import EvalLoopContainer
kept = EvalLoopContainer(do_nested_concat=True, padding_index=-100)
for tokens in (1000, 1500):
    kept.add(torch.empty(8, tokens, 150_000, device="cuda"))
    kept.to_cpu_and_numpy()
logits = kept.get_arrays()
print(logits.shape, logits.dtype, np.exp(logits).nbytes >> 30)
logits /= 2
print((logits - np.ones((16, 1500, 1), np.float32)).nbytes >> 30)
plain = [np.asarray(logits), np.array(logits[:8]), np.asarray(logits, dtype=np.float16)]
print([(type(each + 1).__name__, each.nbytes >> 30) for each in plain])
predicted, labels = logits[:, :-1].argmax(-1), np.zeros((16, 1499))
print(predicted.shape, type(predicted).__name__, float(np.mean((predicted == labels)[labels > -1])))
print(torch.ones(3, device="cuda").cpu().numpy())
status = dict(line.split(":", 1) for line in open("/proc/self/status"))  # ru_maxrss has the peak of who started it
print(int(status["VmHWM"].split()[0]) >> 20)
"""


def test_logits_that_an_evaluation_keeps_take_no_memory_and_are_counted(tmp_path):
    trace, printed = run(tmp_path, LOGITS)
    assert printed.splitlines() == [
        "(16, 1500, 150000) float32 13",
        "13",
        "[('LargeArray', 13), ('LargeArray', 6), ('LargeArray', 6)]",
        "(16, 1499) ndarray 1.0",
        "[1. 1. 1.]",
        "0",
    ]
    large = [event.nbytes for event in trace.events if isinstance(event, HostAlloc) and event.nbytes >> 30 == 13]
    assert large == [16 * 1500 * 150_000 * 4] * 4  # the joined logits, their exponential, a difference and a sum
