"""Damaged image files: each reader returns an image, or one error that names the file.

``python -m tests.faults.fuzz_images --seed 1 --first 0 --count 20000``
"""

import struct
import zlib
from functools import cache
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image, features

from opabinia.data.decoding.images import Box, EncodedImage, decode_bytes, read_size
from opabinia.data.decoding.resized import ResizedCrop
from opabinia.data.sources.segmentation_base import read_map
from opabinia.inference.serving.limits import Limits, RequestError, Upload, check_image
from tests.faults.fuzz_files import failure_of, main, mutated

FOREIGN = ("ico", "eps", "pcx", "tga", "jpeg2000", "avif")
"""Formats that are refused."""


@cache
def encodings() -> dict[str, bytes]:
    """Return images of every format and kind that PIL can write, by name."""
    pixels = np.random.default_rng(0).integers(0, 256, (19, 26, 4), dtype=np.uint8)
    pixels[4:12, 5:20] = 90
    rgb, rgba = Image.fromarray(pixels[:, :, :3]), Image.fromarray(pixels)
    gray, palette, bits = rgb.convert("L"), rgb.quantize(16), rgb.convert("1")
    deep = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 256)

    # Copies: PIL keeps the options of a JPEG for later files of an image.
    def frames() -> dict[str, Any]:
        return {"save_all": True, "append_images": [rgb.transpose(Image.Transpose.ROTATE_180), rgb.copy()]}

    def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
        content = BytesIO()
        image.copy().save(content, kind, **options)
        return content.getvalue()

    def rotated(orientation: int) -> Image.Exif:
        exif = Image.Exif()
        exif[0x0112] = orientation
        return exif

    result = {
        "jpeg": encode(rgb, "JPEG", quality=80),
        "jpeg subsampled": encode(rgb, "JPEG", subsampling=2),
        "jpeg progressive": encode(rgb, "JPEG", progressive=True),
        "jpeg gray": encode(gray, "JPEG"),
        "jpeg cmyk": encode(rgb.convert("CMYK"), "JPEG"),
        "jpeg restarts": encode(rgb, "JPEG", restart_marker_blocks=1),
        "jpeg multi-picture": encode(rgb, "MPO", **frames()),
        "png": encode(rgb, "PNG"),
        "png 1 bit": encode(bits, "PNG"),
        "png 16 bit": encode(deep, "PNG"),
        "png palette": encode(palette, "PNG"),
        "png transparent palette": encode(palette, "PNG", transparency=bytes(range(16))),
        "png alpha": encode(rgba, "PNG"),
        "png gray alpha": encode(rgba.convert("LA"), "PNG"),
        "png rotated": encode(rgb, "PNG", exif=rotated(6)),
        "png animated": encode(rgb, "PNG", **frames()),
        "png interlaced": _interlaced_png(),
        "webp": encode(rgb, "WEBP"),
        "webp lossless": encode(rgb, "WEBP", lossless=True),
        "webp alpha": encode(rgba, "WEBP"),
        "webp rotated": encode(rgb, "WEBP", exif=rotated(8)),
        "webp animated": encode(rgb, "WEBP", **frames()),
        "gif": encode(palette, "GIF"),
        "gif animated": encode(rgb, "GIF", **frames()),
        "bmp": encode(rgb, "BMP"),
        "bmp palette": encode(palette, "BMP"),
        "tiff": encode(rgb, "TIFF"),
        "tiff lzw": encode(rgb, "TIFF", compression="tiff_lzw"),
        "tiff deflate": encode(rgba, "TIFF", compression="tiff_adobe_deflate"),
        "tiff jpeg": encode(rgb, "TIFF", compression="jpeg"),
        "tiff group 4": encode(bits, "TIFF", compression="group4"),
        "tiff pages": encode(rgb, "TIFF", **frames()),
        "tiff 16 bit": encode(deep, "TIFF"),
        "tiff cmyk": encode(rgb.convert("CMYK"), "TIFF"),
        "tiff float": encode(Image.fromarray(pixels[:, :, 0].astype(np.float32)), "TIFF"),
        "ppm": encode(rgb, "PPM"),
        "pgm": encode(gray, "PPM"),
        "pbm": encode(bits, "PPM"),
        "ppm text": b"P3 3 2 255\n" + b"1 2 3 " * 6,
        "ico": encode(rgb, "ICO"),
        "eps": encode(rgb, "EPS"),
        "pcx": encode(rgb, "PCX"),
        "tga": encode(rgb, "TGA"),
    }
    for orientation in range(2, 9):
        result[f"jpeg rotated {orientation}"] = encode(rgb, "JPEG", exif=rotated(orientation))
        result[f"tiff rotated {orientation}"] = encode(rgb, "TIFF", exif=rotated(orientation))
    if features.check("jpg_2000"):
        result["jpeg2000"] = encode(rgb, "JPEG2000")
    if features.check("avif"):
        result["avif"] = encode(rgb, "AVIF")
    return result


