"""Losses of set prediction, without the library whose layers the detectors use."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.ops import box_convert, generalized_box_iou_loss

from opabinia.models.losses.boxes import box_losses
from opabinia.models.losses.focal import iou_aware_loss, no_object_cross_entropy, query_focal_loss, varifocal_loss
from opabinia.models.losses.matching import Objects, Pairs, Prediction

OBJECTS = Objects(
    torch.tensor([1, 0, 2]),
    torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.6, 0.5, 0.3, 0.4], [0.5, 0.5, 0.9, 0.8]]),
    [2, 1],
)
PAIRS = Pairs(torch.tensor([0, 0, 1]), torch.tensor([3, 1, 0]), torch.tensor([0, 1, 2]))
COUNT = torch.tensor(3.0)

LOSSES: dict[str, Callable[[Prediction], Tensor]] = {
    "varifocal": lambda prediction: varifocal_loss(prediction, PAIRS, OBJECTS, COUNT),
    "focal": lambda prediction: query_focal_loss(prediction, PAIRS, OBJECTS, COUNT),
    "iou_aware": lambda prediction: iou_aware_loss(prediction, PAIRS, OBJECTS, COUNT),
    "cross_entropy": lambda prediction: no_object_cross_entropy(prediction, PAIRS, OBJECTS)[0],
    "l1": lambda prediction: box_losses(prediction, PAIRS, OBJECTS, COUNT)[0],
    "giou": lambda prediction: box_losses(prediction, PAIRS, OBJECTS, COUNT)[1],
}


def make_prediction() -> Prediction:
    draw = torch.Generator().manual_seed(0)
    centers, sides = torch.rand(2, 5, 2, generator=draw) * 0.4 + 0.3, torch.rand(2, 5, 2, generator=draw) * 0.4 + 0.1
    return Prediction(3 * torch.randn(2, 5, 4, generator=draw), torch.cat([centers, sides], 2))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_losses_of_half_precision_are_computed_in_full(name: str, dtype: torch.dtype) -> None:
    """With CUDA's autocast, which computes powers in float32 and the CPU's does not, types met that did not match."""
    half = Prediction(*(values.to(dtype) for values in make_prediction()))
    loss = LOSSES[name](half)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, LOSSES[name](Prediction(*(values.float() for values in half))))


def test_box_losses_are_those_of_torchvision() -> None:
    prediction = make_prediction()
    boxes = prediction.boxes[PAIRS.images, PAIRS.queries]
    corners = (box_convert(values, "cxcywh", "xyxy") for values in (boxes, OBJECTS.boxes[PAIRS.objects]))
    l1, giou = box_losses(prediction, PAIRS, OBJECTS, COUNT)
    torch.testing.assert_close(giou, generalized_box_iou_loss(*corners).sum() / COUNT)
    torch.testing.assert_close(l1, (boxes - OBJECTS.boxes[PAIRS.objects]).abs().sum() / COUNT)
