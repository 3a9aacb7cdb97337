"""Which modules are listened to."""

from memlab.meters import import_hook
from memlab.meters.listeners import LISTENERS


def test_every_library_that_is_listened_to_is_watched_before_torch_is_imported():
    listened_to = {name for name in LISTENERS if not name.startswith("torch.")}
    assert listened_to | {import_hook.STATEFUL_LOADERS} == set(import_hook.LIBRARIES)  # the last one by predictions
