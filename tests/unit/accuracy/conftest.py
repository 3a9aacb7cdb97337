"""Records as measuring writes them, for predictions to be judged by."""

import pytest


@pytest.fixture
def measured(config, record):
    """``measured(tokens, isolation)``: a record of the shape (1, tokens)."""

    def build(tokens, isolation, before=None, timing=None, stage=2, device="cuda", **changes):
        values = config({"seq_len.tokens": tokens, "zero_stage.stage": stage, "hardware.device": device})
        return record(config=values, isolation=isolation, before_in_launch=before, timing=timing or {}, **changes)

    return build
