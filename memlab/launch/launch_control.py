"""Messages between a launch and the sweep that started it: progress, and the reason to end early."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memlab.core.record import Record
from memlab.runs.job import Job


@dataclass
class LaunchControl:
    """Callbacks and the stop signal of a launch."""

    stop: threading.Event = field(default_factory=threading.Event)
    reason_to_end: Callable[[], str | None] = lambda: None
    """Polled during a launch; a returned reason ends the launch. The running job is recorded as interrupted, later jobs
    do not run."""
    on_record: Callable[[Job, Record], None] = lambda job, record: None
    on_wait: Callable[[str], None] = lambda text: None
    """Called with a message before a silent wait of minutes."""
    on_launch: Callable[[Sequence[Job], Sequence[str]], None] = lambda jobs, gpu_ids: None

    def must_end(self) -> bool:
        return self.stop.is_set() or self.reason_to_end() is not None
