"""Sentences at the top of the page: the answer, what was run and what was learned. Few, for any number of runs.

The effect of each axis is that over all pairs of runs that differ only in it; some axes never vary alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

from memlab.analyse.advise import THRASH
from memlab.analyse.effects import Effects, Pair, effects_by
from memlab.analyse.identity import (
    MODE,
    configurations,
    differing_axes,
    environment_changes,
    point_of,
    subject_of,
    tokens_of,
)
from memlab.analyse.quantities import Quantity, held_quantity
from memlab.analyse.run_view import GROWS, RunView, peak, value_at
from memlab.core.grouping import grouped
from memlab.core.noise import doubts
from memlab.core.record import DOES_NOT_LAST
from memlab.core.sizes import GIB
from memlab.report import units

FEW = 3
"""Most sentences of one kind, and most names in one sentence; the tables have all."""

VERSIONS = ("torch", "cuda", "driver", "deepspeed", "transformers", "accelerate", "python", "nccl")

Named = Mapping[str, Sequence[RunView]]
"""Runs of each configuration, keyed by its short name."""


def answer(named: Named) -> str:
    """Write one sentence: the fastest point if all runs share model and machine, else how many points ran."""
    runs = [run for members in named.values() for run in members]
    ran = sum(run.fits_and_lasts for run in runs)
    verb = ran_or_fit(runs)
    subjects = {subject_of(run) for run in runs}
    best = fastest(named)
    if best is None or len(subjects) > 1:
        ooms = sum(run.status == "gpu_oom" for run in runs)
        lacked = f" and {ooms:,} ran out of GPU memory" if ooms else ""
        where = subjects.pop() if len(subjects) == 1 else f"{len(subjects):,} combinations of model and GPUs"
        speed = "" if best else unknown_speeds(runs)
        return f"With {where}, {ran:,} of {len(runs):,} points {verb}{lacked}{speed and f'; {speed}'}."
    name, run = best
    price = run.summary.get("usd_per_million_tokens")
    cost = f" for {units.known(units.usd(price), run.basis)} per million tokens" if price else ""
    rate = units.known(f"{units.number(run.summary['tokens_per_second'])} tokens/s", run.basis, is_rate=True)
    return (
        f"{subjects.pop()} is fastest with {at_point(run, name)}: {rate}{cost}{reserved_of(run)}. "
        f"{ran:,} of {len(runs):,} points {verb}."
    )


def ran_or_fit(runs: Sequence[RunView]) -> str:
    """Choose the verb for points that fit and last: "fit" if all are predicted, else "ran"."""
    return "fit" if all(run.source == "predicted" for run in runs) else "ran"


def sections(named: Named, effects: Sequence[Effects], skipped: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Write the sentences of each heading; headings without sentences are left out. ``skipped``: place and reason."""
    runs = [run for members in named.values() for run in members]
    found = {
        "What was run": list(_what_was_run(runs, len(named))),
        "What fits": list(_what_fits(named)),
        "What each axis did": effect_sentences(effects, held_quantity(runs)),
        "Read with care": [*_first(list(confounded(runs, effects))), *_care(runs, skipped)],
    }
    return {heading: sentences for heading, sentences in found.items() if sentences}


def at_point(run: RunView, name: str) -> str:
    micro, tokens = point_of(run)
    return f"{name}, batch {micro:,} x {units.tokens(tokens)}"


def reserved_of(run: RunView) -> str:
    """Write the memory that a run reserved and, if known, its GPU's memory; empty if reserved is unknown."""
    reserved, memory = peak(run, "peak_reserved_bytes"), value_at(run.config, "hardware.memory_gib")
    if not reserved:
        return ""
    return f", with {reserved / GIB:,.1f}" + (f" of {memory:.1f} GiB reserved" if memory else " GiB reserved")


def fastest(named: Named) -> tuple[str, RunView] | None:
    """Find the run that fits and lasts with the most tokens/s that are not only a bound, and its configuration."""
    lasting = [(name, run) for name, members in named.items() for run in members if run.fits_and_lasts]
    known = [each for each in lasting if each[1].comparable("tokens_per_second")]
    return max(known, key=lambda each: each[1].summary["tokens_per_second"], default=None)


def unknown_speeds(runs: Sequence[RunView]) -> str:
    """Write that speeds are not known where they are only bounds, and why; empty otherwise."""
    return units.not_known("speed", (run.basis for run in runs if run.summary.get("step_seconds")))


# --- what was run -----------------------------------------------------------------------------------------------------


