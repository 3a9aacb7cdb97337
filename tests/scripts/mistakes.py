"""A loop that holds memory by mistake: outputs of each step, a second model, a base that trains, float32 weights."""

import copy

import torch
from torch import nn

WIDTH, VOCABULARY, BATCH, STEPS = 512, 4096, 256, 4


class Layer(nn.Module):
    """A linear layer with an adapter of low rank, as peft names them."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(WIDTH, WIDTH, bias=False)
        self.lora_A, self.lora_B = nn.Linear(WIDTH, 64, bias=False), nn.Linear(64, WIDTH, bias=False)

    def forward(self, hidden):
        return torch.relu(self.base_layer(hidden) + self.lora_B(self.lora_A(hidden)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(10))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.lm_head(hidden.float())


def main():
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device, torch.bfloat16).requires_grad_(False)
    model.lm_head.float()
    reference = copy.deepcopy(model)
    average = [weight.clone() for weight in model.parameters()]
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora_" in name or "embed" in name)  # the embeddings are the mistake
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    total = 0
    for _ in range(STEPS):
        ids = torch.randint(VOCABULARY, (BATCH,), device=device)
        logits = model(ids)
        with torch.no_grad():
            reference(ids)
        loss = nn.functional.cross_entropy(logits, ids)
        total = total + logits.square().mean()  # the graph of each step hangs on the sum
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(ids), ids)
    loss.backward()
    model.eval()
    with torch.no_grad():
        kept = [model(ids) for _ in range(4)]
    model.train()
    print(len(kept), len(average), float(total))


if __name__ == "__main__":
    main()
