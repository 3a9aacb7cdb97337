"""Text of findings: one sentence each, with the size, what holds the memory, and the line that requested it."""

from collections.abc import Sequence

from rich.console import Console

from memlab.analyse.explain import findings
from memlab.analyse.explain.findings import Finding
from memlab.report import units
from memlab.report.text import say
from memlab.report.verdict_text import growth_sentence
from memlab.simulator.trace.memory_kinds import ACTIVATIONS, CASTS, LOGITS

PARTS = 3
"""Parts that a sentence names."""

SENTENCES = {
    findings.GROWS_OVER_STEPS: (
        "Memory grows by {size} in each step, {times} steps in a row: {subject} ({parts}){line}. Nothing frees {them}."
    ),
    findings.GROWS_IN_EVALUATION: (
        "Memory grows by {size} with each batch of the evaluation, {times} batches in a row: {subject} "
        "({parts}){line}. It stays on the GPU until the evaluation ends."
    ),
    findings.TRAINS_BESIDE_ADAPTER: (
        "Next to its adapter, {subject} trains parameters of the base model, which hold {size}: {parts}{line}. Their "
        "requires_grad is True."
    ),
    findings.STATES_OF_FROZEN: (
        "Gradients or optimizer states of parameters of {subject} that do not train hold {size}: {parts}{line}."
    ),
    findings.UPCAST: (
        "{subject} has weights in float32 ({size}), although most of its weights take 16 bits or less: {parts}{line}."
    ),
    findings.FROZEN_IN_FLOAT32: "{subject} has weights in float32 ({size}) that do not train: {parts}{line}.",
    findings.CAST_IN_FORWARD: (
        "Weights in float32 have copies in 16 bits ({size}), which autocast makes in each forward: {parts}{line}."
    ),
    findings.MODEL_TWICE: "A model is there twice. The copy, {subject}, holds {size}: {parts}{line}.",
    findings.WEIGHTS_CLONED: "The weights of {subject} have a copy of {size} that belongs to no module{line}.",
    findings.GRADIENTS_KEPT: (
        "Gradients ({size}) are kept through {subject}, which does not need them: {parts}{line}. "
        "zero_grad(set_to_none=True) frees them."
    ),
    findings.STRAY_CONTEXTS: (
        "{times} other rank{s} of this run hold{holds} {size} on {subject} of this rank: {parts}. Each has a CUDA "
        "context there, because it used a GPU before torch.cuda.set_device(local_rank)."
    ),
}
"""Finding -> its sentence. ``line`` begins with a comma; the other words are those of :class:`Finding`."""

KEEPS_GRAPH = " A tensor of each step is kept together with its graph, as in total += loss: keep loss.detach()."


def show_findings(found: Sequence[Finding], out: Console) -> None:
    """Print a sentence for each finding; nothing if there is none."""
    for finding in found:
        say(f"- {sentence(finding)}", out)


def sentence(finding: Finding) -> str:
    """Say what was found: how much, in what, requested where."""
    if finding.grown is not None and (finding.grown["kept_by"] or not finding.parts):
        of = f" They are {finding.subject} ({_named(finding.parts)}){_line(finding)}." if finding.parts else ""
        return growth_sentence(finding.grown) + of
    text = SENTENCES[finding.name].format(
        size=units.size(finding.nbytes),
        times=finding.times,
        s="s" * (finding.times != 1),
        holds="s" * (finding.times == 1),
        subject=finding.subject,
        parts=_named(finding.parts),
        line=_line(finding),
        them="it" if finding.subject == LOGITS else "them",
    )
    keeps_graph = finding.name == findings.GROWS_OVER_STEPS and finding.subject in (ACTIVATIONS, LOGITS, CASTS)
    return text + KEEPS_GRAPH if keeps_graph else text


def _named(parts: Sequence[tuple[str, int]]) -> str:
    text = ", ".join(f"{name} {units.size(nbytes)}" for name, nbytes in parts[:PARTS])
    return text if len(parts) <= PARTS else f"{text}, and {len(parts) - PARTS} more"


def _line(finding: Finding) -> str:
    if not finding.where:
        return ""
    is_the_users = not finding.user_line or finding.user_line.endswith(finding.where)
    at = "at" if ":" in finding.where else "by"  # a node of autograd has no line
    return f", requested {at} {finding.where}" + ("" if is_the_users else f" (called at {finding.user_line})")
