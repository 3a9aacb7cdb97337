"""Terminal output of the findings of ``memlab doctor``."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape

from memlab.core.diagnosis import FAIL, OK, WARN, Diagnosis

STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}


def show_findings(findings: Iterable[Diagnosis], console: Console) -> bool:
    """Print each finding as it comes, a line each. Returns whether none is a failure."""
    healthy = True
    for finding in findings:
        healthy = healthy and finding.status != FAIL
        style = STYLES[finding.status]
        fix = f" -> {finding.fix}" if finding.fix else ""
        line = f"[{style}]{finding.status:<4}[/]  {finding.subject:<15}  {escape(finding.what + fix)}"
        console.print(line, markup=True, highlight=False, soft_wrap=True)
    return healthy
