import io
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from opabinia.data.decoding.images import _decode_any, _decode_by_torchvision, decode_bytes, from_pil, read_image

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
COLOUR = Image.fromarray(PIXELS)


def write(path: Path, image: Image.Image, kind: str, **options: object) -> Path:
    content = io.BytesIO()
    image.save(content, kind, **options)
    path.write_bytes(content.getvalue())
    return path


MODES = {
    "JPEG": ["RGB", "L", "1", "CMYK"],
    "PNG": ["RGB", "L", "RGBA", "P", "1", "LA"],
    "WEBP": ["RGB", "L", "RGBA", "P", "1", "LA"],
    "GIF": ["RGB", "L", "RGBA", "P", "1"],
    "BMP": ["RGB", "L", "RGBA", "P", "1"],
    "TIFF": ["RGB", "L", "RGBA", "P", "1", "LA", "CMYK"],
    "PPM": ["RGB", "L", "1"],
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in MODES.items() for mode in modes])
def test_every_kind_of_image(tmp_path: Path, kind: str, mode: str, channels: Literal[1, 3]) -> None:
    path = write(tmp_path / "name.says.nothing", COLOUR.convert(mode), kind)
    image = read_image(path, channels)
    assert (image.shape, image.dtype) == ((channels, 6, 9), torch.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_pixels(tmp_path: Path, kind: str) -> None:
    image = read_image(write(tmp_path / "a", COLOUR, kind))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), PIXELS)


def test_both_decoders_see_the_same_photograph(tmp_path: Path) -> None:
    content = write(tmp_path / "a.jpg", COLOUR.resize((90, 61)), "JPEG", quality=80).read_bytes()
    assert torch.equal(_decode_by_torchvision(content, 3), _decode_any(content, 3))


def test_both_decoders_see_the_same_webp(tmp_path: Path) -> None:
    for mode, lossless in (("RGB", False), ("L", False), ("RGB", True), ("RGBA", True)):
        image = COLOUR.resize((91, 61)).convert(mode)
        if mode == "RGBA":
            image.putalpha(image.getchannel("R"))
        content = write(tmp_path / "a", image, "WEBP", quality=80, lossless=lossless).read_bytes()
        assert torch.equal(decode_bytes(content, "a"), _decode_any(content, 3))
        assert torch.equal(_decode_by_torchvision(content, 3), _decode_any(content, 3))
        with pytest.raises(ValueError, match=r"^a cannot be decoded: WebP\w+"):
            decode_bytes(content[:40], "a")


def test_an_animated_webp(tmp_path: Path) -> None:
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    image = read_image(write(tmp_path / "a", red, "WEBP", lossless=True, save_all=True, append_images=[blue]))
    assert image[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_upright(tmp_path: Path, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    image = read_image(write(tmp_path / "a", COLOUR, kind, exif=exif))
    assert image.shape == (3, 9, 6)


def test_the_first_image_of_a_video(tmp_path: Path) -> None:
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    image = read_image(write(tmp_path / "a.gif", red, "GIF", save_all=True, append_images=[blue]))
    assert image[:, 0, 0].tolist() == [255, 0, 0]


def test_sixteen_bits(tmp_path: Path) -> None:
    deep = Image.fromarray(np.array([[0, 255, 256, 65535]], dtype=np.uint16))
    assert read_image(write(tmp_path / "a.png", deep, "PNG"), 1).tolist() == [[[0, 0, 1, 255]]]
    assert read_image(write(tmp_path / "a.tif", deep, "TIFF"), 3).tolist() == [[[0, 0, 1, 255]]] * 3
    wide = Image.fromarray(np.array([[0, 65536]], dtype=np.int32))
    with pytest.raises(ValueError, match=r"b\.tif cannot be decoded: its pixels have more than 16 bits"):
        read_image(write(tmp_path / "b.tif", wide, "TIFF"))
    real = Image.fromarray(np.array([[0, 0.5]], dtype=np.float32))
    with pytest.raises(ValueError, match=r"c\.tif cannot be decoded: its pixels are floating point numbers"):
        read_image(write(tmp_path / "c.tif", real, "TIFF"))


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_inks_have_the_right_colours(tmp_path: Path, kind: str) -> None:
    """CMYK: no ink is white, full cyan takes the red away. Adobe's JPEGs hold it inverted."""
    colours = Image.new("RGB", (32, 16), "white")
    colours.paste((0, 200, 220), (0, 0, 16, 16))
    path = write(tmp_path / "a", colours.convert("CMYK"), kind, **({"quality": 95} if kind == "JPEG" else {}))
    image = read_image(path).int()
    with Image.open(path) as opened:
        expected = torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1).int()
    assert (image - expected).abs().max() <= 3
    for column, colour in ((8, [0, 200, 220]), (24, [255, 255, 255])):
        assert image[:, 8, column].tolist() == pytest.approx(colour, abs=12)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_dropped(tmp_path: Path, kind: str) -> None:
    half = COLOUR.convert("RGBA")
    half.putalpha(40)
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    image = read_image(write(tmp_path / "a", half, kind, **options))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), PIXELS)


