"""What runs inside each rank: the model, the data, the meters and the training loop. Only here is torch imported.

``python -m memlab.worker RUN_FOLDER [RUN_FOLDER...]``, started by DeepSpeed's launcher in every rank.
"""
