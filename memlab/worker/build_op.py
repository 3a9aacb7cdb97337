"""Builder of one DeepSpeed op: ``python -m memlab.worker.build_op FusedAdam``. Loads the op if it is already built."""

import sys

from deepspeed.accelerator import get_accelerator


def main() -> None:
    builder = get_accelerator().create_op_builder(f"{sys.argv[1]}Builder")
    builder.load(verbose=False)


if __name__ == "__main__":
    main()
