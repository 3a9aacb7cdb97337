"""Workspaces of cuDNN's convolutions: what each takes where memory is plenty, and with how little it still runs.

``python probe.py heuristic FILE`` and ``python probe.py search FILE``, on a GPU: as torch runs them, and with
``torch.backends.cudnn.benchmark``, which tries all engines when it first meets a shape. A process of its own for each,
because torch keeps the engine of a shape. Each row is one convolution in one direction. ``taken_bytes``: requested of
torch's allocator at the peak, beside the result. ``need_bytes``: the least limit (of 0, 8, 16, ... MiB, beside 24 MiB
for the segments of the result) under which it runs.
"""

import csv
import sys
import time
from itertools import product

import torch
from torch import Tensor

MIB = 1 << 20
CONVOLUTION, BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default

# batch, channels, size of the input; filters, size of the filter, stride, padding, groups, whether transposed
SHAPES = {
    "mnist1": (64, 1, (28, 28), 32, (3, 3), 1, 0, 1, False),
    "mnist2": (64, 32, (26, 26), 64, (3, 3), 1, 0, 1, False),
    "resnet_stem": (64, 3, (224, 224), 64, (7, 7), 2, 3, 1, False),
    "resnet_3x3_56": (64, 64, (56, 56), 64, (3, 3), 1, 1, 1, False),
    "resnet_1x1_56": (64, 64, (56, 56), 256, (1, 1), 1, 0, 1, False),
    "resnet_3x3_28_2": (64, 128, (56, 56), 128, (3, 3), 2, 1, 1, False),
    "resnet_3x3_14": (64, 256, (14, 14), 256, (3, 3), 1, 1, 1, False),
    "resnet_1x1_14": (64, 1024, (14, 14), 256, (1, 1), 1, 0, 1, False),
    "resnet_3x3_7": (64, 512, (7, 7), 512, (3, 3), 1, 1, 1, False),
    "resnext_grouped": (32, 256, (28, 28), 256, (3, 3), 1, 1, 32, False),
    "depthwise": (32, 192, (28, 28), 192, (7, 7), 1, 3, 192, False),
    "dcgan_g1": (64, 100, (1, 1), 512, (4, 4), 1, 0, 1, True),
    "dcgan_g3": (64, 256, (8, 8), 128, (4, 4), 2, 1, 1, True),
    "dcgan_g5": (64, 64, (32, 32), 3, (4, 4), 2, 1, 1, True),
    "dcgan_d1": (64, 3, (64, 64), 64, (4, 4), 2, 1, 1, False),
    "dcgan_d4": (64, 256, (8, 8), 512, (4, 4), 2, 1, 1, False),
    "cyclegan_7x7": (1, 3, (262, 262), 64, (7, 7), 1, 0, 1, False),
    "cyclegan_block": (1, 256, (66, 66), 256, (3, 3), 1, 0, 1, False),
    "unet_320_64": (4, 320, (64, 64), 320, (3, 3), 1, 1, 1, False),
    "unet_1280_16": (4, 1280, (16, 16), 1280, (3, 3), 1, 1, 1, False),
    "unet_2560_8": (4, 2560, (8, 8), 1280, (3, 3), 1, 1, 1, False),
    "unet_4_64": (4, 4, (64, 64), 320, (3, 3), 1, 1, 1, False),
    "vae_128_512": (1, 128, (512, 512), 128, (3, 3), 1, 1, 1, False),
    "vit_patch16": (64, 3, (224, 224), 768, (16, 16), 16, 0, 1, False),
    "vit_patch14": (8, 3, (336, 336), 1024, (14, 14), 14, 0, 1, False),
    "wav2vec_1": (8, 1, (80000,), 512, (10,), 5, 0, 1, False),
    "wav2vec_3": (8, 512, (7999,), 512, (3,), 2, 0, 1, False),
    "wav2vec_position": (8, 768, (249,), 768, (128,), 1, 64, 16, False),
    "whisper_1": (8, 80, (3000,), 512, (3,), 1, 1, 1, False),
    "deeplab_aspp": (8, 2048, (33, 33), 256, (3, 3), 1, 12, 1, False),  # dilation 12 is set below
    "deeplab_dilated": (8, 512, (65, 65), 512, (3, 3), 1, 2, 1, False),
    "mamba_conv1d": (4, 1536, (1024,), 1536, (4,), 1, 3, 1536, False),
    "video_3d": (2, 3, (16, 112, 112), 64, (3, 3, 3), 1, 1, 1, False),
    "video_3d_64": (2, 64, (16, 56, 56), 64, (3, 3, 3), 1, 1, 1, False),
    "pix2pix_up": (1, 1024, (2, 2), 512, (4, 4), 2, 1, 1, True),
    "stylegan_512": (4, 512, (32, 32), 512, (3, 3), 1, 1, 1, False),
}
DILATION = {"deeplab_aspp": 12, "deeplab_dilated": 2}
KINDS = [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, False)]