def _what_was_run(runs: Sequence[RunView], configurations: int) -> Iterator[str]:
    subjects = Counter(subject_of(run) for run in runs)
    sources = " and ".join(sorted({run.source for run in runs}))
    named = "; ".join(f"{subject} ({count:,})" for subject, count in subjects.most_common(FEW))
    more = f"; and {len(subjects) - FEW:,} more combinations of model and GPUs" if len(subjects) > FEW else ""
    yield f"{len(runs):,} points of {configurations:,} configurations, {sources}: {named}{more}."
    micros, lengths = ({point_of(run)[place] for run in runs} for place in (0, 1))
    yield f"Sequence lengths of {_span(lengths, ' tokens')}, micro batches of {_span(micros)}."
    endings = Counter(run.ending for run in runs)
    yield f"How they end: {', '.join(f'{count:,} {ending}' for ending, count in endings.most_common())}."
    versions = [f"{key} {value}" for key in VERSIONS if (value := _same(runs, key))]
    if versions:
        yield f"With {', '.join(versions)}."


def _span(values: set[int], unit: str = "") -> str:
    """Write the lowest and highest value, and the number of values."""
    low, high = min(values), max(values)
    return f"{low:,}{unit}" if low == high else f"{low:,} to {high:,}{unit} ({len(values):,} values)"


def _same(runs: Sequence[RunView], key: str) -> Any:
    values = {str(run.environment.get(key)) for run in runs}
    return values.pop() if len(values) == 1 and values != {"None"} else None


# --- what fits --------------------------------------------------------------------------------------------------------


def _what_fits(named: Named) -> Iterator[str]:
    ended = [(name, run) for name, members in named.items() for run in members]
    fitting = [each for each in ended if each[1].fits_and_lasts]
    if fitting:
        name, largest = max(fitting, key=lambda each: tokens_of(each[1]))
        point = f"{tokens_of(largest):,} ({at_point(largest, name)}){reserved_of(largest)}"
        verb = ran_or_fit([run for _, run in ended])
        above = any(not run.fits_and_lasts and tokens_of(run) > tokens_of(largest) for _, run in ended)
        yield f"The most tokens in one forward that {verb if above else 'were tried'}: {point}."
    ooms = sorted((each for each in ended if each[1].status == "gpu_oom"), key=lambda each: tokens_of(each[1]))
    if ooms:
        name, least = ooms[0]
        yield f"Out of GPU memory: {len(ooms):,}. The smallest: {at_point(least, name)}."
    thrashing = [list(slowdowns(name, members)) for name, members in named.items()]
    yield from _first([sentences[0] for sentences in thrashing if sentences])


def slowdowns(name: str, members: Sequence[RunView]) -> Iterator[str]:
    """Yield a sentence for each larger batch with fewer samples/s: it fits, but thrashes."""
    known = sorted(
        (run for run in members if run.comparable("samples_per_second")), key=lambda run: point_of(run)[::-1]
    )
    for smaller, larger in pairwise(known):
        (before, tokens), (after, length) = point_of(smaller), point_of(larger)
        lost = 1 - larger.summary["samples_per_second"] / smaller.summary["samples_per_second"]
        if tokens == length and after > before and lost > THRASH:
            steps = 1 - larger.summary["iterations_per_second"] / smaller.summary["iterations_per_second"]
            sizes = f"from batch {before:,} to {after:,} at {units.tokens(tokens)}"
            slower = f"samples/s fall by {units.percent(lost)} and iterations/s by {units.percent(steps)}"
            yield f"{name} thrashes: {sizes} {slower}."


# --- care -------------------------------------------------------------------------------------------------------------


def _care(runs: Sequence[RunView], skipped: Sequence[tuple[str, str]]) -> Iterator[str]:
    changes = environment_changes(runs)
    if changes:
        named = "; ".join(
            f"{key}: {_few(list(dict.fromkeys(map(str, values))))}" for key, values in list(changes.items())[:FEW]
        )
        yield f"The runs were made in different environments ({named})."
    bounds = [run for run in runs if run.basis.is_bound and run.summary.get("step_seconds")]
    if bounds:
        what = f"The speed of {len(bounds):,} of {len(runs):,} points"
        yield units.not_known(what, (run.basis for run in bounds)) + "."
    for price, count in Counter(run.list_price for run in runs if run.list_price).items():
        yield f"The price of {count:,} of {len(runs):,} points is the {price}: their records have none."
    timed = [run for run in runs if run.summary.get("step_seconds") and run.source != "predicted"]
    unknown = sum(len(run.step_seconds) < 3 for run in timed)
    if unknown:
        yield (
            f"The noise of the speed is unknown for {unknown:,} of {len(timed):,} points: "
            "they have fewer than three step times."
        )
    counts = Counter(kind for kind, _, _ in notes(runs, skipped))
    if counts:
        yield f"The table of notes lists points: {', '.join(f'{count:,} {kind}' for kind, count in counts.items())}."


