"""Options that the parent passes to the ranks."""

import pytest

from memlab.meters.options import MeterOptions


@pytest.mark.parametrize(
    ("explain", "chosen", "recorded"), [(None, (), []), (3, (), [0, 1, 2]), (3, (0, 2), [0, 2]), (None, (0,), [])]
)
def test_chosen_ranks_record_their_history(tmp_path, explain, chosen, recorded):
    MeterOptions(str(tmp_path), explain=explain, explain_ranks=chosen).write(tmp_path)
    options = MeterOptions.read(tmp_path)
    assert [rank for rank in range(3) if options.explains(rank)] == recorded
