"""The findings of the doctor."""

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Diagnosis:
    """One line of the doctor. ``fail``: the run would fail or measure something else; ``warn``: it may."""

    status: str  # OK, WARN or FAIL
    subject: str
    what: str
    fix: str = ""
