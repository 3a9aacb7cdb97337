"""Advice begins with what to use, by short names, and ends with a command that can be copied."""

import io
import shlex

from sweeps import small_sweep

from memlab.analyse.advise import Job, advise, command_words
from memlab.analyse.collect import collect
from memlab.report.advice_text import sentences, show_advice
from memlab.report.text import console


def test_the_first_sentence_is_the_recommendation_and_the_command_is_whole(tmp_path, monkeypatch):
    advice = advise(collect([small_sweep(tmp_path)]).runs, Job(samples=1000, epochs=1, tokens=512))
    monkeypatch.setenv("COLUMNS", "80")
    out = console(io.StringIO())
    show_advice(advice, out)
    text = out.file.getvalue()
    assert " ".join(text.split()).startswith(sentences(advice)[0])
    assert max(map(len, text.splitlines())) <= 80
    (command,) = [part for part in text.split("\n\n") if part.startswith("python launch.py")]
    assert shlex.split(command.replace("\\\n", "")) == shlex.split(" ".join(command_words(advice.best)))
