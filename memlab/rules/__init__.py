"""Combinations that cannot run, and why."""
