"""Images with any number of channels and any type of value: arrays of NumPy, TIFF and PNG."""

import importlib.util
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from opabinia.contracts import Channels, Pixels
from opabinia.data.decoding.images import decode_bytes, file_channels, read_image, read_size
from opabinia.data.decoding.values import scale_values
from opabinia.inference.export import predict_script

HEIGHT, WIDTH = 12, 16


def ramp(channels: int, dtype: Any = np.uint16) -> NDArray[Any]:
    """Different values, H x W x C."""
    count = HEIGHT * WIDTH * channels
    return (np.arange(count).reshape(HEIGHT, WIDTH, channels) * (50 if dtype == np.uint16 else 1)).astype(dtype)


def npy(array: NDArray[Any]) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_16_bits_become_floating_point_numbers_in_0_to_1_whatever_the_order_of_axes() -> None:
    values = ramp(5)
    expected = torch.from_numpy(np.moveaxis(values, 2, 0).astype(np.float32) / np.float32(65535))
    for array in (values, np.moveaxis(values, 2, 0), np.asfortranarray(values), values.astype(">u2")):
        image = decode_bytes(npy(array), "x.npy", 5)
        assert image.dtype == torch.float32 and image.is_contiguous()
        assert torch.equal(image, expected)


def test_8_bits_stay_as_they_are_unless_there_is_a_maximum() -> None:
    values = ramp(5, np.uint8)
    assert torch.equal(decode_bytes(npy(values), "", 5), torch.from_numpy(values).permute(2, 0, 1))
    scaled = decode_bytes(npy(values), "", Pixels(count=5, max_value=100))
    assert scaled.dtype == torch.float32
    assert scaled[0, 0, 1] == np.float32(5 / 100) and scaled.max() == 1  # larger ones are clipped


def test_values_are_clipped_to_the_range_that_the_config_gives() -> None:
    thermal = np.array([[-20.0, 0.0], [40.0, 90.0]])
    image = scale_values(thermal, Pixels(count=1, min_value=-10, max_value=40))
    assert torch.allclose(image, torch.tensor([[[0.0, 0.2], [1.0, 1.0]]]))


def test_pixels_without_data_get_the_fill_value() -> None:
    heights = np.array([[np.nan, 10.0], [-9999.0, 20.0]], dtype=np.float32)
    image = scale_values(heights, Pixels(count=1, max_value=20, no_data=-9999, fill=5))
    assert image.tolist() == [[[0.25, 0.5], [0.25, 1.0]]]


