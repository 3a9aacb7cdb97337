"""Which packages a simulated rank of memlab's own training is spared."""

import pytest

from memlab.training.simulated.shadow_process import needless_packages

ALL = {"datasets", "peft", "bitsandbytes"}


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, set()),
        ({"data.source": "sample"}, {"datasets"}),
        ({"adapter.method": "lora"}, {"peft"}),
        ({"adapter.method": "qlora"}, {"peft", "bitsandbytes"}),
        ({"optimizer.source": "transformers", "optimizer.name": "lion_8bit"}, {"bitsandbytes"}),
        ({"model.trust_remote_code": True}, ALL),
    ],
)
def test_what_no_configuration_uses_is_not_imported(config, changes, needed):
    assert set(needless_packages([config(), config(changes)])) == ALL - needed
