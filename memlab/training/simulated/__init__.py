"""memlab's own training on simulated GPUs: one process that forks for each engine start and each shape."""
