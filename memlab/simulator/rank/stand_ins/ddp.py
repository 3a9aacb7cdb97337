"""DistributedDataParallel: its C++ reducer waits for gradients that no other rank sends."""

from types import ModuleType

import torch
import torch.distributed as dist

from memlab.simulator.rank.stand_ins import GpuModel, Recorder, StandIn


def stand_in(gpu: GpuModel) -> StandIn:
    return StandIn(changes={"torch.nn.parallel.distributed": _reduce_in_place})


def _reduce_in_place(distributed: ModuleType, recorder: Recorder) -> None:
    """Take each bucket for its own sum over the ranks: the work of a fake collective carries no result."""

    def verify(group: dist.ProcessGroup, *args, **options) -> None:  # would read the shapes of other ranks
        recorder.libraries.runs_in(group)

    dist._verify_params_across_processes = verify
    ddp = distributed.DistributedDataParallel
    init = ddp.__init__

    def init_with_hook(self, *args, **options) -> None:
        init(self, *args, **options)
        dist._register_comm_hook(self.reducer, None, _itself)

    ddp.__init__ = init_with_hook


def _itself(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
