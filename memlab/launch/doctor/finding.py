"""What the doctor says."""

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """One line: ``fail`` means that the run would fail or measure something else, ``warn`` that it may."""

    status: str  # OK, WARN or FAIL
    subject: str
    what: str
    fix: str = ""
