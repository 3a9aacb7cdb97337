"""The command line. Hydra is imported here alone."""
