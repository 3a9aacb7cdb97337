"""Scratch memory of attention's backward, against what memory histories of GPUs show."""

from types import SimpleNamespace

import pytest

from memlab.predict.shadow import attention

pytestmark = pytest.mark.shadow


def heads(batch: int, count: int, tokens: int, size: int):
    return SimpleNamespace(shape=(batch, count, tokens, size), element_size=lambda: 2)


@pytest.mark.parametrize(
    ("query", "key", "nbytes"),
    [
        (heads(1, 9, 512, 64), heads(1, 3, 512, 64), 2_377_984),  # SmolLM2-135M
        (heads(1, 16, 512, 64), heads(1, 16, 512, 64), 2_130_176),  # Qwen1.5-0.5B
        (heads(1, 32, 501, 128), heads(1, 8, 501, 128), 16_481_152),  # Llama-3-8B
    ],
)
def test_cudnn_takes_it_at_once(query, key, nbytes):
    assert attention.cudnn_workspaces(None, query, key, key) == [nbytes]
