import ast
import io
import struct
import zlib
from pathlib import Path
from typing import Literal

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
def test_every_format_and_mode(tmp_path: Path, kind: str, mode: str, channels: Literal[1, 3]) -> None:
    path = write(tmp_path / "name.says.nothing", COLOR_IMAGE.convert(mode), kind)
    image = read_image(path, channels)
    assert (image.shape, image.dtype) == ((channels, 6, 9), torch.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_pixels(tmp_path: Path, kind: str) -> None:
    image = read_image(write(tmp_path / "a", COLOR_IMAGE, kind))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), PIXELS)


def test_both_decoders_give_the_same_jpeg_pixels(tmp_path: Path) -> None:
    content = write(tmp_path / "a.jpg", COLOR_IMAGE.resize((90, 61)), "JPEG", quality=80).read_bytes()
    assert torch.equal(_decode_by_torchvision(content, 3), _decode_any(content, 3))


def test_both_decoders_give_the_same_webp_pixels(tmp_path: Path) -> None:
    for mode, lossless in (("RGB", False), ("L", False), ("RGB", True), ("RGBA", True)):
        image = COLOR_IMAGE.resize((91, 61)).convert(mode)
        if mode == "RGBA":
            image.putalpha(image.getchannel("R"))
        content = write(tmp_path / "a", image, "WEBP", quality=80, lossless=lossless).read_bytes()
        assert torch.equal(decode_bytes(content, "a"), _decode_any(content, 3))
        assert torch.equal(_decode_by_torchvision(content, 3), _decode_any(content, 3))
        with pytest.raises(ValueError, match=r"^a cannot be decoded: WebP\w+"):
            decode_bytes(content[:40], "a")


def test_an_animated_webp_gives_its_first_frame(tmp_path: Path) -> None:
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    image = read_image(write(tmp_path / "a", red, "WEBP", lossless=True, save_all=True, append_images=[blue]))
    assert image[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_images_are_rotated_upright(tmp_path: Path, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was rotated by 90 degrees
    image = read_image(write(tmp_path / "a", COLOR_IMAGE, kind, exif=exif))
    assert image.shape == (3, 9, 6)


def test_an_animated_gif_gives_its_first_frame(tmp_path: Path) -> None:
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
def test_cmyk_images_have_the_right_colors(tmp_path: Path, kind: str) -> None:
    """No ink is white, full cyan removes red. JPEGs of Adobe are inverted."""
    original = Image.new("RGB", (32, 16), "white")
    original.paste((0, 200, 220), (0, 0, 16, 16))
    path = write(tmp_path / "a", original.convert("CMYK"), kind, **({"quality": 95} if kind == "JPEG" else {}))
    image = read_image(path).int()
    with Image.open(path) as opened:
        expected = torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1).int()
    assert (image - expected).abs().max() <= 3
    for column, color in ((8, [0, 200, 220]), (24, [255, 255, 255])):
        assert image[:, 8, column].tolist() == pytest.approx(color, abs=12)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_dropped(tmp_path: Path, kind: str) -> None:
    transparent = COLOR_IMAGE.convert("RGBA")
    transparent.putalpha(40)
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    image = read_image(write(tmp_path / "a", transparent, kind, **options))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), PIXELS)


def test_a_palette_with_transparency(tmp_path: Path) -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putdata([0, 1])
    image = read_image(write(tmp_path / "a.png", palette, "PNG", transparency=0))
    assert image[:, 0].T.tolist() == [[10, 20, 30], [200, 100, 50]]


def test_gray_jpegs_become_color(tmp_path: Path) -> None:
    image = read_image(write(tmp_path / "a.jpg", COLOR_IMAGE.convert("L"), "JPEG", quality=95))
    assert torch.equal(image[0], image[1]) and torch.equal(image[1], image[2])


def expected(path: Path, channels: int) -> torch.Tensor:
    """Return the pixels converted by PIL."""
    with Image.open(path) as opened:
        pixels = np.array(ImageOps.exif_transpose(opened).convert({1: "L", 3: "RGB"}[channels]))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_every_lossless_mode_has_the_right_pixels(
    tmp_path: Path, kind: str, mode: str, channels: Literal[1, 3]
) -> None:
    path = write(tmp_path / "a", COLOR_IMAGE.convert(mode), kind)
    assert torch.equal(read_image(path, channels), expected(path, channels))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation(tmp_path: Path, kind: str, orientation: int) -> None:
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
    exif = Image.Exif()
    exif[0x0112] = 6
    content = write(tmp_path / "a", COLOR_IMAGE.resize((90, 60)), "JPEG", exif=exif).read_bytes()
    assert decode_bytes(content, "a").shape == (3, 90, 60)
    for old, new in ((b"\x01\x12\x00\x03", b"\x01\x12\x00\x63"), (b"Exif", b"Exxf")):
        assert content.count(old) == 1
        (tmp_path / "a").write_bytes(content.replace(old, new))
        encoded = EncodedImage.file(bytes(tmp_path / "a"))
        assert read_image(tmp_path / "a").shape[1:] == read_size(tmp_path / "a") == encoded.size == (60, 90)


