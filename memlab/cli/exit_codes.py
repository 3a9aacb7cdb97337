"""Exit codes of memlab's commands."""

from memlab.core.record import DOES_NOT_LAST, Record

EXIT_CODES = {
    "ok": 0,
    "gpu_oom": 3,
    "host_oom": 4,
    "timeout": 5,
    "failed": 6,
    "infra": 7,
    "unsupported": 8,
    "interrupted": 130,
}
"""Status of a single run -> exit code. Exit code 2 means that the input was wrong and nothing ran."""

GROWS_WITHOUT_END = 9
"""Memory grows from step to step, and how many steps the run has is not known."""


def exit_code(record: Record) -> int:
    """Return the exit code of a single run: that of its status, unless its memory does not last until its end."""
    if record.summary.get("verdict") != DOES_NOT_LAST:
        return EXIT_CODES[record.status]
    growth = record.command.get("growth", {})
    return GROWS_WITHOUT_END if growth.get("end_step") is None else EXIT_CODES["gpu_oom"]
