"""Drawing images with any number of channels."""

import numpy as np
import pytest
import torch

from opabinia.visualization.bands import select_bands
from opabinia.visualization.drawing import to_pil


def test_chosen_bands_are_stretched_between_percentiles_each_by_itself() -> None:
    image = torch.stack([torch.linspace(0, high, 10_000).view(100, 100) for high in (0.01, 0.5, 1.0, 0.2, 0.1)])
    image[4, 0, 0] = 1.0  # an outlier
    drawn = select_bands(image, [5, 2, 1])
    assert drawn.dtype == torch.uint8 and drawn.shape == (3, 100, 100)
    for channel in drawn:
        assert channel[50].float().mean() == pytest.approx(127, abs=3)
        assert (channel == 0).float().mean() == pytest.approx(0.02, abs=0.003)
        assert (channel == 255).float().mean() == pytest.approx(0.02, abs=0.003)


def test_by_default_the_first_channels_are_drawn() -> None:
    image = torch.rand(5, 20, 20, generator=torch.Generator().manual_seed(0))
    expected = select_bands(image, [1, 2, 3]).permute(1, 2, 0).numpy()
    assert (np.asarray(to_pil(image)) == expected).all()
    assert to_pil(image[:2]).getpixel((0, 0)) == tuple(3 * [int(select_bands(image[:1], [1])[0, 0, 0])])


def test_gray_and_color_images_are_drawn_as_they_are() -> None:
    image = torch.full((3, 4, 4), 17, dtype=torch.uint8)
    assert to_pil(image).getpixel((0, 0)) == (17, 17, 17)


@pytest.mark.parametrize("bands", [[0, 1, 2], [6]])
def test_a_band_that_there_is_not_is_an_error(bands: list[int]) -> None:
    with pytest.raises(ValueError, match=r"there is no band \d: the images have 5"):
        select_bands(torch.rand(5, 4, 4), bands)


def test_uniform_images_do_not_divide_by_zero() -> None:
    assert (select_bands(torch.full((4, 3, 3), 7, dtype=torch.uint8)) == 0).all()
