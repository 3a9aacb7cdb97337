"""Predict a run without a GPU: the real engine on a device that is not there, then a replay of PyTorch's allocator."""
