"""What a configuration names outside itself is looked at before anything runs."""

import json
import os
import subprocess
import sys

import pytest

from memlab.cli.compose import compose_config
from memlab.core.errors import ConfigError
from memlab.launch import preflight

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}


def refusal(*configs) -> str:
    with pytest.raises(ConfigError) as error:
        preflight.check(configs)
    return str(error.value)


@pytest.fixture
def folder(tmp_path):
    """``folder("name", {"model_type": "llama"})``: the path of a model's folder with this config.json."""

    def build(name: str, values: dict) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(values))
        return str(tmp_path / name)

    return build


@pytest.fixture
def nothing_is_started(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: pytest.fail("a process was started"))


def test_what_names_nothing_costs_nothing(config, nothing_is_started):
    preflight.check([config(), config({"data.source": "sample"}), config({"data.path": "/nowhere"})])


def test_data_is_looked_at(config, nothing_is_started, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"text": "a"}\n{"text": 1}\n')
    jsonl = {"data.source": "jsonl", "data.path": str(tmp_path / "mine.jsonl")}
    assert refusal(config(), config(jsonl)) == f"{tmp_path}/mine.jsonl:2: the field 'text' holds 1, not a text."
    missing = {**jsonl, "data.path": "/nowhere.jsonl"}
    assert refusal(config(missing)).startswith("data.path=/nowhere.jsonl: No such file")
    preflight.check([config({**jsonl, "data.path": None})])  # a rule says so


@pytest.mark.parametrize("path", ["../../etc/passwd", "/nowhere", "a/b/c", ".", "..", "", "a b", "~/models/x", "a//b"])
def test_a_path_is_a_folder_or_an_id_of_the_hub(config, nothing_is_started, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(config({"model.config": {}, "model.path": path})).startswith(f"model.path={path}: ")


def test_a_tokenizer_is_a_folder_or_an_id_of_the_hub(config, nothing_is_started):
    assert refusal(config({"data.tokenizer": "/nowhere"})).startswith("data.tokenizer=/nowhere: no such folder")
    preflight.check([config({"data.tokenizer": "gpt2"})])


@pytest.mark.parametrize("path", ["gpt2", "Qwen/Qwen2.5-0.5B"])
def test_an_id_of_the_hub_is_left_to_the_hub(config, nothing_is_started, path):
    preflight.check([config({"model.config": {}, "model.path": path, "model.overrides": {"whatever": 1}})])


def test_transformers_is_asked_about_all_models_at_once(config, folder, monkeypatch):
    """About those that differ, in one process, which says what is wrong with the first."""
    asked = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: asked.append(options) or run(*words, **options))
    good = config({"model.overrides": {"num_hidden_layers": 1}})
    path = folder("own", LLAMA)
    in_folder = config({"model.config": {}, "model.path": path, "model.overrides": {"hidden_size": 128}})
    preflight.check([good, good, in_folder])
    assert [len(json.loads(options["input"])) for options in asked] == [2]
    bad = config({"model.overrides": {"hiden_size": 5}})
    assert refusal(good, bad) == "model.overrides.hiden_size: LlamaConfig has no such key. Did you mean 'hidden_size'?"


@pytest.mark.parametrize("option", ["tiny", "llama3_8b", "mixtral_8x7b", "phi3_mini"])
def test_a_model_that_ships_is_sound(nothing_is_started, option):
    preflight.check([compose_config([f"model={option}"])[0]])


def test_a_model_of_ones_own_is_checked_without_overrides_too(config):
    assert refusal(config({"model.config": {**LLAMA, "hidden_size": 0}})).startswith("model.config.hidden_size must be")
    assert refusal(config({"model.config": {"hidden_size": 64}})).startswith("model.config: no 'model_type'")


WRONG = {
    "model.overrides.hidden_size must be at least 1, not -1": {"overrides": {"hidden_size": -1}},
    "model.overrides.n_layer must be at least 1, not 0": {
        "config": {"model_type": "gpt2"},
        "overrides": {"n_layer": 0},
    },
    "model.config.vocab_size must be at least 1, not 0": {"config": {**LLAMA, "vocab_size": 0}},
    "model.overrides.hidden_size: TypeError: Field 'hidden_size' expected int, got str": {
        "overrides": {"hidden_size": "x"}
    },
    "model.path=x: The hidden size (63) is not a multiple": {"config": {**LLAMA, "hidden_size": 63}},
    "model.path=x: Unrecognized model identifier: lama": {"config": {"model_type": "lama"}},
}


def test_transformers_words_are_one_line():
    models = [{"path": "x", "config": LLAMA, **model} for model in WRONG.values()]
    done = subprocess.run(
        [sys.executable, "-m", "memlab.training.model_config"],
        input=json.dumps(models),
        capture_output=True,
        text=True,
        check=True,
    )
    reasons = json.loads(done.stdout)
    for reason, expected in zip(reasons, WRONG, strict=True):
        assert reason.replace("ValueError: ", "").startswith(expected) and "\n" not in reason


OWN_CODE = """
from transformers import PretrainedConfig

class OwnConfig(PretrainedConfig):
    model_type = "own"
"""

ASK = """
import sys
sys.modules["torch"] = None
from memlab.core.config import Model
from memlab.training.model_config import model_config
print(model_config(Model(sys.argv[1], overrides={"anything": 5}, trust_remote_code=True)).anything)
"""


def test_a_model_with_code_of_its_own_may_have_any_key(config, folder, tmp_path):
    path = folder("own", {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}})
    (tmp_path / "own" / "configuration_own.py").write_text(OWN_CODE)
    own = {"model.config": {}, "model.path": path, "model.overrides": {"anything": 5}}
    preflight.check([config({**own, "model.trust_remote_code": True})])
    assert "trust_remote_code" in refusal(config(own))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", ASK, path], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["5"], done.stderr


def test_a_program_beside_the_interpreter_is_found_for_the_user(config, tmp_path, monkeypatch):
    (tmp_path / "torchrun").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    found = refusal(config({"training.loop": "command", "training.command": "torchrun train.py"}))
    assert found == f"training.command: no program 'torchrun' on the path. It is in {tmp_path}: put that on the PATH."
