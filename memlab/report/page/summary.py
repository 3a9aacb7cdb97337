"""The first thing a reader sees: what was run, and what was learned, in sentences with numbers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any

from memlab.analyse.advise import THRASH
from memlab.analyse.effects import Effects, Pair, effects_by
from memlab.analyse.fit import MARGIN, fit_all, longest
from memlab.analyse.identity import (
    MODE,
    configurations,
    differing_axes,
    environment_changes,
    point_of,
    tokens_of,
)
from memlab.analyse.run import Run, peak, value_at
from memlab.noise import doubts
from memlab.report import units
from memlab.report.fit_text import answer_text

FEW = 6
"""Sentences of one kind; more would not be read. The table has them all."""

VERSIONS = ("torch", "cuda", "driver", "deepspeed", "transformers", "accelerate", "python", "nccl")


def sections(runs: Sequence[Run], effects: Sequence[Effects], skipped: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Headings with their sentences; those without any are left out."""
    found = {
        "What was run": list(_what_was_run(runs)),
        "What fits": list(_what_fits(runs)),
        "What is fast and cheap": list(_what_is_best(runs)),
        "What each axis did": [sentence for each in effects for sentence in _effect_sentences(each, held_figure(runs))],
        "Read with care": [*_confounded(runs, effects), *_care(runs), *_first(skipped, "Skipped")],
    }
    return [(heading, sentences) for heading, sentences in found.items() if sentences]


def effect_rows(effects: Sequence[Effects], held: str) -> list[dict[str, Any]]:
    """The range of each axis' effect on memory and speed, over all pairs."""
    keys = (held, "peak_reserved_bytes", "samples_per_second", "usd_per_million_tokens")
    return [
        {
            "axis": axis.by,
            "options": f"{each.base} \N{RIGHTWARDS ARROW} {each.other}",
            "figure": units.name(each.key),
            "lowest": each.lowest,
            "median": each.median,
            "highest": each.highest,
            "pairs": each.pairs,
            "noise": None if each.unknown_noise == each.pairs else each.within_noise,
        }
        for axis in effects
        for each in axis.ranges
        if each.key in keys
    ]


def held_figure(runs: Sequence[Run]) -> str:
    """Memory in live tensors: allocated, or active where allocated was not measured."""
    key = "peak_allocated_bytes"
    return key if any(peak(run, key) is not None for run in runs) else "peak_active_bytes"


def named(run: Run, label: str) -> str:
    micro, tokens = point_of(run)
    return f"{label}, batch {micro:,} x {tokens:,} tokens"


# --- what was run -----------------------------------------------------------------------------------------------------


def _what_was_run(runs: Sequence[Run]) -> Iterator[str]:
    subjects = Counter(_subject(run) for run in runs)
    told = "; ".join(f"{subject} ({count:,})" for subject, count in subjects.most_common(FEW))
    yield f"{len(runs):,} points of {len(configurations(runs)):,} configurations: {told}."
    micros, lengths = ({point_of(run)[place] for run in runs} for place in (0, 1))
    yield f"Sequence lengths {_range(lengths)} tokens, micro batches {_range(micros)}."
    statuses = Counter(run.status for run in runs)
    yield f"How they ended: {', '.join(f'{count:,} {status}' for status, count in statuses.most_common())}."
    versions = [f"{key} {value}" for key in VERSIONS if (value := _same(runs, key))]
    if versions:
        yield f"With {', '.join(versions)}."


def _subject(run: Run) -> str:
    model = run.choices.get("model") or value_at(run.config, "model.path")
    gpus, gpu = value_at(run.config, "hardware.gpus"), value_at(run.config, "hardware.gpu")
    return f"{model} on {gpus} x {gpu or value_at(run.config, 'hardware.device')}, {run.source}"


def _range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,} ({len(values):,} values)"


def _same(runs: Sequence[Run], key: str) -> Any:
    values = {str(run.environment.get(key)) for run in runs}
    return values.pop() if len(values) == 1 and values != {"None"} else None


