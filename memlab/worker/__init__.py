"""The code of each rank: model, data, meters and training loop. Of the code that measures, only this imports torch.

DeepSpeed's launcher starts ``python -m memlab.worker RUN_FOLDER [RUN_FOLDER...]`` in every rank.
"""
