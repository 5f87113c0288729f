"""Weights of classes in the class losses of detectors."""

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import box_convert

from opabinia.contracts import DatasetInfo, Level, Target
from opabinia.models.detectors import DFine, RTDetr
from opabinia.models.detectors.boxes import BoxLayers, BoxOptions, BoxPredictions
from opabinia.models.detectors.fcos import Fcos
from opabinia.models.detectors.regions import Regions
from opabinia.models.detectors.retinanet import RetinaNet
from opabinia.models.detectors.rotated_fcos import RotatedFcos
from opabinia.models.losses.class_weights import class_weight_table, weighted_by_class
from opabinia.models.necks import fpn_p3_p7_from_p5

INFO = DatasetInfo(samples=40, classes=("cat", "dog", "cow"), boxes=True, image_counts=(30, 10, 0))


def table_of(weights: Any, info: DatasetInfo = INFO) -> list[float]:
    table = class_weight_table(weights, info)
    assert table is not None
    return table.tolist()


def test_balanced_weights_are_inverse_frequencies_of_mean_one_over_objects() -> None:
    assert table_of("balanced") == pytest.approx([40 / 60, 2.0, 1.0, 1.0])
    assert 30 * 40 / 60 + 10 * 2.0 == 40


def test_weights_by_name_leave_other_classes_and_the_background_at_one() -> None:
    assert table_of({"dog": 3.0, "cow": 0.0}) == [1.0, 3.0, 0.0, 1.0]
    assert class_weight_table(None, INFO) is None


@pytest.mark.parametrize(
    ("weights", "info", "message"),
    [
        ({"dogs": 2.0}, INFO, "class_weights: the training data has no class dogs"),
        ("balanced", replace(INFO, image_counts=()), "class_weights: balanced needs data that counts its images"),
    ],
)
def test_wrong_weights_are_one_error(weights: Any, info: DatasetInfo, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        class_weight_table(weights, info)


def test_background_has_weight_one_whichever_number_it_has() -> None:
    table = class_weight_table({"cat": 5.0, "cow": 7.0}, INFO)
    losses = torch.ones(4)
    assert weighted_by_class(losses, torch.tensor([0, 2, -1, 3]), table).tolist() == [5, 7, 1, 1]
    assert weighted_by_class(losses, torch.tensor([0, 2, -1, 3]), None) is losses


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_regions_of_a_class_count_as_often_as_its_weight_says(kind: Any) -> None:
    """A weight of 2 gives the loss of two such regions, divided by the number of those that there are."""
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 4, generator=generator), torch.tensor([1, 0, 3, 2])
    boxes = torch.tensor([[0.0, 0, 10, 10]]).repeat(5, 1)

    def loss_of(rows: list[int], weights: Any) -> Tensor:
        head = BoxLayers(1, INFO, BoxOptions(fc_dim=4, class_loss=kind, class_weights=weights), (10, 10, 5, 5))
        count = len(rows)
        regions = Regions(boxes[:count], labels[rows], torch.zeros(count, dtype=torch.int64), boxes[:count])
        losses = head.losses(BoxPredictions(logits[rows], torch.zeros(count, 12)), regions)
        assert not head.state_dict().keys() & {"class_weights"}
        return losses["loss_cls"] * count

    torch.testing.assert_close(loss_of([0, 1, 2, 3], {"dog": 2.0}), loss_of([0, 1, 2, 3, 0], None))
    if kind == "softmax":
        expected = F.cross_entropy(logits, labels, torch.tensor([1.0, 2, 1, 1]), reduction="sum")
        torch.testing.assert_close(loss_of([0, 1, 2, 3], {"dog": 2.0}), expected)


LEVELS = [Level(8, 8), Level(8, 16), Level(8, 32)]
SHAPE = (64, 96)
DETECTORS: dict[str, Any] = {
    "fcos": partial(Fcos, neck=partial(fpn_p3_p7_from_p5, channels=32), num_convs=1),
    "rotated_fcos": partial(RotatedFcos, neck=partial(fpn_p3_p7_from_p5, channels=32), num_convs=1),
    "retinanet": partial(RetinaNet, neck=partial(fpn_p3_p7_from_p5, channels=32)),
}
BOXES = torch.tensor([[10.0, 10, 42, 42], [50.0, 20, 90, 60]])


def losses_of(name: str, labels: list[int], weights: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    is_oriented = name == "rotated_fcos"
    detector = DETECTORS[name](LEVELS, replace(INFO, oriented=is_oriented), class_weights=weights)
    assert "class_weights" not in detector.state_dict()
    draw = torch.Generator().manual_seed(1)
    maps = [torch.rand(1, 8, 64 // stride, 96 // stride, generator=draw) for stride in (8, 16, 32)]
    boxes = F.pad(box_convert(BOXES, "xyxy", "cxcywh"), (0, 1)) if is_oriented else BOXES
    targets = [Target(boxes, torch.tensor(labels))]
    losses: dict[str, Tensor] = detector.losses(detector.neck(maps), SHAPE, [SHAPE], targets)
    return losses


@pytest.mark.parametrize("name", DETECTORS)
def test_points_and_anchors_of_a_class_are_weighted_and_no_others(name: str) -> None:
    plain, ones = losses_of(name, [0, 1], None), losses_of(name, [0, 1], {"cat": 1.0, "dog": 1.0})
    assert all(torch.equal(plain[key], ones[key]) for key in plain)
    double, triple = losses_of(name, [0, 1], {"dog": 2.0}), losses_of(name, [0, 1], {"dog": 3.0})
    added = double["loss_cls"] - plain["loss_cls"]
    assert added > 0
    torch.testing.assert_close(triple["loss_cls"] - plain["loss_cls"], 2 * added)
    assert torch.equal(double["loss_box_reg"], plain["loss_box_reg"])
    # Without a dog its weight changes nothing: the background keeps its own.
    others, weighted = losses_of(name, [0, 0], None), losses_of(name, [0, 0], {"dog": 3.0})
    assert torch.equal(others["loss_cls"], weighted["loss_cls"])


@pytest.mark.skipif(find_spec("transformers") is None, reason="the extra detr is not installed")
@pytest.mark.parametrize("detector", [RTDetr, DFine])
def test_queries_of_a_class_are_weighted_and_no_others(detector: Any) -> None:
    def losses_of(labels: list[int], weights: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = detector(
            (Level(8, 8), Level(8, 16), Level(8, 32)), INFO, channels=16, attention_heads=4, num_queries=8,
            decoder_layers=2, ffn_dim=16, num_denoising=0, class_weights=weights,
        )  # fmt: skip
        maps = [torch.rand(1, 8, 64 // stride, 96 // stride) for stride in (8, 16, 32)]
        losses: dict[str, Tensor] = model.losses(maps, SHAPE, [SHAPE], [Target(BOXES, torch.tensor(labels))])
        return losses

    plain, double, triple = (losses_of([0, 1], weights) for weights in (None, {"dog": 2.0}, {"dog": 3.0}))
    added = double["loss_vfl"] - plain["loss_vfl"]
    assert added > 0 and torch.equal(double["loss_bbox"], plain["loss_bbox"])
    torch.testing.assert_close(triple["loss_vfl"] - plain["loss_vfl"], 2 * added)
    others, weighted = losses_of([0, 0], None), losses_of([0, 0], {"dog": 3.0})
    assert torch.equal(others["loss_vfl"], weighted["loss_vfl"])
