"""Exit codes of memlab's commands."""

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
