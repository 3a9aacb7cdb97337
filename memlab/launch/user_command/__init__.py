"""A training command of the user's own, measured: run as it is, watched, and its run folder filled."""
