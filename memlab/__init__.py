"""memlab: what fits, how fast is it, what does it cost - for fine-tuning language models with DeepSpeed."""

__version__ = "0.1.0"