# --- what fits, what is fast ------------------------------------------------------------------------------------------


def _what_fits(runs: Sequence[Run]) -> Iterator[str]:
    ended = [(label, run) for label, members in configurations(runs).items() for run in members]
    fitting = [(label, run) for label, run in ended if run.status == "ok"]
    if fitting:
        label, largest = max(fitting, key=lambda each: tokens_of(each[1]))
        reserved, memory = peak(largest, "peak_reserved_bytes"), value_at(largest.config, "hardware.memory_gib")
        room = f", with {units.gib(reserved)} GiB reserved" if reserved else ""
        room += f" of {memory:g}" if room and memory else ""
        yield f"The most tokens in one forward that ran: {tokens_of(largest):,} ({named(largest, label)}){room}."
    ooms = [named(run, label) for label, run in ended if run.status == "gpu_oom"]
    if ooms:
        yield from _first(ooms, "Out of GPU memory")
    for fit in fit_all(runs)[0][:FEW]:
        if fit.memory_gib:
            yield answer_text(fit, longest(fit, fit.memory_gib, MARGIN), fit.memory_gib, MARGIN)


def _what_is_best(runs: Sequence[Run]) -> Iterator[str]:
    named_runs = configurations(runs)
    ended = [(label, run) for label, members in named_runs.items() for run in members if run.status == "ok"]
    for subject in dict.fromkeys(_subject(run) for _, run in ended):
        here = [(label, run) for label, run in ended if _subject(run) == subject]
        for word, key, best in (("Fastest", "tokens_per_second", max), ("Cheapest", "usd_per_million_tokens", min)):
            known = [each for each in here if each[1].summary.get(key)]
            if known:
                label, run = best(known, key=lambda each: each[1].summary[key])
                reserved = peak(run, "peak_reserved_bytes")
                memory = f" with {units.gib(reserved)} GiB reserved" if reserved else ""
                value = units.figure(key, run.summary[key]).removesuffix("/s")
                unit = "tokens/s" if key == "tokens_per_second" else "per million tokens"
                yield f"{word} for {subject}: {named(run, label)}: {value} {unit}{memory}."
    for label, members in named_runs.items():
        yield from _slowdowns(label, members)


def _slowdowns(label: str, members: Sequence[Run]) -> Iterator[str]:
    """Where a larger batch trains slower: it fits, but thrashes."""
    known = sorted(
        (run for run in members if run.summary.get("samples_per_second")), key=lambda run: point_of(run)[::-1]
    )
    for smaller, larger in pairwise(known):
        if point_of(smaller)[1] != point_of(larger)[1]:
            continue
        lost = 1 - larger.summary["samples_per_second"] / smaller.summary["samples_per_second"]
        (before, tokens), (after, _) = point_of(smaller), point_of(larger)
        if lost > THRASH and after > before:
            steps = 1 - larger.summary["iterations_per_second"] / smaller.summary["iterations_per_second"]
            yield (
                f"From batch {before} to {after} at {tokens:,} tokens ({label}) "
                f"samples/s fall by {lost:.0%} and iterations/s by {steps:.0%}: it fits, but thrashes."
            )


# --- effects ----------------------------------------------------------------------------------------------------------


def all_effects(runs: Sequence[Run]) -> list[Effects]:
    """Of every axis in which runs differ, but the two that make the points."""
    axes = [axis for axis in differing_axes(runs) if axis not in ("seq_len", "batch")]
    axes = [axis for axis in axes if isinstance(runs[0].config.get(axis), dict) or axis == MODE]
    return [effects_by(runs, axis) for axis in axes]


