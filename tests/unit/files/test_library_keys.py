"""Keys of TrainingArguments and of the DeepSpeed JSON: read from the installed source, and listed where it has no
model."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys

import pytest
from package_imports import ROOT

from memlab.core.foreign_words import OF_DEEPSPEED, OF_TRAINING_ARGUMENTS
from memlab.core.plan import make_plan
from memlab.files import library_keys
from memlab.files.conf_files import shipped_models

LISTED = json.loads(library_keys.LISTED.read_text(encoding="utf-8"))

DEEPSPEED = library_keys._folder("deepspeed")

READERS = ("runtime", "profiling", "comm", "monitor", "utils", "datastates")
"""Folders of DeepSpeed with modules that read the JSON of a training."""


def constants() -> dict[str, str]:
    """Name -> text, of all constants of DeepSpeed that hold a text."""
    found = {}
    for file in DEEPSPEED.rglob("*.py"):
        if file.name in ("constants.py", "config.py"):
            pairs = re.findall(r"^([A-Z_]+) = ['\"](\w+)['\"]", file.read_text(encoding="utf-8"), re.MULTILINE)
            found |= dict(pairs)
    return found


def read_keys() -> set[str]:
    """The keys that DeepSpeed's modules read from the JSON itself, ``param_dict``."""
    known, found = constants(), set()
    for file in (file for folder in READERS for file in (DEEPSPEED / folder).rglob("config.py")):
        if file.parent.name in ("data_pipeline", "model_checkpointing"):
            continue  # parts of the JSON have the same name in them
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(args=[ast.Name(id="param_dict"), ast.Name(id=name), *_]):
                    found.add(known.get(name))
                case ast.Call(func=ast.Attribute(value=ast.Name(id="param_dict"), attr="get"), args=[key, *_]):
                    found.add(known.get(key.id) if isinstance(key, ast.Name) else ast.literal_eval(key))
                case ast.Compare(left=ast.Name(id=name), ops=[ast.In()], comparators=[ast.Name(id="param_dict")]):
                    found.add(known.get(name))
    return found - {None}


def test_the_list_is_of_the_installed_deepspeed():
    assert importlib.metadata.version("deepspeed") == LISTED["version"], "look through its changes: deepspeed_keys.json"


def test_every_key_that_deepspeed_reads_is_listed():
    assert len(read_keys()) > 25
    assert read_keys() - {"key"} <= set(LISTED["keys"])


def words_of(values: dict) -> set[str]:
    inner = set().union(*(words_of(value) for value in values.values() if isinstance(value, dict)))
    return {*values, *inner}


def test_every_listed_key_is_in_deepspeeds_source():
    source = "\n".join(file.read_text(encoding="utf-8") for file in DEEPSPEED.rglob("*.py"))
    missing = [key for key in words_of(LISTED["keys"]) if not re.search(rf"['\"]{key}['\"]", source)]
    assert not missing


def test_every_model_of_the_list_has_fields():
    models = {key for key, value in LISTED["keys"].items() if isinstance(value, str) and ":" in value}
    keys = library_keys.deepspeed_json()
    assert len(models) > 10 and all(len(keys[name]) > 1 for name in models)
    assert keys["zero_optimization"]["offload_optimizer"]["ratio"] is float
    assert "prefetch_bucket_size" not in keys["zero_optimization"]  # its alias is the key
    assert keys["zero_optimization"]["stage3_prefetch_bucket_size"] is int


def test_types_are_those_of_the_source():
    keys = library_keys.training_arguments()
    assert (keys["torch_compile"], keys["torch_empty_cache_steps"]) == (bool, int | None)
    assert (keys["report_to"], keys["parallelism_config"]) == (str | list[str] | None, library_keys.Any)


def test_the_words_of_an_enum_are_those_of_the_source():
    (words,) = library_keys.training_arguments()["lr_scheduler_type"].__metadata__
    assert {"linear", "cosine", "warmup_stable_decay"} < {*words.choices} and "LINEAR" not in words.choices


def test_the_family_of_every_shipped_model_is_found():
    for config in filter(None, shipped_models().values()):
        family = library_keys.family(config["model_type"])
        assert {"vocab_size", "num_hidden_layers"} <= family.words and "num_hidden_layer" not in family.words
    assert library_keys.family("None") is None


def test_nothing_is_imported_for_it():
    """Reading the keys takes a tenth of a second; importing transformers and DeepSpeed takes many."""
    code = "import sys; from memlab.files import library_keys as k; k.training_arguments(); k.deepspeed_json()"
    code += "; sys.exit(bool({'torch', 'transformers', 'deepspeed'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_what_memlab_composes_and_knows_are_keys_of_the_libraries(config):
    plan = make_plan(config({"zero_stage.stage": 3, "offload.optimizer": "nvme", "offload.param": "nvme"}), {})
    assert set(plan.training_args) <= set(library_keys.training_arguments())
    for path in (*leaves(plan.deepspeed), *OF_DEEPSPEED):
        keys = library_keys.deepspeed_json()
        for part in path.split("."):
            assert part in keys, path
            keys = {**dict.fromkeys(LISTED["keys"]["optimizer"])} if keys[part] is dict else keys[part]
            if part == "params":
                break
    assert {path.partition(".")[0] for path in OF_TRAINING_ARGUMENTS} <= set(library_keys.training_arguments())


def leaves(values: dict, path: str = "") -> list[str]:
    inner = [
        leaves(value, f"{path}{key}.") if isinstance(value, dict) else [path + key] for key, value in values.items()
    ]
    return [each for part in inner for each in part]


def test_a_missing_package_is_said(monkeypatch):
    monkeypatch.setattr(library_keys.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(library_keys.ConfigError, match=r"nothing is not installed.*pip install nothing"):
        library_keys._folder("nothing")
