"""The meter of CPU ranks beside gloo, whose threads hold the tensors of a collective for a moment after its end."""

from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from memlab.training.live_tensors import LiveTensors

pytestmark = pytest.mark.cpu

NBYTES = 4096
TENSORS = 400


def _peak_of_one_after_another(rank: int, folder: Path) -> None:
    store = distributed.FileStore(str(folder / "store"), 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    meter = LiveTensors()
    meter.resume()
    before = meter.settled()
    for _ in range(TENSORS):
        distributed.broadcast(torch.ones(NBYTES // 4), 0)
    (folder / f"{rank}").write_text(str(meter.peak - before))
    distributed.destroy_process_group()


def test_tensors_of_finished_collectives_do_not_add_up(tmp_path):
    multiprocessing.spawn(_peak_of_one_after_another, (tmp_path,), nprocs=2)
    assert [int((tmp_path / str(rank)).read_text()) for rank in range(2)] == [NBYTES, NBYTES]
