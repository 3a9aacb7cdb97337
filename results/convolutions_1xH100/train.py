"""A few training steps of models with convolutions: ``python train.py MODEL [search] [limit GIB]``.

``search``: with ``torch.backends.cudnn.benchmark``. ``limit``: of the memory that torch may take.
"""

import sys
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from transformers import ResNetConfig, ResNetForImageClassification, Wav2Vec2Config, Wav2Vec2ForCTC

STEPS = 8


def conv(inputs: int, outputs: int, transposed: bool = False, **options) -> nn.Module:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    return nn.Sequential(kind(inputs, outputs, **options), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True))


class Gan(nn.Module):
    """The generator and the discriminator of DCGAN for images of 64 x 64."""

    def __init__(self, width: int = 64):
        super().__init__()
        double = {"kernel_size": 4, "stride": 2, "padding": 1}
        sizes = [width * 8, width * 4, width * 2, width]
        self.generator = nn.Sequential(
            conv(100, sizes[0], True, kernel_size=4),
            *(conv(a, b, True, **double) for a, b in pairwise(sizes)),
            nn.ConvTranspose2d(width, 3, **double),
        )
        self.discriminator = nn.Sequential(
            conv(3, width, **double),
            *(conv(b, a, **double) for a, b in zip(sizes[-2::-1], sizes[:0:-1], strict=True)),
            nn.Conv2d(sizes[0], 1, 4),
        )

    def forward(self, noise):
        return self.discriminator(self.generator(noise)).square().mean()


class Unet(nn.Module):
    """Convolutions of 3 x 3 at three resolutions, as in a diffusion model's network."""

    def __init__(self, widths: tuple[int, ...] = (320, 640, 1280)):
        super().__init__()
        self.first = nn.Conv2d(4, widths[0], 3, padding=1)
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(conv(a, b, kernel_size=3, stride=2, padding=1) for a, b in pairs)
        self.same = nn.ModuleList(conv(a, a, kernel_size=3, padding=1) for a in widths)
        self.up = nn.ModuleList(conv(a + b, a, kernel_size=3, padding=1) for a, b in reversed(pairs))
        self.last = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, latents):
        kept = [self.same[0](self.first(latents))]
        for down, same in zip(self.down, self.same[1:], strict=True):
            kept.append(same(down(kept[-1])))
        hidden = kept.pop()
        for up in self.up:
            hidden = up(torch.cat([F.interpolate(hidden, scale_factor=2.0), kept.pop()], dim=1))
        return self.last(hidden).square().mean()


def with_norm(kind: type, inputs: int, outputs: int, size: int, **options) -> nn.Module:
    return nn.Sequential(kind(inputs, outputs, size, **options), nn.InstanceNorm2d(outputs), nn.ReLU(inplace=True))


class Residual(nn.Module):
    """Two convolutions of 3 x 3 beside an identity."""

    def __init__(self, width: int):
        super().__init__()
        same = {"padding": 1, "padding_mode": "reflect"}
        self.layers = nn.Sequential(
            with_norm(nn.Conv2d, width, width, 3, **same), nn.Conv2d(width, width, 3, **same), nn.InstanceNorm2d(width)
        )

    def forward(self, hidden):
        return hidden + self.layers(hidden)


class CycleGan(nn.Module):
    """A generator and a discriminator for each direction, as in CycleGAN; pictures go there and back."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.generators = nn.ModuleList(self.generator(width) for _ in range(2))
        self.discriminators = nn.ModuleList(self.discriminator(width) for _ in range(2))

    @staticmethod
    def generator(width: int) -> nn.Module:
        half = {"stride": 2, "padding": 1}
        return nn.Sequential(
            with_norm(nn.Conv2d, 3, width, 7, padding=3, padding_mode="reflect"),
            *(with_norm(nn.Conv2d, width * n, width * n * 2, 3, **half) for n in (1, 2)),
            *(Residual(width * 4) for _ in range(9)),
            *(with_norm(nn.ConvTranspose2d, width * n, width * n // 2, 3, **half, output_padding=1) for n in (4, 2)),
            nn.Conv2d(width, 3, 7, padding=3, padding_mode="reflect"),
            nn.Tanh(),
        )

    @staticmethod
    def discriminator(width: int) -> nn.Module:
        widths = (3, width, width * 2, width * 4)
        return nn.Sequential(
            *(with_norm(nn.Conv2d, a, b, 4, stride=2, padding=1) for a, b in pairwise(widths)),
            with_norm(nn.Conv2d, width * 4, width * 8, 4, padding=1),
            nn.Conv2d(width * 8, 1, 4, padding=1),
        )

    def forward(self, pictures):
        loss = 0
        for there, back, judge in ((0, 1, 0), (1, 0, 1)):
            made = self.generators[there](pictures)
            loss = loss + self.discriminators[judge](made).square().mean()
            loss = loss + (self.generators[back](made) - pictures).abs().mean()
        return loss


def deeplab() -> nn.Module:
    from torchvision.models.segmentation import deeplabv3_resnet50

    return deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21)


def mnist() -> nn.Module:
    layers = (nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(1))
    return nn.Sequential(*layers, nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))


def speech(model, sounds):
    labels = torch.randint(1, 30, (len(sounds), 40), device="cuda")
    return model(sounds, labels=labels).loss


MODELS = {
    "mnist": (mnist, (64, 1, 28, 28), lambda model, images: model(images).square().mean()),
    "dcgan": (Gan, (64, 100, 1, 1), lambda model, noise: model(noise)),
    "unet": (Unet, (4, 4, 64, 64), lambda model, latents: model(latents)),
    "cyclegan": (CycleGan, (1, 3, 256, 256), lambda model, pictures: model(pictures)),
    "deeplab": (deeplab, (8, 3, 520, 520), lambda model, pictures: model(pictures)["out"].square().mean()),
    "resnet50": (
        lambda: ResNetForImageClassification(ResNetConfig()),
        (32, 3, 224, 224),
        lambda model, images: model(images).logits.square().mean(),
    ),
    "wav2vec2": (lambda: Wav2Vec2ForCTC(Wav2Vec2Config()), (8, 80000), speech),
}


def main() -> None:
    name, *options = sys.argv[1:]
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = "search" in options
    if "limit" in options:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(float(options[-1]) * 2**30 / total)
    make, shape, loss_of = MODELS[name]
    model = make().cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        loss_of(model, torch.randn(shape, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
