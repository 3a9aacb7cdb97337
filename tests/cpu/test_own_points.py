"""The end of a point in one rank of memlab's own training: which file an error goes to."""

from types import SimpleNamespace

import pytest

from memlab.training.launch import RankLaunch

pytestmark = pytest.mark.cpu

ERROR = ValueError("odd")


@pytest.fixture
def launch() -> RankLaunch:
    """A launch in its second point, with what was written, and the options of what began."""
    launch = RankLaunch.__new__(RankLaunch)
    launch.written, launch.begun = [], []
    point = SimpleNamespace(has_begun=True, is_measured=False, num_measured=5, options=lambda is_first: is_first)
    launch.points, launch.index = [point, point], 1
    launch.session = SimpleNamespace(pid=1, steps_done=2, start_over=launch.begun.append, close_step=lambda: None)
    launch.session.given = {}
    launch.file = SimpleNamespace(write_at_the_end=launch.written.append)
    return launch


def test_an_error_belongs_to_the_point_that_runs(launch):
    launch.fail(ERROR)
    assert (launch.written, launch.begun) == ([ERROR], [])


def test_an_error_between_two_points_belongs_to_the_next_one(launch):
    launch.session.pid, launch.point.has_begun = None, False
    launch.fail(ERROR)
    assert (launch.written, launch.begun) == ([ERROR], [False])


def test_an_error_after_the_last_point_changes_nothing(launch):
    launch.session.pid = None
    launch.fail(ERROR)
    assert (launch.written, launch.begun) == ([], [])


def test_an_error_in_a_profiled_step_leaves_what_was_measured(launch):
    launch.point.is_measured = True
    launch.fail(ERROR)
    assert launch.written == [None]


def test_a_loss_that_is_not_finite_fails_a_point_with_its_other_losses(launch):
    launch.session.steps_done, launch.point.step_losses = 5, lambda: [7.5, None, 7.25]
    with pytest.raises(FloatingPointError, match="not finite at step 2") as raised:
        launch.step_end()
    launch.fail(raised.value)
    assert launch.written == [raised.value] and launch.session.given["losses"] == [7.5, None, 7.25]
