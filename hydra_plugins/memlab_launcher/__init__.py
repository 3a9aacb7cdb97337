"""The multirun launcher of memlab, as a Hydra plugin."""
