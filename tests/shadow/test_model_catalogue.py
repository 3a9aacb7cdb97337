"""Every shipped model has exactly the parameters that were published for it."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.shadow

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
yaml = pytest.importorskip("yaml")

FOLDER = Path(__file__).parents[2] / "conf" / "model"

# Parameters, a tied weight counted once. "Hub" is the total of the safetensors files that the model's page shows.
PUBLISHED = {
    "falcon_7b": 6_921_720_704,  # Hub: 7,217,189,760, which holds the tied 65,024 x 4,544 embedding twice
    "gemma2_2b": 2_614_341_888,  # Hub
    "gemma3_1b": 999_885_952,  # Hub; "1B" on the model card
    "gpt2": 124_439_808,  # the 124M release of OpenAI; the number is nanoGPT's and transformers'
    "gpt2_xl": 1_557_611_200,  # the 1558M release of OpenAI, likewise
    "llama2_7b": 6_738_415_616,  # Hub
    "llama31_8b": 8_030_261_248,  # Hub
    "llama32_1b": 1_235_814_400,  # Hub; "1.23B" on the model card
    "llama32_3b": 3_212_749_824,  # Hub; "3.21B" on the model card
    "llama3_70b": 70_553_706_496,  # Hub
    "llama3_8b": 8_030_261_248,  # Hub
    "mistral_7b": 7_241_732_096,  # Hub
    "mixtral_8x7b": 46_702_792_704,  # Hub; "46.7B" in Mistral's announcement
    "olmo2_1b": 1_484_916_736,  # Hub; "1B" on the model card
    "phi3_mini": 3_821_079_552,  # Hub; "3.8B" on the model card
    "pythia_14b": 1_414_647_808,  # table of total parameters on EleutherAI's model cards
    "pythia_1b": 1_011_781_632,  # the same table
    "qwen15_05b": 463_987_712,  # 619,570,176 with a second copy of the tied embedding, as the Hub's file holds it
    "qwen25_05b": 494_032_768,  # Hub; "0.49B" on the model card
    "qwen25_15b": 1_543_714_304,  # Hub; "1.54B" on the model card
    "qwen25_7b": 7_615_616_512,  # Hub; "7.61B" on the model card
    "qwen3_06b": 596_049_920,  # Hub: 751,632,384, which holds the tied 151,936 x 1,024 embedding twice
    "qwen3_30b_a3b": 30_532_122_624,  # "30.5B in total" on the model card
    "qwen3_8b": 8_190_735_360,  # Hub; "8.2B" on the model card
    "smollm2_135m": 134_515_008,  # Hub
    "tiny": 893_568,  # ours, counted once: 2 x 2048 x 128 + 2 x (49,152 + 135,168 + 256) + 128
    "tinyllama_1b": 1_100_048_384,  # Hub
}


def shipped() -> dict[str, dict]:
    entries = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yaml"))}
    return {name: entry for name, entry in entries.items() if "config" in entry}


def build(config: dict):
    settings = dict(config)
    hf_config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    with torch.device("meta"):  # shapes only, so 70 billion parameters cost nothing
        return transformers.AutoModelForCausalLM.from_config(hf_config)


def test_every_shipped_model_has_a_published_count():
    missing = sorted(shipped().keys() - PUBLISHED.keys())
    assert not missing, f"Add the published parameter count, with its source, to PUBLISHED in {__file__}: {missing}"
    stale = sorted(PUBLISHED.keys() - shipped().keys())
    assert not stale, f"PUBLISHED lists models that conf/model does not have: {stale}"


@pytest.mark.parametrize("name", sorted(shipped()))
def test_the_parameter_count_is_the_published_one(name):
    assert name in PUBLISHED, f"conf/model/{name}.yaml has no published parameter count in {__file__}"
    model = build(shipped()[name]["config"])
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]  # parameters() yields a tied weight once


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_number_of_the_entry_is_a_number(name):
    """PyYAML reads 1e-5 as text; 1.0e-5 is the number. Not every field is checked by transformers."""
    values = shipped()[name]["config"]
    texts = {key for key, value in values.items() if isinstance(value, str)}
    assert texts <= {"model_type", "hidden_act", "hidden_activation", "activation_function"}


@pytest.mark.parametrize("name", sorted(set(shipped()) - {"tiny"}))
def test_the_comment_states_the_count(name):
    first_line = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert f"{PUBLISHED[name]:,}" in first_line
