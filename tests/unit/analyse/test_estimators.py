"""The estimators' formulas, against figures computed with DeepSpeed 0.19.8 and accelerate 1.15 themselves."""

from memlab.analyse.estimators import (
    accelerate_bytes,
    largest_layer_parameters,
    zero2_model_states_bytes,
    zero3_model_states_bytes,
)

LLAMA3_8B = 8_030_261_248
EMBEDDING = 128_256 * 4_096


def test_zero3():
    assert zero3_model_states_bytes(LLAMA3_8B, EMBEDDING, 8, False, False) == 20_169_434_112
    assert zero3_model_states_bytes(LLAMA3_8B, EMBEDDING, 8, True, False) == 4_108_911_616
    assert zero3_model_states_bytes(LLAMA3_8B, EMBEDDING, 8, True, True) == 2_101_346_304


def test_zero2():
    assert zero2_model_states_bytes(LLAMA3_8B, 8, False) == 34_128_610_304
    assert zero2_model_states_bytes(LLAMA3_8B, 8, True) == 16_060_522_496


def test_accelerate():
    assert accelerate_bytes(LLAMA3_8B, "fp16") == 64_242_089_984
    assert accelerate_bytes(LLAMA3_8B, "fp32") == 128_484_179_968


def test_the_largest_layer():
    assert (
        largest_layer_parameters({"hidden_size": 4096, "vocab_size": 128_256, "intermediate_size": 14_336}) == EMBEDDING
    )
    assert largest_layer_parameters({"n_embd": 768}) is None
