"""Measured runs predicted again, and the errors of the predictions."""
