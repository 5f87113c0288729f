import pytest
import torch

from opabinia.models.layers import BNNeck, Normalize

PIXELS = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(2, 3, 4, 3)
MEAN, STD = [0.5, 0.2, 0.0], [0.5, 0.1, 2.0]


def test_normalized_values() -> None:
    normalized = Normalize(MEAN, STD, 3)(PIXELS)
    assert (normalized.shape, normalized.dtype) == (PIXELS.shape, torch.float32)
    expected = torch.tensor([[-1, -0.6, 1], [-2, 0, 8], [0, 0.1, 0.5]])
    for image in normalized:
        for row in range(4):
            torch.testing.assert_close(image[:, row], expected)


def test_float_images_are_in_0_to_1() -> None:
    layer = Normalize(MEAN, STD, 3)
    torch.testing.assert_close(layer(PIXELS.float() / 255), layer(PIXELS))


@pytest.mark.parametrize("sizes", [None, [(4, 2), (3, 3)]])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_get_the_memory_format_of_training(dtype: torch.dtype, sizes: list[tuple[int, int]] | None) -> None:
    layer, images = Normalize(MEAN, STD, 3), PIXELS.to(dtype).contiguous()
    expected = layer(images, sizes)
    assert expected.is_contiguous()
    layer.channels_last = True
    actual = layer(images, sizes)
    assert actual.is_contiguous(memory_format=torch.channels_last) and torch.equal(actual, expected)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_single_value_applies_to_all_channels(channels: int) -> None:
    images = torch.rand(2, channels, 4, 4)
    torch.testing.assert_close(Normalize([0.3], [0.38], channels)(images), (images - 0.3) / 0.38)


@pytest.mark.parametrize(
    ("mean", "std", "channels", "message"),
    [
        ([0.5, 0.5], [0.5], 3, "mean: 2 values for images of 3 channels; give 3 or 1"),
        ([], [0.5], 3, "mean: 0 values"),
        ([0.5], [0.5, 0.5, 0.5], 1, "std: 3 values for images of 1 channels"),
        ([0.5], [0.0], 1, "std: every value must be above 0"),
        ([0.5], [0.1, -0.1, 0.1], 3, "std: every value must be above 0"),
    ],
)
def test_invalid_values_raise(mean: list[float], std: list[float], channels: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Normalize(mean, std, channels)


def test_mean_and_std_are_not_in_the_state_dict() -> None:
    layer = Normalize(MEAN, STD, 3)
    assert layer.state_dict() == {}
    assert not list(layer.parameters())
    assert layer.to("meta").mean.is_meta, "buffers move to the device"


def test_the_bias_of_the_neck_is_0_and_not_trained() -> None:
    neck = BNNeck(8)
    assert [name for name, param in neck.named_parameters() if param.requires_grad] == ["weight"]
    features = 3 + 2 * torch.randn(64, 8)
    (neck(features) * torch.arange(8)).sum().backward()
    torch.optim.SGD([param for param in neck.parameters() if param.requires_grad], lr=0.1).step()
    torch.testing.assert_close(neck(features).mean(0), torch.zeros(8), atol=1e-6, rtol=0)
    assert neck.bias.tolist() == [0] * 8