def _interlaced_png() -> bytes:
    """Return a PNG of 8 x 8 gray pixels in the seven passes of Adam7."""
    passes = ((1, 1), (1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (4, 8))  # rows and columns
    rows = b"".join(b"\0" + bytes(range(columns)) for count, columns in passes for _ in range(count))
    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 1)
    return _PNG + b"".join(map(_chunk, (b"IHDR", b"IDAT", b"IEND"), (header, zlib.compress(rows), b"")))


_PNG = b"\x89PNG\r\n\x1a\n"


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def with_checksums(content: bytes) -> bytes:
    """Return a PNG with the checksums of its chunks, so that changes reach the decoder."""
    result, offset = content[:8], 8
    while offset + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, offset)
        data = content[offset + 8 : offset + 8 + length]
        result += content[offset : offset + 4] + _chunk(content[offset + 4 : offset + 8], data)[4:]
        offset += 12 + length
    return result


def case(random: Random, folder: Path) -> str:
    """Read a damaged image by every reader."""
    contents = list(encodings().values())
    content = mutated(random.choice(contents), contents, random)
    if content.startswith(_PNG) and random.random() < 0.8:
        content = with_checksums(content)
    return problem_of(content, folder, random)


def problem_of(content: bytes, folder: Path, random: Random) -> str:
    """Return the first problem of a file's readers; empty if there is none."""
    path = folder / "damaged.img"
    path.write_bytes(content)
    name, channels = str(path), random.choice([1, 3])
    image, problem = failure_of(lambda: decode_bytes(content, name, channels), name)
    size, other = failure_of(lambda: read_size(path), name)
    problem = problem or other
    if image is not None:
        if image.dtype != torch.uint8 or image.shape[0] != channels or not image.numel():
            return f"decoded as {image.dtype}, {tuple(image.shape)}"
        if size is not None and size != tuple(image.shape[1:]):
            return f"the size in the header is {size}, the decoded image has {tuple(image.shape[1:])}"
    _, other = failure_of(lambda: read_map(bytes(path)), name)
    problem = problem or other or _problem_of_crop(EncodedImage(content, name, channels), image, random)
    try:
        check_image(Upload("upload.img", content), Limits())
    except RequestError as error:
        if error.status not in (413, 415, 422) or "upload.img" not in str(error):
            problem = problem or f"serve answers {error.status}: {error}"
    return problem


def _problem_of_crop(encoded: EncodedImage, image: Any, random: Random) -> str:
    size, problem = failure_of(lambda: encoded.size, encoded.name)
    if size is None or problem:
        return problem
    if image is not None and size != tuple(image.shape[1:]):
        return f"the size for crops is {size}, the decoded image has {tuple(image.shape[1:])}"
    top, left = (random.randrange(side) for side in size)
    height, width = random.randint(1, size[0] - top), random.randint(1, size[1] - left)
    target = (random.randint(1, 16), random.randint(1, 16))
    crop = ResizedCrop(encoded, Box(top, left, height, width), target, "bilinear")
    pixels, problem = failure_of(crop.decode, encoded.name)
    return problem or ("" if pixels is None or pixels.shape == crop.shape else f"a crop of {tuple(pixels.shape)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main("tests.faults.fuzz_images", case)
