"""Predictions of one small model of every family that transformers knows: docs/families.md."""
