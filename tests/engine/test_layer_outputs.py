"""Averaged and flattened layer outputs."""

import pytest
import torch

from opabinia.engine.loop.layer_outputs import average_outputs, flatten_outputs


@pytest.mark.parametrize("places", [(), (6,), (4, 5), (3, 4, 5)], ids=["vectors", "tokens", "maps", "maps of clips"])
def test_positions_are_averaged_and_channels_stay(places: tuple[int, ...]) -> None:
    means = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    noise = torch.randn(2, 2, *places) if places else torch.zeros(2, 2)
    for axis in range(2, noise.ndim):
        noise = noise - noise.mean(axis, keepdim=True)
    output = means.view(2, 2, *(1 for _ in places)) + noise
    if len(places) == 1:
        output = output.transpose(1, 2)  # tokens have their channels last
    torch.testing.assert_close(average_outputs([output]), means)
    assert flatten_outputs([output]).shape == (2, output[0].numel())


def test_several_tensors_of_a_layer_are_concatenated() -> None:
    assert average_outputs([torch.ones(2, 3, 4, 4, 4), torch.zeros(2, 5)]).tolist() == [[1.0] * 3 + [0.0] * 5] * 2
