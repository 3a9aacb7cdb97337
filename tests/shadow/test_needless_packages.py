"""Which packages a simulated rank of memlab's own training is spared."""

import pytest

pytestmark = pytest.mark.shadow


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, set()),
        ({"data.source": "sample"}, {"datasets"}),
        ({"adapter.method": "lora"}, {"peft"}),
        ({"adapter.method": "qlora"}, {"peft", "bitsandbytes"}),
        ({"optimizer.source": "transformers", "optimizer.name": "lion_8bit"}, {"bitsandbytes"}),
    ],
)
def test_what_no_configuration_uses_is_not_imported(config, changes, needed):
    from memlab.training.simulated.run import needless_packages

    assert needless_packages([config(), config(changes)]) == {"datasets", "peft", "bitsandbytes"} - needed
