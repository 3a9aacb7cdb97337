"""Pretrained weights: tensors of the same shapes without values, and nothing is downloaded or read.

``from_pretrained`` runs as it is, with its own choice of dtype, device and quantization. It only gets a state dict
without bytes in place of the files.
"""

import os
from dataclasses import replace
from types import ModuleType

import torch

from memlab.core.config import Config
from memlab.predict.constants import GpuModel
from memlab.predict.trace.shadow.recorder import Recorder
from memlab.predict.trace.shadow.stand_ins import StandIn


def stand_in(config: Config, gpu: GpuModel) -> StandIn:
    return StandIn(
        changes={"transformers.modeling_utils": _load_no_files},
        configured=lambda config: replace(config, model=replace(config.model, weights="random")),
    )


def _load_no_files(modeling_utils: ModuleType, recorder: Recorder) -> None:
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads of a pool, which would not record
    model_class = modeling_utils.PreTrainedModel
    load = model_class._load_pretrained_model

    def load_shapes(model, state_dict, checkpoint_files, load_config, expected_keys=None):
        if state_dict is None:
            state_dict = _state_dict(model, load_config.dtype, recorder)
        return load(model, state_dict, None, load_config, expected_keys)

    # Without a dtype in its configuration, a model has that of its files; they are taken for 32 bits.
    modeling_utils._get_resolved_checkpoint_files = lambda **options: ([], {"dtype": torch.float32})
    model_class._load_pretrained_model = staticmethod(load_shapes)


def _state_dict(model, dtype: torch.dtype, recorder: Recorder) -> dict[str, torch.Tensor]:
    """Return what the files of the model hold: each weight once, on the host, in ``dtype``."""
    partitioned = dict(model.named_parameters())  # those under zero.Init know their full shape
    found = {}
    for name, tensor in model.state_dict().items():
        if name not in model.all_tied_weights_keys:
            shape = getattr(partitioned.get(name), "ds_shape", tensor.shape)
            found[name] = recorder.host_tensor(shape, dtype if tensor.is_floating_point() else tensor.dtype)
    return found