def test_a_palette_with_transparency(tmp_path: Path) -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putdata([0, 1])
    image = read_image(write(tmp_path / "a.png", palette, "PNG", transparency=0))
    assert image[:, 0].T.tolist() == [[10, 20, 30], [200, 100, 50]]


def test_gray_jpegs_become_color(tmp_path: Path) -> None:
    image = read_image(write(tmp_path / "a.jpg", COLOUR.convert("L"), "JPEG", quality=95))
    assert torch.equal(image[0], image[1]) and torch.equal(image[1], image[2])


def expected(path: Path, channels: int) -> torch.Tensor:
    """As PIL converts it."""
    with Image.open(path) as opened:
        pixels = np.array(ImageOps.exif_transpose(opened).convert({1: "L", 3: "RGB"}[channels]))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_every_lossless_mode_has_the_right_pixels(
    tmp_path: Path, kind: str, mode: str, channels: Literal[1, 3]
) -> None:
    path = write(tmp_path / "a", COLOUR.convert(mode), kind)
    assert torch.equal(read_image(path, channels), expected(path, channels))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
@pytest.mark.parametrize("turned", range(1, 9))
def test_every_orientation(tmp_path: Path, kind: str, turned: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turned
    path = write(tmp_path / "a", COLOUR, kind, exif=exif)
    assert torch.equal(read_image(path), expected(path, 3))


@pytest.mark.parametrize("kept", [b"Adobe", b""], ids=["marked by Adobe", "unmarked"])
def test_jpegs_of_inks(tmp_path: Path, kept: bytes) -> None:
    """With Adobe's marker (0xFFEE, 14 bytes) and without."""
    path = write(tmp_path / "a.jpg", COLOUR.convert("CMYK").resize((90, 60)), "JPEG", quality=95)
    content = path.read_bytes()
    start = content.index(b"\xff\xee")
    assert content[start + 4 : start + 9] == b"Adobe"
    if not kept:
        path.write_bytes(content[:start] + content[start + 16 :])
    assert (read_image(path).int() - expected(path, 3).int()).abs().max() <= 3


def test_sixteen_bits_in_the_other_byte_order(tmp_path: Path) -> None:
    deep = np.array([[0, 255, 256, 65535]], dtype=">u2")
    path = write(tmp_path / "a.tif", Image.frombytes("I;16B", (4, 1), deep.tobytes()), "TIFF")
    assert read_image(path, 1).tolist() == [[[0, 0, 1, 255]]]


def test_sixteen_bits_of_color(tmp_path: Path) -> None:
    header, rows = (
        struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0),
        b"\0" + struct.pack(">6H", 0, 255, 256, 511, 512, 65535),
    )
    (tmp_path / "a.png").write_bytes(png(header, zlib.compress(rows)))
    assert read_image(tmp_path / "a.png").tolist() == [[[0, 1]], [[0, 2]], [[1, 255]]]


def test_partly_transparent_palettes_are_converted_in_silence() -> None:
    palette = COLOUR.quantize(16)
    palette.info["transparency"] = bytes(range(16))
    assert torch.equal(from_pil(palette), from_pil(COLOUR.quantize(16)))
    assert "transparency" in palette.info, "it is the caller's"


def png(header: bytes, pixels: bytes) -> bytes:
    """A PNG file whose checksums are right, whatever it holds."""
    chunks = [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


ROWS = b"".join(b"\0" + bytes(range(27)) for _ in range(6))
PACKED = zlib.compress(ROWS)


@pytest.mark.parametrize(
    "pixels",
    [PACKED[:10] + b"\xff\xff" + PACKED[12:], zlib.compress(ROWS[:60]), PACKED[:-8], b""],
    ids=["damaged", "too few", "cut", "none"],
)
def test_a_damaged_png_does_not_end_the_process(tmp_path: Path, pixels: bytes) -> None:
    """As torchvision's decoder does, with a segmentation fault."""
    header = struct.pack(">IIBBBBB", 9, 6, 8, 2, 0, 0, 0)
    (tmp_path / "a.png").write_bytes(png(header, PACKED))
    assert read_image(tmp_path / "a.png").shape == (3, 6, 9)
    (tmp_path / "a.png").write_bytes(png(header, pixels))
    with pytest.raises(ValueError, match=r"a\.png cannot be decoded"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("content", [b"P6 9 6 2x5\n", b"P6 9 6", b"P6 9 6 255\n\0"])
def test_whatever_a_decoder_says_the_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.ppm").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.ppm cannot be decoded"):
        read_image(tmp_path / "a.ppm")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_broken_files_are_named(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "broken.jpg", COLOUR.resize((90, 60)), kind)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"broken\.jpg cannot be decoded: [^\n]*$") as caught:
        read_image(path)
    assert ".cpp" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xd8\xff", b"\x89PNG"])
def test_no_images(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.jpg cannot be decoded"):
        read_image(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.jpg"):
        read_image(tmp_path / "a.jpg")
