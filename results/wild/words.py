"""What models and data share: the folder that both are written to, and the words of all texts, from a fixed seed."""

import random
import string
import sys
from pathlib import Path

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/wild/inputs")
CHANCE = random.Random(11)
WORDS = ["".join(CHANCE.choices(string.ascii_lowercase, k=CHANCE.randint(2, 8))) for _ in range(4000)]


def text(words: int) -> str:
    """Return a text of about this many words."""
    return " ".join(CHANCE.choices(WORDS, k=max(2, round(words * CHANCE.lognormvariate(0, 0.5)))))