@pytest.mark.parametrize(
    ("array", "channels", "message"),
    [
        (np.array([[np.nan, 0.5]]), Pixels(count=1), "1 values are NaN or infinite; channels.fill"),
        (np.array([[0.5, 3.0]]), Pixels(count=1), "range from 0.5 to 3; channels.max_value"),
        (np.array([[-1.0, 0.5]]), Pixels(count=1), "range from -1 to 0.5; channels.max_value"),
        (ramp(2, np.int16), 2, "int16, whose range is unknown; channels.max_value"),
        (ramp(4), 5, r"its shape is 12 x 16 x 4; channels: 5 expects H x W x 5, or 5 x H x W"),
        (np.array(1.0), 5, "its shape is a single number"),
        (ramp(2).astype(complex), 2, "its values are complex128"),
        (np.zeros((0, 4, 2), np.uint16), 2, "it has no pixels"),
        (np.array([[None]]), 2, "cannot be decoded"),
        (ramp(3), 3, "an array of uint16, 12 x 16 x 3; channels: 1 and 3 take uint8"),
    ],
)
def test_errors_begin_with_the_name_of_the_file(array: NDArray[Any], channels: Channels, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        decode_bytes(npy(array), "folder/x.npy", channels)
    assert str(error.value).startswith("folder/x.npy cannot be decoded: ")


@pytest.mark.parametrize("cut", [3, 20, 200])
def test_a_truncated_array_is_an_error(cut: int) -> None:
    with pytest.raises(ValueError, match=r"^x.npy cannot be decoded"):
        decode_bytes(npy(ramp(5))[:-cut], "x.npy", 5)


def test_a_header_that_promises_more_than_the_file_has_allocates_nothing() -> None:
    content = npy(ramp(5)).replace(b"(12, 16, 5)", b"(9999999, 5)"[:11])
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode_bytes(content, "x.npy", 5)


def test_an_npz_has_one_array(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "one.npz", image=ramp(5))
    np.savez(tmp_path / "two.npz", image=ramp(5), mask=ramp(1))
    assert torch.equal(read_image(tmp_path / "one.npz", 5), decode_bytes(npy(ramp(5)), "", 5))
    assert read_size(tmp_path / "one.npz") == (HEIGHT, WIDTH)
    with pytest.raises(ValueError, match="one array, this one has 2"):
        read_image(tmp_path / "two.npz", 5)


def test_sizes_of_arrays_are_read_from_the_header(tmp_path: Path) -> None:
    for number, array in enumerate((ramp(5), np.moveaxis(ramp(3), 2, 0), ramp(1)[:, :, 0])):
        np.save(tmp_path / f"{number}.npy", array)
        assert read_size(tmp_path / f"{number}.npy") == (HEIGHT, WIDTH)


def test_arrays_of_8_bits_are_color_and_gray_images_too() -> None:
    values = ramp(3, np.uint8)
    file = BytesIO()
    Image.fromarray(values).save(file, "PNG")
    for channels in (1, 3):
        assert torch.equal(decode_bytes(npy(values), "", channels), decode_bytes(file.getvalue(), "", channels))


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_gray_files_of_16_bits_keep_them_only_if_the_config_says_so(form: str) -> None:
    values, file = ramp(1)[:, :, 0], BytesIO()
    Image.fromarray(values).save(file, form)
    full = decode_bytes(file.getvalue(), "", Pixels(count=1))
    assert torch.equal(full[0], torch.from_numpy(values.astype(np.float32) / np.float32(65535)))
    reduced = decode_bytes(file.getvalue(), "", 1)
    assert torch.equal(reduced[0], torch.from_numpy((values >> 8).astype(np.uint8)))


def test_color_pngs_of_16_bits_are_refused_where_they_would_be_reduced() -> None:
    file = BytesIO()
    Image.fromarray(ramp(3, np.uint8)).save(file, "PNG")
    content = bytearray(file.getvalue())
    content[24] = 16  # bits of a channel
    with pytest.raises(ValueError, match="PNGs with 16 bits and several channels"):
        decode_bytes(bytes(content), "x.png", Pixels(count=3, max_value=65535))


@pytest.mark.parametrize("planar", ["contig", "separate"])
def test_tiffs_of_many_channels_are_read_by_tifffile(planar: str, tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile is absent: pip install 'opabinia[tiff]'")
    values = ramp(5)
    pixels = values if planar == "contig" else np.moveaxis(values, 2, 0)
    tifffile.imwrite(tmp_path / "x.tif", pixels, photometric="minisblack", planarconfig=planar)
    assert torch.equal(read_image(tmp_path / "x.tif", 5), decode_bytes(npy(values), "", 5))
    assert read_size(tmp_path / "x.tif") == (HEIGHT, WIDTH)
    assert file_channels((tmp_path / "x.tif").read_bytes()) == 5


def tiff_header(samples: int) -> bytes:
    """The header of a TIFF with 16-bit channels that PIL has no mode for."""
    entries = [(256, 1), (257, 1), (258, 16), (262, 1), (277, samples)]
    body = b"".join(tag.to_bytes(2, "little") + b"\3\0\1\0\0\0" + value.to_bytes(4, "little") for tag, value in entries)
    return b"II*\0\x08\0\0\0" + len(entries).to_bytes(2, "little") + body + b"\0\0\0\0"


def test_without_tifffile_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "opabinia.data.decoding.values.find_spec", lambda name: None if name == "tifffile" else find(name)
    )
    with pytest.raises(ValueError, match=r"^x.tif cannot be decoded: .*pip install 'opabinia\[tiff\]'"):
        decode_bytes(tiff_header(5), "x.tif", 5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_value": 0.0}, "max_value: 0 is not above"),
        ({"min_value": 1.0}, "min_value: give max_value"),
        ({"no_data": 0.0}, "no_data: give fill"),
    ],
)
def test_ranges_are_checked(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pixels(count=1, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("array", "pixels"),
    [
        (ramp(5), Pixels(count=5)),
        (ramp(5, np.uint8), Pixels(count=5)),
        (ramp(2, np.int16), Pixels(count=2, min_value=-3, max_value=40)),
        (np.array([[np.nan, -1.0, 3.0]]), Pixels(count=1, max_value=2, no_data=-1, fill=0.5)),
    ],
)
def test_the_prediction_script_reads_what_training_reads(array: NDArray[Any], pixels: Pixels, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    values = predict_script.read_values(str(tmp_path / "x.npy"))
    actual = predict_script.scale_values(values, vars(pixels), "x.npy")
    expected = read_image(tmp_path / "x.npy", pixels).numpy()
    assert actual.dtype == expected.dtype
    assert (actual == expected).all()