def requested() -> int:
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def beside_the_result(run) -> int:
    """Bytes that were requested at the peak of ``run()``, without those of its result."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = requested()
    out = run()
    peak, after = torch.cuda.memory_stats()["requested_bytes.all.peak"], requested()
    del out
    return peak - after if after > before else peak - before


def need(run, result_bytes: int, most: int) -> int | None:
    total = torch.cuda.get_device_properties(0).total_memory
    for extra in (0, *(8 << step for step in range(14))):
        torch.cuda.empty_cache()
        limit = torch.cuda.memory_reserved() + result_bytes + (24 + extra) * MIB
        torch.cuda.set_per_process_memory_fraction(min(limit / total, 1.0))
        try:
            run()
            return extra * MIB
        except RuntimeError:  # out of memory, or cuDNN has no engine that fits
            if extra * MIB > most:
                return None
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    return None


def directions(name, shape, dtype, channels_last):
    batch, channels, size, filters, window, stride, padding, groups, transposed = shape
    dims = len(size)
    form = {"memory_format": torch.channels_last} if channels_last and dims == 2 else {}

    def tensor(*sizes) -> Tensor:
        return torch.randn(*sizes, device="cuda", dtype=dtype).contiguous(**form)

    inputs = tensor(batch, channels, *size)
    weight = tensor(*((channels, filters // groups) if transposed else (filters, channels // groups)), *window)
    rest = ([stride] * dims, [padding] * dims, [DILATION.get(name, 1)] * dims, transposed, [0] * dims, groups)
    out = CONVOLUTION(inputs, weight, None, *rest)
    yield "forward", lambda: CONVOLUTION(inputs, weight, None, *rest), out
    grad = torch.randn_like(out)
    for way, mask, like in (("input", [True, False, False], inputs), ("weight", [False, True, False], weight)):
        yield way, (lambda mask=mask: BACKWARD(grad, inputs, weight, None, *rest, mask)), like


def main() -> None:
    began = time.time()
    mode, path = sys.argv[1:]
    torch.backends.cudnn.benchmark = mode == "search"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            [
                "name",
                "direction",
                "dtype",
                "channels_last",
                "batch",
                "channels",
                "size",
                "filters",
                "window",
                "stride",
                "padding",
                "groups",
                "transposed",
                "dilation",
                "result_bytes",
                "taken_bytes",
                "need_bytes",
            ]
        )
        for (name, shape), (dtype, channels_last) in product(SHAPES.items(), KINDS):
            if channels_last and len(shape[2]) != 2:
                continue
            try:
                for way, run, like in directions(name, shape, dtype, channels_last):
                    nbytes = like.numel() * like.element_size()
                    taken = beside_the_result(run)
                    least = need(run, nbytes, taken)
                    rows.writerow(
                        [
                            name,
                            way,
                            str(dtype).removeprefix("torch."),
                            channels_last,
                            *shape[:2],
                            "x".join(map(str, shape[2])),
                            shape[3],
                            "x".join(map(str, shape[4])),
                            *shape[5:],
                            DILATION.get(name, 1),
                            nbytes,
                            taken,
                            least,
                        ]
                    )
                    file.flush()
            except RuntimeError as error:
                print(name, dtype, channels_last, str(error).splitlines()[0])
            torch.cuda.empty_cache()
    print(torch.__version__, torch.backends.cudnn.version(), torch.cuda.get_device_name(), time.time() - began)


if __name__ == "__main__":
    main()
