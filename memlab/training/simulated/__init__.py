"""Runs memlab's own training on simulated GPUs, in one process that forks for each engine start and each shape."""
