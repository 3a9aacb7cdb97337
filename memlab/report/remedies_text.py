"""Text of the remedies of ``memlab explain``: what each change saves by its prediction, and which blocks are gone."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console

from memlab.analyse.explain.accounting import ComparedPart
from memlab.analyse.explain.remedies import NeededPeaks, Remedies, Remedy, RunPeaks
from memlab.core.basis import comparable
from memlab.core.record import FITS
from memlab.prediction.time.step_time import StepTime
from memlab.report import units
from memlab.report.text import say
from memlab.report.verdict_text import AFTER_A_CHANGE

NAMED = 4
"""Most kinds of memory that a remedy names."""

NOTABLE = 0.005
"""Share of the memory of the run as it is from which on a change helps, and a difference of a kind is named."""

FAR_OFF = 0.05
"""Error of the prediction of a measured run from which on a sentence warns."""


KEYS = ("used", "reserved", "allocated")


@dataclass(frozen=True)
class RemedyText:
    """What one change saves, in a sentence; ``details``: the blocks that are gone, and the price."""

    effect: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemediesText:
    """Remedies in words. ``changes``: those that save memory first, then those that do not, or have no prediction.
    ``not_tried``: empty if all were."""

    answer: str
    provenance: str
    changes: tuple[RemedyText, ...]
    not_tried: str


def show_remedies(found: Remedies, out: Console) -> None:
    """Print the remedies, with what each saves and costs."""
    text = remedies_text(found)
    say(text.answer, out, "bold")
    say(text.provenance, out)
    for change in text.changes:
        say(change.effect, out, indent=2)
        for detail in change.details:
            say(detail, out, indent=4)
    if text.not_tried:
        say(text.not_tried, out)


def remedies_text(found: Remedies) -> RemediesText:
    """Write the changes that save memory, then which do not, which could not be predicted and which were not tried."""
    changes = tuple(_change(remedy, found) for remedy in found.tried)
    number = len(found.tried) + len(found.not_tried)
    not_tried = f"Not predicted: {', '.join(found.not_tried)}. --remedies {number} predicts all."
    return RemediesText(
        _answer(found, sum(bool(change.details) for change in changes)),
        _provenance(found.base, found.measured),
        changes,
        not_tried if found.not_tried else "",
    )


def _change(remedy: Remedy, found: Remedies) -> RemedyText:
    """Write what a change saves; with details, if this is a notable share of the memory."""
    needs = remedy.needs
    if isinstance(needs, str):
        return RemedyText(f"{remedy.change} could not be predicted: {needs.rstrip('.')}.")
    saved = found.base.used - needs.used
    if saved <= 0:
        return RemedyText(f"{remedy.change} does not help: it takes {units.size(-saved)} more.")
    if saved < NOTABLE * found.base.used:
        return RemedyText(f"{remedy.change} saves only {units.size(saved)}.")
    price = ", ".join([remedy.price, *_costs(needs, found.base)])
    return RemedyText(
        f"{remedy.change}: {'; '.join(_effects(needs, found))}.",
        (f"{_blocks(remedy, needs, found.base)}.", f"Price: {price}."),
    )


def _answer(found: Remedies, helping: int) -> str:
    if not found.tried:
        return "Remedies: no single change that memlab knows can lower this peak."
    tried = units.counted(len(found.tried), "single change")
    save = f"{helping} save" if helping > 1 else f"{helping or 'none'} saves"
    return f"Remedies: of {tried}, predicted one at a time, {save} at least {units.percent(NOTABLE, 1)} of the memory."


def _provenance(base: NeededPeaks, measured: RunPeaks | None) -> str:
    """Write which figures are predicted, and how far the prediction of a measured run is off."""
    step = f", {_of_step(base.step)}" if base.step else ""
    if measured is None:
        return (
            f"As it is, the run needs {units.size(base.used)}: "
            f"{units.size(base.reserved)} reserved, {units.size(base.allocated)} allocated{step}."
        )
    errors = {key: getattr(base, key) / getattr(measured, key) - 1 for key in KEYS[1:] if getattr(measured, key)}
    told = ", ".join(f"{units.signed_percent(error)} in {key}" for key, error in errors.items())
    doubt = " So its remedies may be off, too." if any(abs(error) > FAR_OFF for error in errors.values()) else ""
    return (
        "The first figure is measured, the second is the measured one and the difference of two predictions: of the "
        f"run as it is, and with the change alone. Predicted against measured, the run as it is: {told}.{doubt}"
    )


def _effects(needs: NeededPeaks, found: Remedies) -> Iterator[str]:
    """Write the memory before and after a change; of a measured run, with the predicted difference."""
    texts = []
    for key in KEYS:
        base, after = getattr(found.base, key), getattr(needs, key)
        before = getattr(found.measured, key, 0) or base
        texts.append(f"{units.about(before)} -> {units.about(before + after - base)}")
    yield f"{texts[0]} GiB used (reserved {texts[1]}, allocated {texts[2]})"
    if found.base.verdict != FITS:
        yield f"then it {AFTER_A_CHANGE[needs.verdict]}"


def _blocks(remedy: Remedy, needs: NeededPeaks, base: NeededPeaks) -> str:
    """Write what is gone and what is new at the peak, by kind, with the module of the largest part."""
    assert remedy.blocks is not None
    least = NOTABLE * base.used
    parts = [part for part in remedy.blocks.parts if abs(part.change) >= least][:NAMED]
    named = [f"{part.name} {units.signed_size(part.change)}{_where(part, least)}" for part in parts]
    slack = needs.rank.peak.slack.total - base.rank.peak.slack.total
    if abs(slack) >= least:
        named.append(f"slack of the allocator {units.signed_size(slack)}")
    before, after = base.rank.at.phase, needs.rank.at.phase
    moved = "" if before == after else f"; the peak moves from {before} to {after}"
    return f"At the peak: {', '.join(named) or 'the same blocks'}{moved}"


def _where(kind: ComparedPart, least: float) -> str:
    """Name the module whose memory changed most, where a kind has several."""
    modules = [part for part in kind.parts if abs(part.change) >= least and "." in part.name]
    return f" ({modules[0].name} {units.signed_size(modules[0].change)})" if modules and len(kind.parts) > 1 else ""


def _costs(needs: NeededPeaks, base: NeededPeaks) -> Iterator[str]:
    """Write the step time and the memory of the host, where the change takes more of them. Times that are only lower
    bounds are not compared."""
    after, before = needs.step, base.step
    if after and before and comparable(after.basis, before.basis) and after.seconds > before.seconds * (1 + NOTABLE):
        yield f"{_of_step(after)} instead of {units.seconds(before.seconds)}"
    if needs.host - base.host > NOTABLE * base.used:
        yield f"{units.size(needs.host - base.host)} more of host memory for each rank"


def _of_step(step: StepTime) -> str:
    return f"{units.known(units.seconds(step.seconds), step.basis)} a step"
