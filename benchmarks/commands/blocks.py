"""Steps of one process in blocks: memlab's meters work in some of them and rest in the others."""

import os
import sys

METERED = "metered"


class Blocks:
    """Counts steps: first a warm-up, in which the meters stay as they are, then one block of each of ``kinds``.

    In a block that is not metered the meters rest: each listener stays in its place and returns at its first check, as
    after the end of a measurement. So both kinds of blocks pay for the calls of the listeners and for that check.
    """

    def __init__(self, warmup: int, steps: int, kinds: list[str]):
        self.warmup, self.steps, self.kinds = warmup, steps, kinds
        self.done = 0

    @property
    def all_steps(self) -> int:
        return self.warmup + self.steps * len(self.kinds)

    def step(self) -> None:
        """Note the end of a step. Between two blocks, and after the last, the meters begin to work or to rest."""
        self.done += 1
        block, inside = divmod(self.done - self.warmup, self.steps)
        if self.kinds and inside == 0 and block >= 0:
            self._let_meters_work(block == len(self.kinds) or self.kinds[block] == METERED)

    def _let_meters_work(self, work: bool) -> None:
        session = sys.modules["memlab_attach.meters.start"]._file.session
        if work:
            session.pid = os.getpid()  # what Session.end takes away
        else:
            session.end()
