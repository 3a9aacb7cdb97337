"""The shadow run: the real engine, model and Trainer on simulated GPUs, in a process of its own with torch."""
