"""Traces: what a training step allocates and computes, event by event."""
