import ast
import io
import struct
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin

import opabinia
from opabinia.data.decoding.images import (
    FORMATS,
    EncodedImage,
    _decode_any,
    _decode_by_torchvision,
    decode_bytes,
    from_pil,
    read_image,
    read_size,
)
from opabinia.data.sources.segmentation_base import MapError, read_map

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
COLOR_IMAGE = Image.fromarray(PIXELS)
TURNED = Image.Exif()
TURNED[0x0112] = 6  # the camera was rotated by 90 degrees


def write(path: Path, image: Image.Image, kind: str, **options: Any) -> Path:
    content = io.BytesIO()
    image.save(content, kind, **options)
    path.write_bytes(content.getvalue())
    return path


def expected(path: Path, channels: int) -> torch.Tensor:
    """Return the pixels converted by PIL."""
    with Image.open(path) as opened:
        pixels = np.array(ImageOps.exif_transpose(opened).convert({1: "L", 3: "RGB"}[channels]))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)


# --- formats, modes and colors ----------------------------------------------------------------------------------------

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
@pytest.mark.parametrize("kind", MODES)
def test_every_format_and_mode(tmp_path: Path, kind: str, channels: Literal[1, 3]) -> None:
    for mode in MODES[kind]:
        path = write(tmp_path / "name.says.nothing", COLOR_IMAGE.convert(mode), kind)
        image = read_image(path, channels)
        assert (image.shape, image.dtype) == ((channels, 6, 9), torch.uint8), mode
        if kind in ("PNG", "TIFF", "BMP") and mode != "CMYK":
            assert torch.equal(image, expected(path, channels)), mode
            assert mode != "RGB" or channels == 1 or np.array_equal(image.permute(1, 2, 0).numpy(), PIXELS)


def test_both_decoders_give_the_same_pixels(tmp_path: Path) -> None:
    for kind, mode, lossless in (
        *(("JPEG", "RGB", False), ("JPEG", "L", False)),
        *(("WEBP", "RGB", False), ("WEBP", "L", False), ("WEBP", "RGB", True), ("WEBP", "RGBA", True)),
    ):
        image = COLOR_IMAGE.resize((91, 61)).convert(mode)
        if mode == "RGBA":
            image.putalpha(image.getchannel("R"))
        content = write(tmp_path / "a", image, kind, quality=80, lossless=lossless).read_bytes()
        assert torch.equal(decode_bytes(content, "a"), _decode_any(content, 3))
        assert torch.equal(_decode_by_torchvision(content, 3), _decode_any(content, 3))


@pytest.mark.parametrize(("kind", "options"), [("WEBP", {"lossless": True}), ("GIF", {})])
def test_an_animation_gives_its_first_frame(tmp_path: Path, kind: str, options: Any) -> None:
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    image = read_image(write(tmp_path / "a", red, kind, save_all=True, append_images=[blue], **options))
    assert image[:, 0, 0].tolist() == [255, 0, 0]


def test_the_upper_8_of_16_bits_are_kept(tmp_path: Path) -> None:
    deep = np.array([[0, 255, 256, 65535]], dtype=np.uint16)
    swapped = Image.frombytes("I;16B", (4, 1), deep.astype(">u2").tobytes())
    for kind, image in (("PNG", Image.fromarray(deep)), ("TIFF", Image.fromarray(deep)), ("TIFF", swapped)):
        path = write(tmp_path / "a", image, kind)
        assert read_image(path, 1).tolist() == [[[0, 0, 1, 255]]] and read_image(path, 3).shape == (3, 1, 4)
    for values, message in (
        (np.array([[0, 65536]], dtype=np.int32), "its pixels have more than 16 bits"),
        (np.array([[0, -1]], dtype=np.int32), "its pixels have more than 16 bits"),
        (np.array([[0, 0.5]], dtype=np.float32), "its pixels are floating point numbers"),
    ):
        with pytest.raises(ValueError, match=rf"b\.tif cannot be decoded: {message}"):
            read_image(write(tmp_path / "b.tif", Image.fromarray(values), "TIFF"))
    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    rows = b"\0" + struct.pack(">6H", 0, 255, 256, 511, 512, 65535)
    (tmp_path / "a.png").write_bytes(png(header, zlib.compress(rows)))
    assert read_image(tmp_path / "a.png").tolist() == [[[0, 1]], [[0, 2]], [[1, 255]]]


