"""Build a DeepSpeed op, or load it if it is built: ``python -m memlab.training.build_op FusedAdam``."""

import sys

from deepspeed.accelerator import get_accelerator

if __name__ == "__main__":
    get_accelerator().create_op_builder(f"{sys.argv[1]}Builder").load(verbose=False)
