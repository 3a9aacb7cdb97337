"""Which modules are listened to."""

from memlab.attach import import_hook
from memlab.attach.listeners import LISTENERS


def test_every_library_that_is_listened_to_is_watched_before_torch_is_imported():
    assert {name for name in LISTENERS if not name.startswith("torch.")} == set(import_hook.LIBRARIES)
