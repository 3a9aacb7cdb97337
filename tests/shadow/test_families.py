"""Ten families of docs/families.md, in their own classes' defaults: what was predicted once is predicted."""

import pytest

from memlab.cli.compose import compose_config
from memlab.core.record import MODEL_FLOPS
from tools.families.__main__ import WORDS
from tools.families.attempts import attempts
from tools.families.models import all_families, model_families

pytestmark = [pytest.mark.shadow, pytest.mark.long(30)]

TEN = ("bert", "bloom", "diffllama", "gemma3_text", "gpt2", "mamba", "mixtral", "olmo2", "phi3", "rwkv")
WITHOUT_FLOPS = {"mamba", "rwkv"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    config, _ = compose_config(["mode=predict", *WORDS])
    folder = tmp_path_factory.mktemp("families")
    return {each.family.name: each for each in attempts(model_families(TEN), config, folder, 120, lambda done: None)}


@pytest.mark.parametrize("name", TEN)
def test_a_family_is_predicted(name, found):
    attempt = found[name]
    assert attempt.reason == ""
    assert attempt.used > 4 * attempt.parameters  # weights and gradients in bf16 at the least
    assert attempt.step_s > 0
    assert set(attempt.unknown) == ({MODEL_FLOPS} if name in WITHOUT_FLOPS else set())


def test_what_takes_too_long_is_not_predicted_and_says_so(tmp_path):
    """Mamba without its compiled kernels goes from token to token."""
    config, _ = compose_config(["mode=predict", "hardware=h200_x1", "seq_len.tokens=8192"])
    [attempt] = attempts(model_families(["mamba"]), config, tmp_path, 1, lambda done: None)
    assert attempt.reason == "TimeoutError: it takes more than 1 s of CPU time"


def test_the_ten_are_families_of_transformers():
    assert set(TEN) <= set(all_families())
