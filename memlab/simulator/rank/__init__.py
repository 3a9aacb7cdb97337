"""A simulated rank: the real engine, model and script on tensors that have a shape but no memory, recorded."""