@pytest.mark.parametrize("kind", ["JPEG", "unmarked JPEG", "TIFF"])
def test_cmyk_images_have_the_right_colors(tmp_path: Path, kind: str) -> None:
    """No ink is white, full cyan removes red. JPEGs of Adobe are inverted, with its marker (0xFFEE, 14 bytes)."""
    original = Image.new("RGB", (32, 16), "white")
    original.paste((0, 200, 220), (0, 0, 16, 16))
    options = {} if kind == "TIFF" else {"quality": 95}
    path = write(tmp_path / "a", original.convert("CMYK"), kind.split()[-1], **options)
    if kind == "unmarked JPEG":
        content = path.read_bytes()
        start = content.index(b"\xff\xee")
        assert content[start + 4 : start + 9] == b"Adobe"
        path.write_bytes(content[:start] + content[start + 16 :])
    image = read_image(path).int()
    assert (image - expected(path, 3).int()).abs().max() <= 3
    for column, color in ((8, [0, 200, 220]), (24, [255, 255, 255])):
        assert kind == "unmarked JPEG" or image[:, 8, column].tolist() == pytest.approx(color, abs=12)


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {})])
def test_transparency_is_dropped(tmp_path: Path, kind: str, options: Any) -> None:
    transparent = COLOR_IMAGE.convert("RGBA")
    transparent.putalpha(40)
    image = read_image(write(tmp_path / "a", transparent, kind, **options))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), PIXELS)


def test_transparency_of_palettes_is_dropped_without_a_warning(tmp_path: Path) -> None:
    palette = COLOR_IMAGE.quantize(16)
    opaque = from_pil(palette.copy())
    assert torch.equal(read_image(write(tmp_path / "a.png", palette, "PNG", transparency=0)), opaque)
    palette.info["transparency"] = bytes(range(16))
    assert torch.equal(from_pil(palette), opaque)
    assert "transparency" in palette.info, "the caller's image is unchanged"


# --- size and orientation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_every_orientation(tmp_path: Path, kind: str) -> None:
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = write(tmp_path / "a", COLOR_IMAGE, kind, exif=exif)
        image = read_image(path)
        assert torch.equal(image, expected(path, 3))
        assert read_size(path) == ((9, 6) if orientation > 4 else (6, 9)) == tuple(image.shape[1:])


def test_the_size_is_read_without_decoding(tmp_path: Path) -> None:
    path = write(tmp_path / "a", COLOR_IMAGE, "PNG")
    path.write_bytes(path.read_bytes()[:-30])
    assert read_size(path) == (6, 9)
    with pytest.raises(ValueError, match="a cannot be decoded"):
        read_image(path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_orientation_in_xmp(tmp_path: Path, kind: str) -> None:
    """Other formats may have it there; viewers and torchvision ignore that of a JPEG."""
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", xmp.decode())
    options = {"JPEG": {"xmp": xmp}, "TIFF": {"tiffinfo": {700: xmp}}, "PNG": {"pnginfo": info}}
    path = write(tmp_path / "a", COLOR_IMAGE, kind, **options[kind])
    size = (6, 9) if kind == "JPEG" else (9, 6)
    assert read_size(path) == size == tuple(read_image(path).shape[1:])


def test_orientation_of_damaged_exif_data(tmp_path: Path) -> None:
    """torchvision would rotate by a value of any type, in a segment of any name: the header says upright."""
    content = write(tmp_path / "a", COLOR_IMAGE.resize((90, 60)), "JPEG", exif=TURNED).read_bytes()
    assert decode_bytes(content, "a").shape == (3, 90, 60)
    for old, new in ((b"\x01\x12\x00\x03", b"\x01\x12\x00\x63"), (b"Exif", b"Exxf")):
        assert content.count(old) == 1
        (tmp_path / "a").write_bytes(content.replace(old, new))
        encoded = EncodedImage.file(bytes(tmp_path / "a"))
        assert read_image(tmp_path / "a").shape[1:] == read_size(tmp_path / "a") == encoded.size == (60, 90)


def test_maps_are_rotated_as_images_are(tmp_path: Path) -> None:
    for kind in ("PNG", "TIFF"):
        path = write(tmp_path / "a", Image.fromarray(PIXELS[:, :, 0]), kind, exif=TURNED)
        assert np.array_equal(read_map(bytes(path)), read_image(path, 1)[0].numpy())


# --- damaged files ----------------------------------------------------------------------------------------------------


def png(header: bytes, pixels: bytes) -> bytes:
    """Return a PNG file with valid checksums."""
    chunks = [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


ROWS = b"".join(b"\0" + bytes(range(27)) for _ in range(6))
PACKED = zlib.compress(ROWS)
HEADER = struct.pack(">IIBBBBB", 9, 6, 8, 2, 0, 0, 0)


def half(kind: str) -> bytes:
    content = io.BytesIO()
    COLOR_IMAGE.resize((90, 60)).save(content, kind)
    return content.getvalue()[: len(content.getvalue()) // 2]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"<html>", b"\xff\xd8\xff", b"\x89PNG", b"P6 9 6 2x5\n", b"P6 9 6", b"P6 9 6 255\n\0"),
        *(half("JPEG"), half("PNG"), half("WEBP"), half("BMP")),
        # PNGs at which torchvision's decoder would crash with a segmentation fault:
        *(png(HEADER, PACKED[:10] + b"\xff\xff" + PACKED[12:]), png(HEADER, zlib.compress(ROWS[:60]))),
        *(png(HEADER, PACKED[:-8]), png(HEADER, b"")),
    ],
    ids=range(15),
)
def test_damaged_files_are_named_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.jpg"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^[^\n]*broken\.jpg cannot be decoded: [^\n]+$") as error:
        read_image(path)
    assert ".cpp" not in str(error.value) and "<_io" not in str(error.value)


