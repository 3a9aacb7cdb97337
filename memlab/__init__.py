"""memlab: GPU memory, step time and cost of fine-tuning language models with DeepSpeed, measured or predicted."""

__version__ = "0.1.0"
