"""Hydra plugin: memlab's launcher and sweeper for multiruns."""