def test_a_png_too_small_for_its_pixels(tmp_path: Path) -> None:
    """PIL returns black rows where there are no data: here 78 megapixels."""
    (tmp_path / "a.png").write_bytes(png(struct.pack(">IIBBBBB", 26, 3_000_000, 8, 2, 0, 0, 0), PACKED))
    for read in (read_size, read_image):
        with pytest.raises(
            ValueError, match=r"a\.png cannot be decoded: its \d+ bytes cannot hold 26 x 3000000 pixels"
        ):
            read(tmp_path / "a.png")
    rows = zlib.compress(bytes(1001 * 3000), 9)  # the most that zlib compresses
    (tmp_path / "a.png").write_bytes(png(struct.pack(">IIBBBBB", 1000, 3000, 8, 0, 0, 0, 0), rows))
    assert read_image(tmp_path / "a.png").shape == (3, 3000, 1000)


def test_maps_are_rotated_as_images_are(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("PNG", "TIFF"):
        path = write(tmp_path / "a", Image.fromarray(PIXELS[:, :, 0]), kind, exif=exif)
        assert np.array_equal(read_map(bytes(path)), read_image(path, 1)[0].numpy())


@pytest.mark.parametrize("marker", [b"Adobe", b""], ids=["marked by Adobe", "unmarked"])
def test_cmyk_jpegs(tmp_path: Path, marker: bytes) -> None:
    """With Adobe's marker (0xFFEE, 14 bytes) and without."""
    path = write(tmp_path / "a.jpg", COLOR_IMAGE.convert("CMYK").resize((90, 60)), "JPEG", quality=95)
    content = path.read_bytes()
    start = content.index(b"\xff\xee")
    assert content[start + 4 : start + 9] == b"Adobe"
    if not marker:
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


def test_partly_transparent_palettes_are_converted_without_a_warning() -> None:
    palette = COLOR_IMAGE.quantize(16)
    palette.info["transparency"] = bytes(range(16))
    assert torch.equal(from_pil(palette), from_pil(COLOR_IMAGE.quantize(16)))
    assert "transparency" in palette.info, "the caller's image is unchanged"


def png(header: bytes, pixels: bytes) -> bytes:
    """Return a PNG file with valid checksums."""
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
    """torchvision's decoder would crash with a segmentation fault."""
    header = struct.pack(">IIBBBBB", 9, 6, 8, 2, 0, 0, 0)
    (tmp_path / "a.png").write_bytes(png(header, PACKED))
    assert read_image(tmp_path / "a.png").shape == (3, 6, 9)
    (tmp_path / "a.png").write_bytes(png(header, pixels))
    with pytest.raises(ValueError, match=r"a\.png cannot be decoded"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("content", [b"P6 9 6 2x5\n", b"P6 9 6", b"P6 9 6 255\n\0"])
def test_errors_of_any_decoder_name_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.ppm").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.ppm cannot be decoded"):
        read_image(tmp_path / "a.ppm")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_errors_of_truncated_files_name_them(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "broken.jpg", COLOR_IMAGE.resize((90, 60)), kind)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"broken\.jpg cannot be decoded: [^\n]*$") as error:
        read_image(path)
    assert ".cpp" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff\xd8\xff", b"\x89PNG"])
def test_files_that_are_no_images_raise(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.jpg cannot be decoded"):
        read_image(path)


def damaged_tiff(tmp_path: Path) -> Path:
    """Write a TIFF whose strip offsets are text, at which PIL's plugin raises a TypeError while it decodes."""
    path = write(tmp_path / "a.tif", COLOR_IMAGE, "TIFF")
    content = path.read_bytes()
    assert content.count(b"\x11\x01\x04\0") == 1
    path.write_bytes(content.replace(b"\x11\x01\x04\0", b"\x11\x01\x02\0"))
    return path


def test_any_exception_of_a_plugin_is_an_image_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = damaged_tiff(tmp_path)
    with pytest.raises(ValueError, match=r"a\.tif cannot be decoded: 'str' object cannot be"):
        read_image(path)
    with pytest.raises(MapError, match=r"a\.tif cannot be decoded: 'str' object cannot be"):
        read_map(bytes(path))
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
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Image.open"
    ]
    assert {name for name, _ in calls} == {"images.py", "predict_script.py"}
    assert all([keyword.arg for keyword in call.keywords] == ["formats"] for _, call in calls)
    assert f"formats = {FORMATS}".replace("'", '"') in (package / "inference/export/predict_script.py").read_text()


def test_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.jpg"):
        read_image(tmp_path / "a.jpg")
