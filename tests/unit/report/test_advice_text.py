"""Advice begins with what to use, by short names, and ends with a command that can be copied."""

import io
import shlex

from sweeps import add_point, small_sweep

from memlab.analyse.advise import Training, advise, command_words
from memlab.analyse.collect import collect
from memlab.report.advice_text import sentences, show_advice
from memlab.report.text import console


def test_the_first_sentence_is_the_recommendation_and_the_command_is_whole(tmp_path, monkeypatch):
    advice = advise(collect([small_sweep(tmp_path)]).runs, Training(samples=1000, epochs=1, tokens=512))
    monkeypatch.setenv("COLUMNS", "80")
    out = console(io.StringIO())
    show_advice(advice, out)
    text = out.file.getvalue()
    assert " ".join(text.split()).startswith(sentences(advice)[0])
    assert max(map(len, text.splitlines())) <= 80
    (command,) = [part for part in text.split("\n\n") if part.startswith("python launch.py")]
    assert shlex.split(command.replace("\\\n", "")) == shlex.split(" ".join(command_words(advice.best)))


def test_of_several_models_it_says_how_to_ask_about_one(tmp_path):
    training, told = Training(samples=1000, epochs=1, tokens=512), "The runs have 2 models"
    assert told not in " ".join(sentences(advise(collect([small_sweep(tmp_path / "a")]).runs, training)))
    add_point(tmp_path / "b", 512, choices={"model": "large", "zero_stage": "zero2", "allocator": "default"})
    add_point(tmp_path / "c", 512, choices={"model": "small", "zero_stage": "zero2", "allocator": "default"})
    both = collect([tmp_path / "b", tmp_path / "c"]).runs
    assert sentences(advise(both, training))[-1].startswith(told)
