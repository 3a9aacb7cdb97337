"""Code of each rank of memlab's own training: model, data, meters and training loop.

DeepSpeed's launcher starts ``python -m memlab.training RUN_FOLDER [RUN_FOLDER...]`` in every rank.
"""
