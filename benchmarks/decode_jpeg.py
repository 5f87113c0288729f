"""Claim: a JPEG is decoded, cropped, resized to 224 x 224 and mirrored faster than torchvision does it.

Photographs of 500 x 375 and 1280 x 960 pixels, of quality 70, which the originals have, and of 90; one thread. Beside
us the two ways of torchvision: PIL pictures to tensors, and tensors from the beginning. All draw the same kind of crop
(a share of 0.08 to 1 of the area). Pictures are those of ``../shared/data/clothing_small/originals_sample`` where it is
there, else drawn ones, which hold more noise than photographs and so cost more to read.

CPU time, median over the rounds, in which the sides take turns and each draws other crops. Run:
``python benchmarks/decode_jpeg.py``.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from opabinia.data.decoding.images import EncodedImage
from opabinia.data.transforms import instances
from opabinia.data.transforms.crops import RandomResizedCrop

PICTURES, ROUNDS, SIZE = 20, 21, 224
PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "data" / "clothing_small" / "originals_sample"

CROP = RandomResizedCrop(size=SIZE)
MIRROR = instances.RandomHorizontalFlip(p=0.5)
FULL = v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()])
TO_TENSOR = v2.Compose([FULL, v2.PILToTensor()])


def originals() -> list[Image.Image]:
    found = sorted(PHOTOGRAPHS.glob("*.jpg"))[:PICTURES]
    if found:
        return [Image.open(path).convert("RGB") for path in found]
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)) for _ in range(PICTURES)]


def files(width: int, height: int, quality: int) -> list[bytes]:
    made = []
    for image in originals():
        content = BytesIO()
        image.resize((width, height), Image.Resampling.LANCZOS).save(content, "JPEG", quality=quality)
        made.append(content.getvalue())
    return made


def opabinia(content: bytes) -> None:
    MIRROR(CROP.of_encoded({"image": EncodedImage(content, "picture", 3)}))


def pil(content: bytes) -> None:
    TO_TENSOR(Image.open(BytesIO(content)).convert("RGB"))


def tensors(content: bytes) -> None:
    FULL(decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB))


SIDES: dict[str, Callable[[bytes], None]] = {
    "opabinia": opabinia,
    "torchvision, PIL": pil,
    "torchvision, tensors": tensors,
}


def seconds(side: Callable[[bytes], None], contents: Sequence[bytes], seed: int) -> float:
    torch.manual_seed(seed)
    began = time.process_time()
    for content in contents:
        side(content)
    return (time.process_time() - began) / len(contents)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"pictures a second of CPU time, median of {ROUNDS} rounds in turn")
    for width, height, quality in ((500, 375, 70), (500, 375, 90), (1280, 960, 70), (1280, 960, 90)):
        contents = files(width, height, quality)
        times: dict[str, list[float]] = {name: [] for name in SIDES}
        for seed in range(ROUNDS):
            for name, side in SIDES.items():
                times[name].append(seconds(side, contents, seed))
        print(f"  {width} x {height}, quality {quality}, {sum(map(len, contents)) // len(contents) // 1000} kB")
        for name, taken in times.items():
            ratio = statistics.median(other / own for other, own in zip(taken, times["opabinia"], strict=True))
            print(f"    {name:<22} {1 / statistics.median(taken):6.0f}   ours is {ratio:.2f} x as fast")


if __name__ == "__main__":
    main()
