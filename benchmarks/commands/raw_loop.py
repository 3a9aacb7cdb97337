"""A plain PyTorch loop over texts of different lengths, which writes down its own step times and torch's peaks."""

import torch
from measures_itself import Clock, model_and_rows, read_arguments
from torch.utils.data import DataLoader

output, size, blocks = read_arguments()
device = "cuda" if torch.cuda.is_available() else "cpu"
model, rows, pad = model_and_rows(size, blocks, device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
clock = Clock(blocks)
for batch in DataLoader(rows, batch_size=4, collate_fn=pad):
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    clock.step()
clock.write(output)
