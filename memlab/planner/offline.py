"""Variables by which libraries ask no server: the Hugging Face Hub and the trackers of experiments."""

from memlab.system.sandbox import INTERCEPTION, Sandbox

HUB = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

TRACKERS = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_ONLINE": "0",
    "MLFLOW_TRACKING_URI": "",  # the default: files of the working folder
}
"""Trackers write files instead, which go to the scratch folder."""


def offline_variables(sandbox: Sandbox) -> dict[str, str]:
    """Return the variables of a command in a sandbox. With an open network, the Hub may be read."""
    # wandb writes its files in a static program, which interception does not see.
    wandb = {"WANDB_MODE": "disabled"} if sandbox.protection == INTERCEPTION else {}
    return {**({} if sandbox.network else HUB), **TRACKERS, **wandb}
