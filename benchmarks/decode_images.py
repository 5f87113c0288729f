"""Claim: a JPEG is decoded, cropped, resized to 224 x 224 and mirrored faster than torchvision and OpenCV do it.

PNGs take as long as with PIL, which decodes them; torchvision and OpenCV are faster. WebPs are decoded by torchvision.

Photographs of 500 x 375 and 1280 x 960 pixels, on one thread: JPEGs of quality 70 (as the originals) and 90, PNGs, and
WebPs of quality 80. All sides draw the same kind of crop (a share of 0.08 to 1 of the area). OpenCV reduces by areas,
the others with an antialiased bilinear filter. Images are those of ``../shared/data/clothing_small/originals_sample``
if present, else random ones, which hold more noise than photographs and so cost more to decode.

"cropped while decoding" is our side with ``tj3SetCroppingRegion`` of libturbojpeg 3, if the system or
``LD_LIBRARY_PATH`` has it; its pixels are checked to be ours. CPU time: ratios are medians over the rounds, in which
the sides take turns and each draws other crops. Run: ``python benchmarks/decode_images.py``.
"""

from __future__ import annotations

import ctypes
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from opabinia.data.decoding.images import Box, EncodedImage, decode_sample
from opabinia.data.transforms import instances
from opabinia.data.transforms.crops import RandomResizedCrop

IMAGES, ROUNDS, SIZE = 20, 11, 224
PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "data" / "clothing_small" / "originals_sample"
SIZES = ((500, 375), (1280, 960))
FORMATS = (("JPEG", 70), ("JPEG", 90), ("PNG", None), ("WEBP", 80))

CROP = RandomResizedCrop(size=SIZE)
MIRROR = instances.RandomHorizontalFlip(p=0.5)
FULL = v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()])
TO_TENSOR = v2.Compose([FULL, v2.PILToTensor()])

Side = Callable[[bytes], object]


def originals() -> list[Image.Image]:
    paths = sorted(PHOTOGRAPHS.glob("*.jpg"))[:IMAGES]
    if paths:
        return [Image.open(path).convert("RGB") for path in paths]
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)) for _ in range(IMAGES)]


def files(size: tuple[int, int], kind: str, quality: int | None) -> list[bytes]:
    contents = []
    for image in originals():
        content = BytesIO()
        options = {} if quality is None else {"quality": quality}
        image.resize(size, Image.Resampling.LANCZOS).save(content, kind, **options)
        contents.append(content.getvalue())
    return contents


# --- the sides --------------------------------------------------------------------------------------------------------


def opabinia(content: bytes, image_type: type[EncodedImage] = EncodedImage) -> None:
    decode_sample(MIRROR(CROP.of_encoded({"image": image_type(content, "image", 3)})))


def pil(content: bytes) -> None:
    TO_TENSOR(Image.open(BytesIO(content)).convert("RGB"))


def tensors(content: bytes) -> None:
    FULL(decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB))


def opencv() -> Side:
    import cv2

    cv2.setNumThreads(1)

    def side(content: bytes) -> None:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
        top, left, height, width = CROP.random_box(*image.shape[:2])
        by = cv2.INTER_AREA if min(height, width) > SIZE else cv2.INTER_LINEAR
        image = cv2.resize(image[top : top + height, left : left + width], (SIZE, SIZE), interpolation=by)
        np.ascontiguousarray((cv2.flip(image, 1) if torch.rand(()) < 0.5 else image).transpose(2, 0, 1))

    return side


def cropped_while_decoding() -> Side:
    class Pair(ctypes.Structure):
        _fields_ = (("numerator", ctypes.c_int), ("denominator", ctypes.c_int))

    class Region(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_int) for name in ("left", "top", "width", "height"))

    library = ctypes.CDLL("libturbojpeg.so.0")
    pointer, content_types = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_size_t)
    library.tj3Init.restype = pointer
    library.tj3DecompressHeader.argtypes = (pointer, *content_types)
    library.tj3SetScalingFactor.argtypes = (pointer, Pair)
    library.tj3SetCroppingRegion.argtypes = (pointer, Region)
    library.tj3Decompress8.argtypes = (pointer, *content_types, pointer, ctypes.c_int, ctypes.c_int)
    decoder = pointer(library.tj3Init(1))

    class CroppedWhileDecoding(EncodedImage):
        def crop(self, box: Box, min_size: tuple[int, int]) -> Tensor:
            factor = next((f for f in (8, 4, 2) if box.height >= f * min_size[0] and box.width >= f * min_size[1]), 1)
            top, bottom = (round(edge / factor) for edge in (box.top, box.top + box.height))
            left, right = (round(edge / factor) for edge in (box.left, box.left + box.width))
            _, width = self.size or (0, 0)
            # Colors are interpolated from neighbors; regions start at multiples of blocks, at most 16 pixels wide.
            start, end = max(0, left - 1) * factor // 16 * 16 // factor, min(-(-width // factor), right + 2)
            pixels = np.empty((bottom - top, end - start, 3), np.uint8)
            source = decoder, self.content, len(self.content)
            failed = (
                library.tj3DecompressHeader(*source)
                or library.tj3SetScalingFactor(decoder, Pair(1, factor))
                or library.tj3SetCroppingRegion(decoder, Region(start, top, end - start, bottom - top))
                or library.tj3Decompress8(*source, pixels.ctypes.data, 0, 0)
            )
            assert not failed
            return torch.from_numpy(np.ascontiguousarray(pixels[:, left - start : right - start])).permute(2, 0, 1)

    for content in files(SIZES[0], "JPEG", 90):
        box = Box(*CROP.random_box(*SIZES[0][::-1]))
        crops = (kind(content, "image", 3).crop(box, (SIZE, SIZE)) for kind in (EncodedImage, CroppedWhileDecoding))
        assert torch.equal(*crops)
    return lambda content: opabinia(content, CroppedWhileDecoding)


def sides() -> dict[str, Side]:
    available: dict[str, Side] = {"opabinia": opabinia, "torchvision, PIL": pil, "torchvision, tensors": tensors}
    for name, make in {"OpenCV": opencv, "cropped while decoding": cropped_while_decoding}.items():
        try:
            available[name] = make()
        except (ImportError, OSError, AttributeError) as error:
            print(f"without {name}: {error}")
    return available


# --- measuring --------------------------------------------------------------------------------------------------------


def seconds(side: Side, contents: Sequence[bytes], seed: int) -> float:
    torch.manual_seed(seed)
    began = time.process_time()
    for content in contents:
        side(content)
    return (time.process_time() - began) / len(contents)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    available = sides()
    print(f"images/s of CPU time, median of {ROUNDS} rounds in turn")
    for size, (kind, quality) in ((size, form) for size in SIZES for form in FORMATS):
        contents = files(size, kind, quality)
        chosen = {name: side for name, side in available.items() if kind == "JPEG" or not name.startswith("cropped")}
        times: dict[str, list[float]] = {name: [] for name in chosen}
        for seed in range(ROUNDS):
            for name, side in chosen.items():
                times[name].append(seconds(side, contents, seed))
        title = kind if quality is None else f"{kind}, quality {quality}"
        print(f"  {size[0]} x {size[1]}, {title}, {sum(map(len, contents)) // len(contents) // 1000} kB")
        for name, taken in times.items():
            ratio = statistics.median(other / own for other, own in zip(taken, times["opabinia"], strict=True))
            print(f"    {name:<24} {1 / statistics.median(taken):6.0f}   ours is {ratio:.2f} x as fast", flush=True)


if __name__ == "__main__":
    main()