def _effect_sentences(effects: Effects, held: str) -> Iterator[str]:
    """A sentence for each two options: the range over all pairs, then how it goes from the shortest to the longest."""
    for base, other in dict.fromkeys((pair.base, pair.other) for pair in effects.pairs):
        ranges = {each.key: each for each in effects.ranges if (each.base, each.other) == (base, other)}
        parts = []
        for key in (held, "peak_reserved_bytes", "samples_per_second"):
            each = ranges.get(key)
            if each:
                noise = f", {each.within_noise} of {each.pairs} within the noise" if each.within_noise else ""
                span = f"{units.percent(each.lowest)} to {units.percent(each.highest)}"
                parts.append(f"{units.name(key)} {span} (median {units.percent(each.median)}{noise})")
        pairs = [pair for pair in effects.pairs if (pair.base, pair.other) == (base, other)]
        yield f"{effects.by} from {base} to {other}, {len(pairs)} pairs: {'; '.join(parts)}.{_course(pairs)}"


def _course(pairs: Sequence[Pair]) -> str:
    """How the effect on reserved memory changes along the sequence length, in the longest series."""
    key = "peak_reserved_bytes"
    series: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        if key in pair.differences:
            series.setdefault((pair.where, pair.micro), []).append(pair)
    several = [each for each in series.values() if len(each) > 2]
    if not several:
        return ""
    told = []
    for each in several[:2]:
        ends = (each[0], each[-1])
        words = [f"{units.percent(end.differences[key].relative)} at {end.tokens:,} tokens" for end in ends]
        told.append(f"{' and '.join(words)} ({_shared(each[0], pairs)}batch {each[0].micro})")
    note = " Some lengths are interpolated." if any(pair.interpolated for each in several for pair in each) else ""
    return f" Reserved memory: {'; '.join(told)}.{note}"


def _shared(pair: Pair, pairs: Sequence[Pair]) -> str:
    return f"{pair.where}, " if pair.where and len({each.where for each in pairs}) > 1 else ""


# --- care -------------------------------------------------------------------------------------------------------------


def _confounded(runs: Sequence[Run], effects: Sequence[Effects]) -> Iterator[str]:
    """Axes that never vary alone, with those that vary with them at least."""
    firsts = [members[0] for members in configurations(runs).values()][:40]
    together = [
        [axis for axis in differing_axes(pair) if axis not in ("seq_len", "batch")] for pair in combinations(firsts, 2)
    ]
    for each in effects:
        with_it = [axes for axes in together if each.by in axes]
        if each.pairs or not with_it:
            continue
        others = [axis for axis in min(with_it, key=len) if axis != each.by]
        if others:
            yield (
                f"{each.by} never varies alone, but with {' and '.join(others)} at least: "
                "what it did cannot be told from what they did."
            )


def _care(runs: Sequence[Run]) -> Iterator[str]:
    changes = environment_changes(runs)
    if changes:
        told = "; ".join(f"{key}: {' / '.join(dict.fromkeys(map(str, values)))}" for key, values in changes.items())
        yield f"The runs were not all made in the same environment ({told})."
    yield from _first([f"{run.run_id} ({'; '.join(run.incomplete)})" for run in runs if run.incomplete], "Incomplete")
    noisy = [(run, doubts(run.step_seconds)) for run in runs]
    yield from _first([f"{run.run_id} ({'; '.join(found)})" for run, found in noisy if found], "Doubtful speed")
    timed = [run for run in runs if run.summary.get("step_seconds")]
    few = sum(len(run.step_seconds) < 3 for run in timed)
    if few:
        yield (
            f"The noise of the speed of {few:,} of {len(timed):,} points is not known: "
            "they tell fewer than three step times."
        )
    unfinished = [f"{run.run_id} ({run.status}: {run.reason or 'no reason given'})" for run in runs if _unknown(run)]
    yield from _first(unfinished, "Nothing was learned from")


def _unknown(run: Run) -> bool:
    return run.status in ("timeout", "failed", "infra", "interrupted")


def _first(texts: Sequence[str], what: str) -> list[str]:
    """One sentence that names the first few and counts the rest."""
    if not texts:
        return []
    more = f", and {len(texts) - FEW:,} more" if len(texts) > FEW else ""
    return [f"{what}: {len(texts):,}. {'; '.join(texts[:FEW])}{more}."]