def test_a_png_too_small_for_its_pixels(tmp_path: Path) -> None:
    """PIL returns black rows where there are no data: here 78 megapixels."""
    path = tmp_path / "a.png"
    path.write_bytes(png(HEADER, PACKED))
    assert read_image(path).shape == (3, 6, 9)
    path.write_bytes(png(struct.pack(">IIBBBBB", 26, 3_000_000, 8, 2, 0, 0, 0), PACKED))
    for read in (read_size, read_image):
        message = r"a\.png cannot be decoded: its \d+ bytes cannot hold 26 x 3000000 pixels"
        with pytest.raises(ValueError, match=message):
            read(path)
    rows = zlib.compress(bytes(1001 * 3000), 9)  # the most that zlib compresses
    path.write_bytes(png(struct.pack(">IIBBBBB", 1000, 3000, 8, 0, 0, 0, 0), rows))
    assert read_image(path).shape == (3, 3000, 1000)


def test_any_exception_of_a_plugin_is_an_image_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At strip offsets that are text PIL's plugin raises a TypeError while it decodes."""
    path = write(tmp_path / "a.tif", COLOR_IMAGE, "TIFF")
    content = path.read_bytes()
    assert content.count(b"\x11\x01\x04\0") == 1
    path.write_bytes(content.replace(b"\x11\x01\x04\0", b"\x11\x01\x02\0"))
    with pytest.raises(ValueError, match=r"a\.tif cannot be decoded: 'str' object cannot be"):
        read_image(path)
    with pytest.raises(MapError, match=r"a\.tif cannot be decoded: 'str' object cannot be"):
        read_map(bytes(path))
    path.write_bytes(content[:8])  # which tifffile, asked for what PIL does not know, cannot read either
    for error in (TypeError("an\nerror"), KeyError(), AssertionError(), MemoryError(), OverflowError("big")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(TiffImagePlugin.TiffImageFile, "_open", fail)
            for read in (read_size, read_image):
                with pytest.raises(ValueError, match=r"a\.tif cannot be decoded: [^\n]+$"):
                    read(path)


def test_other_formats_are_refused_by_content(tmp_path: Path) -> None:
    """PIL would run Ghostscript on EPS."""
    for kind in ("EPS", "ICO", "PCX", "TGA"):
        path = write(tmp_path / "x.png", COLOR_IMAGE, kind)
        encoded = EncodedImage.file(bytes(path))
        for read in (lambda: read_image(path), lambda: read_size(path), lambda: read_map(bytes(path)), encoded.decode):  # noqa: B023
            with pytest.raises(ValueError, match=r"x\.png cannot be decoded: it is no image \(JPEG, PNG, "):
                read()


def test_no_other_code_opens_images_of_any_format() -> None:
    package = Path(opabinia.__file__).parent
    calls = [
        (path.name, call)
        for path in sorted(package.rglob("*.py"))
        if "Image.open" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Image.open"
    ]
    assert {name for name, _ in calls} == {"images.py", "predict_script.py"}
    assert all([keyword.arg for keyword in call.keywords] == ["formats"] for _, call in calls)
    assert f"formats = {FORMATS}".replace("'", '"') in (package / "inference/export/predict_script.py").read_text()


def test_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.jpg"):
        read_image(tmp_path / "a.jpg")
