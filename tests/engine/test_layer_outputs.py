"""What is made of the outputs of layers."""

import pytest
import torch

from opabinia.engine.loop.layer_outputs import averaged, flattened


@pytest.mark.parametrize("places", [(), (6,), (4, 5), (3, 4, 5)], ids=["vectors", "tokens", "maps", "maps of clips"])
def test_places_are_averaged_and_channels_stay(places: tuple[int, ...]) -> None:
    means = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    noise = torch.randn(2, 2, *places) if places else torch.zeros(2, 2)
    for axis in range(2, noise.ndim):
        noise = noise - noise.mean(axis, keepdim=True)
    output = means.view(2, 2, *(1 for _ in places)) + noise
    if len(places) == 1:
        output = output.transpose(1, 2)  # tokens have their channels last
    torch.testing.assert_close(averaged([output]), means)
    assert flattened([output]).shape == (2, output[0].numel())


def test_tensors_of_a_layer_lie_beside_each_other() -> None:
    assert averaged([torch.ones(2, 3, 4, 4, 4), torch.zeros(2, 5)]).tolist() == [[1.0] * 3 + [0.0] * 5] * 2