def notes(runs: Sequence[RunView], skipped: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield a note (kind, place, reason) for each point to read with care, and for each skipped place."""
    for run in runs:
        if run.incomplete:
            yield "incomplete", run.run_id, "; ".join(run.incomplete)
    for run in runs:
        if found := doubts(run.step_seconds):
            yield "of doubtful speed", run.run_id, "; ".join(found)
    for run in runs:
        if run.ending == DOES_NOT_LAST:
            yield "does not last", run.run_id, GROWS
        elif run.status in ("timeout", "failed", "infra", "interrupted"):
            yield "without a result", run.run_id, f"{run.status}: {run.reason or 'no reason given'}"
    for place, reason in skipped:
        yield "skipped", place, reason


def _few(values: Sequence[str]) -> str:
    more = f" and {len(values) - 2:,} more" if len(values) > 2 else ""
    return " / ".join(values[:2]) + more


def _first(sentences: Sequence[str]) -> list[str]:
    """Return the first few sentences, and one that counts the others."""
    more = len(sentences) - FEW
    return [*sentences[:FEW], *([f"And {more:,} more of this kind."] if more > 0 else [])]


POINT = ("seq_len", "batch")
"""Groups that define the points of a configuration."""


def all_effects(runs: Sequence[RunView], quantities: Mapping[int, Mapping[str, Quantity]], held: str) -> list[Effects]:
    """Compute the effects of each axis in which runs differ, except :data:`POINT`, on the quantities that the page
    shows.

    ``quantities`` is keyed by ``id(run)``. ``held``: key of the memory in live tensors (:func:`held_quantity`).
    """
    axes = [axis for axis in differing_axes(runs) if axis not in POINT]
    axes = [axis for axis in axes if isinstance(runs[0].config.get(axis), dict) or "." in axis or axis == MODE]
    keys = (held, "peak_reserved_bytes", "samples_per_second", "usd_per_million_tokens")
    compared = {place: {key: found[key] for key in keys if key in found} for place, found in quantities.items()}
    return [effects_by(runs, axis, lambda run: compared[id(run)]) for axis in axes]


def effect_sentences(effects: Sequence[Effects], held: str) -> list[str]:
    """Write a sentence for each two options of an axis, most pairs first; the last one counts the omitted sentences."""
    found = [
        (axis, *options, pairs)
        for axis in effects
        for options, pairs in grouped(axis.pairs, lambda pair: (pair.base, pair.other)).items()
    ]
    found.sort(key=lambda each: -len(each[3]))
    more = [f"The table of effects has {len(found) - FEW:,} more."] if len(found) > FEW else []
    return [*(_effect_sentence(*each, held) for each in found[:FEW]), *more]


def _effect_sentence(effects: Effects, base: str, other: str, pairs: Sequence[Pair], held: str) -> str:
    """Write the range of the effect over all pairs, then how the effect changes along the sequence length."""
    ranges = {each.key: each for each in effects.ranges if (each.base, each.other) == (base, other)}
    parts = []
    for key in (held, "peak_reserved_bytes", "samples_per_second"):
        each = ranges.get(key)
        if each:
            several = f"{units.signed_percent(each.lowest)} to {units.signed_percent(each.highest)}"
            noise = f"{each.within_noise} within the noise" if each.within_noise else ""
            notes = ", ".join(filter(None, [several if each.pairs > 1 else "", noise]))
            parts.append(f"{units.name(key)} {units.signed_percent(each.median)}" + f" ({notes})" * bool(notes))
    if "samples_per_second" not in ranges and effects.bounds:
        parts.append("speed: not known")
    count = f"median of {len(pairs):,} pairs" if len(pairs) > 1 else "one pair"
    sentence = f"{effects.by} from {base} to {other}, {count}: {'; '.join(parts)}."
    return sentence + _effect_over_length(pairs)


def _effect_over_length(pairs: Sequence[Pair]) -> str:
    """Write the effect on reserved memory at the shortest and longest sequence length of the longest series."""
    key = "peak_reserved_bytes"
    series = grouped((pair for pair in pairs if key in pair.differences), lambda pair: (pair.where, pair.micro))
    longest = max(series.values(), key=len, default=[])
    if len(longest) <= 2:
        return ""
    ends = (longest[0], longest[-1])
    words = [f"{units.signed_percent(end.differences[key].relative)} at {units.tokens(end.tokens)}" for end in ends]
    return f" Change of reserved memory over the longest series: {' and '.join(words)}."


def confounded(runs: Sequence[RunView], effects: Sequence[Effects]) -> Iterator[str]:
    """Yield a sentence for each axis that never varies alone, with the fewest axes that vary with it, as far as the
    pairs of 40 configurations tell."""
    firsts = [members[0] for members in configurations(runs).values()][:40]
    of_pairs = [[axis for axis in differing_axes(pair) if axis not in POINT] for pair in combinations(firsts, 2)]
    seen = set()
    for each in effects:
        with_it = [axes for axes in of_pairs if each.by in axes and len(axes) > 1]
        if each.pairs or not with_it:
            continue
        shortest = min(with_it, key=len)
        fewest = frozenset(shortest)
        if fewest not in seen:
            seen.add(fewest)
            others = " and ".join(sorted(fewest - {each.by}))
            yield f"{each.by} never varies without {others}: their effects cannot be separated."
