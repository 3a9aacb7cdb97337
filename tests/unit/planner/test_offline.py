"""Variables of a command in a sandbox."""

from pathlib import Path

from memlab.planner.user_command import offline_variables
from memlab.system.deadman import TOKEN_VARIABLE
from memlab.system.sandbox import LANDLOCK, NETWORK, OPEN, Sandbox


def variables(folder: Path, **environ: str) -> dict[str, str]:
    with Sandbox(folder, {TOKEN_VARIABLE: "token", **environ}, LANDLOCK) as sandbox:
        return offline_variables(sandbox, environ)


def test_trackers_write_files_and_the_hub_is_read_from_its_cache(tmp_path):
    found = variables(tmp_path)
    assert found["HF_HUB_OFFLINE"] == found["HF_DATASETS_OFFLINE"] == "1"
    assert found["WANDB_MODE"] == "disabled"  # its files are written by a static program, which nothing redirects


def test_an_open_network_lets_the_hub_be_read_and_trackers_stay_offline(tmp_path):
    found = variables(tmp_path, **{NETWORK: OPEN})
    assert "HF_HUB_OFFLINE" not in found and found["NEPTUNE_MODE"] == "offline"


def test_a_tracker_that_the_user_has_switched_off_stays_so(tmp_path):
    found = variables(tmp_path, WANDB_MODE="disabled", NEPTUNE_MODE="debug", SWANLAB_MODE="cloud")
    assert "WANDB_MODE" not in found and "NEPTUNE_MODE" not in found and found["SWANLAB_MODE"] == "offline"
