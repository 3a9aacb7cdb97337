"""Train a ViT on ten crops of each picture, as DINO does: two of 224 pixels and eight of 96, each kind in one batch."""

import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTModel

KINDS = ((2, 224), (8, 96))


class Crops(Dataset):
    """Crops of pictures: for each size of a crop a tensor (crops, 3, side, side)."""

    def __init__(self, pictures: int):
        self._pictures = pictures

    def __len__(self) -> int:
        return self._pictures

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        return [torch.rand(crops, 3, side, side) for crops, side in KINDS]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--pictures", type=int, default=250)
    options.add_argument("--batch", type=int, default=16)
    args = options.parse_args()
    torch.manual_seed(0)
    model = ViTModel(ViTConfig(), add_pooling_layer=False).cuda()
    head = torch.nn.Linear(768, 4096).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4)
    for large, small in DataLoader(Crops(args.pictures), batch_size=args.batch, shuffle=True, num_workers=2):
        views = []
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for crops in (large, small):
                pixels = crops.flatten(0, 1).cuda(non_blocking=True)
                hidden = model(pixels, interpolate_pos_encoding=True).last_hidden_state[:, 0]
                views.append(head(hidden))
        loss = torch.cat([view.float().log_softmax(-1) for view in views]).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
