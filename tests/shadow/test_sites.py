"""What an allocation is for is told from the code that made it, wherever that code is installed."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from memlab.cli.compose import compose_config
from memlab.core.plan import make_plan
from memlab.simulator.trace.trace_format import Site
from memlab.training.simulated.shadow_process import TraceKey
from tests.shadow.traced_points import shadow_traces

pytestmark = [pytest.mark.shadow, pytest.mark.long(20)]

POINT = TraceKey(0, 1, 512)


def test_kinds_do_not_depend_on_the_names_of_the_folders_above(tmp_path, monkeypatch):
    """A clone named ``memlab`` below a folder named ``torch``, with its packages in a ``.venv`` of its own."""
    here = sites(tmp_path)
    packages = tmp_path / "torch" / "memlab" / ".venv" / "site-packages"
    packages.parent.mkdir(parents=True)
    packages.symlink_to(Path(find_spec("torch").origin).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH")))))
    assert sites(tmp_path) == here
    assert {"weights", "fp32 master weights", "optimizer states", "logits and loss"} <= {site.kind for site in here}


def sites(folder: Path) -> list[Site]:
    words = ["mode=predict", "model=tiny", "hardware=h200_x1", "zero_stage=zero2"]
    return shadow_traces(make_plan(*compose_config(words)), [POINT], folder)[POINT].sites
