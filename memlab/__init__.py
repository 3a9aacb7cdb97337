"""memlab: GPU memory, step time and cost of fine-tuning language models with DeepSpeed, measured or predicted.

In a script or a notebook of your own: ``with memlab.measure("folder"):`` around the training, or
``memlab.Callback("folder")`` among the callbacks of transformers' Trainer (without a folder: ``memlab`` in its
``output_dir``). The folder is an ordinary run folder.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.2.0"

_BY_HAND = {"measure": "measure", "Callback": "callback"}


def __getattr__(name: str) -> "Any":
    """Import what measures by hand when it is first asked for: ``import memlab`` costs nothing."""
    if name not in _BY_HAND:
        raise AttributeError(f"module 'memlab' has no attribute '{name}'")
    from memlab.launch.user_command import by_hand

    return getattr(by_hand, _BY_HAND[name])
