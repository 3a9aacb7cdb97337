"""The first thing a reader sees: what was run, and what was learned, in sentences with numbers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from memlab.analyse.advise import THRASH
from memlab.analyse.effects import Effects
from memlab.analyse.fit import MARGIN, fit_all, longest
from memlab.analyse.identity import (
    configurations,
    environment_changes,
    point_of,
    tokens_of,
)
from memlab.analyse.run import Run, peak, value_at
from memlab.noise import doubts
from memlab.report import units
from memlab.report.fit_text import equation
from memlab.report.page.axes import confounded, effect_sentences

FEW = 6
"""Sentences of one kind; more would not be read. The table has them all."""

VERSIONS = ("torch", "cuda", "driver", "deepspeed", "transformers", "accelerate", "python", "nccl")


def sections(runs: Sequence[Run], effects: Sequence[Effects], skipped: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Headings with their sentences; those without any are left out."""
    found = {
        "What was run": list(_what_was_run(runs)),
        "What fits": list(_what_fits(runs)),
        "What is fast and cheap": list(_what_is_best(runs)),
        "What each axis did": [sentence for each in effects for sentence in effect_sentences(each, held_figure(runs))],
        "Read with care": [*confounded(runs, effects), *_care(runs), *_first(skipped, "Skipped")],
    }
    return [(heading, sentences) for heading, sentences in found.items() if sentences]


def held_figure(runs: Sequence[Run]) -> str:
    """Memory in live tensors: allocated, or active where allocated was not measured."""
    key = "peak_allocated_bytes"
    return key if any(peak(run, key) is not None for run in runs) else "peak_active_bytes"


def named(run: Run, label: str) -> str:
    micro, tokens = point_of(run)
    return f"{label}, batch {micro:,} x {units.tokens(tokens)}"


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


def fit_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Reserved memory as a line over tokens for each configuration, and what fits by it."""
    rows = []
    for fit in fit_all(runs)[0]:
        row = {
            "label": fit.label,
            "equation": equation(fit),
            "r2": fit.line.r2,
            "points": fit.line.n,
            "error": fit.median_error,
            "tokens": None,
            "note": "",
        }
        if fit.memory_gib:
            answer = longest(fit, fit.memory_gib, MARGIN)
            notes = {
                "an out-of-memory was measured beyond": answer.limit == "oom",
                "extrapolated": answer.extrapolated,
                "more ran, with less kept free": answer.tokens is not None and max(fit.tokens) > answer.tokens,
            }
            row |= {"tokens": answer.tokens, "note": "; ".join(note for note, holds in notes.items() if holds)}
        rows.append(row)
    return rows


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
                yield f"{word} for {subject}: {value} {unit}{memory} ({named(run, label)})."
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


# --- care -------------------------------------------------------------------------------------------------------------


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
