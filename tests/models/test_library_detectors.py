"""DETR, Deformable DETR and RF-DETR: losses match the transformers library for the same predictions."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import DataMismatch, DatasetInfo, Level, Target
from opabinia.models.detectors import library_detectors
from opabinia.models.detectors.library_detectors import LibraryDetector, deformable_detr, detr, rf_detr
from opabinia.models.losses.matching import Objects

pytest.importorskip("transformers", reason="the extra detr is not installed")

INFO = DatasetInfo(samples=1, classes=("circle", "square"), boxes=True)
LEVELS = (Level(6, 4), Level(8, 8), Level(12, 16), Level(16, 32))
SHAPE = (64, 96)
SIZES = [(64, 96), (50, 40)]
TARGETS = [
    Target(torch.tensor([[8.0, 8, 40, 32], [50, 20, 90, 60]]), torch.tensor([0, 1])),
    Target(torch.tensor([[4.0, 4, 30, 44]]), torch.tensor([0])),
]
LABELS = [
    {
        "class_labels": torch.tensor([0, 1]),
        "boxes": torch.tensor([[24 / 96, 20 / 64, 32 / 96, 24 / 64], [70 / 96, 40 / 64, 40 / 96, 40 / 64]]),
    },
    {"class_labels": torch.tensor([0]), "boxes": torch.tensor([[17 / 96, 24 / 64, 26 / 96, 40 / 64]])},
]
SMALL = {"num_queries": 12, "decoder_layers": 2, "ffn_dim": 24, "dropout": 0.0}
HEADS = {"attention_heads": 4, "encoder_layers": 1}
BUILDERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "detr": (detr, {"channels": 16, **SMALL, **HEADS}),
    "deformable": (deformable_detr, {"channels": 32, **SMALL, **HEADS}),
    "refined": (deformable_detr, {"channels": 32, **SMALL, **HEADS, "refine_boxes": True}),
    "rf_detr": (
        rf_detr,
        {
            "channels": 32,
            **SMALL,
            "num_queries": 6,
            "num_groups": 3,
            "self_attention_heads": 4,
            "cross_attention_heads": 4,
        },
    ),
}


def build_detector(name: str) -> tuple[LibraryDetector, list[Tensor]]:
    torch.manual_seed(0)
    builder, options = BUILDERS[name]
    detector = builder(LEVELS, INFO, **options)
    for part in detector.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.3)
    maps = [torch.randn(2, level.channels, SHAPE[0] // level.stride, SHAPE[1] // level.stride) for level in LEVELS]
    return detector, maps


def library_loss(detector: LibraryDetector, maps: list[Tensor], mode: bool) -> Tensor:
    model = copy.deepcopy(detector.model).train(mode)
    del model._loss_function
    model.config.class_cost = int(detector.costs.label)
    model.get_submodule(detector._backbone).maps = maps[detector._levels]
    mask = torch.zeros(2, *SHAPE, dtype=torch.int64)
    for row, (height, width) in zip(mask, SIZES, strict=True):
        row[:height, :width] = 1
    loss: Tensor
    values = model(torch.zeros(2, 3, *SHAPE), pixel_mask=mask, labels=LABELS)
    classes = [value for name, value in values.loss_dict.items() if name.startswith("loss_ce")]
    loss = values.loss + (detector._criterion.weights[0] - 1) * sum(classes)  # the library's weight is 1
    return loss


# Without rf_detr in evaluation: the library's loss divides its only group into groups.
@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in BUILDERS for mode in (True, False) if mode or name != "rf_detr"]
)
def test_losses_match_the_library(name: str, mode: bool) -> None:
    detector, maps = build_detector(name)
    with torch.no_grad():
        losses = detector.train(mode).losses(maps, SHAPE, SIZES, TARGETS)
        expected = library_loss(detector, maps, mode)
    assert losses.keys() == {"loss_ce", "loss_bbox", "loss_giou", "loss_auxiliary"}
    if name == "detr":  # the library's own losses of earlier layers need another network (see SoftmaxDetector)
        assert losses.pop("loss_auxiliary") > 0
    assert sum(value.item() for value in losses.values()) == pytest.approx(expected.item(), rel=1e-5)


@torch.no_grad()
def test_detr_does_not_read_the_padding() -> None:
    detector, maps = build_detector("detr")
    padded = [level.clone() for level in maps]
    padded[-1][1, :, :, 2:] = 9  # positions beyond the 40 pixels of the second image
    images, masked = (detector.eval().detect(values, SHAPE, SIZES) for values in (maps, padded))
    torch.testing.assert_close(images[1].boxes, masked[1].boxes)


def test_earlier_layers_of_detr_match_a_smaller_decoder() -> None:
    detector, maps = build_detector("detr")
    objects = Objects(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4), [0, 0])
    (earlier,) = detector.eval()._predict(maps, SHAPE, torch.tensor(SIZES), objects).earlier
    del detector.model.model.decoder.layers[1:]
    torch.testing.assert_close(earlier, detector._predict(maps, SHAPE, torch.tensor(SIZES)).last)


def test_a_query_of_detr_predicts_one_class() -> None:
    detector, maps = build_detector("detr")
    (image, _) = detector.eval().detect(maps, SHAPE, SIZES)
    assert (image.scores > 0).sum() == 12


def test_images_with_too_few_positions_raise() -> None:
    detector, maps = build_detector("rf_detr")
    with pytest.raises(DataMismatch, match="images of 32 x 32 have 1 positions, and rf_detr selects num_queries = 6"):
        detector.detect([level[..., :1, :1] for level in maps], (32, 32), [(32, 32)] * 2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("detr", {"channels": 18}, r"channels: a multiple of 4 and of attention_heads \(4\), not 18"),
        ("deformable", {"channels": 48}, r"channels: a multiple of 32 and of attention_heads \(4\), not 48"),
        ("rf_detr", {"channels": 30}, r"channels: a multiple of 4"),
    ],
)
def test_impossible_widths_raise(name: str, options: dict[str, Any], message: str) -> None:
    builder, defaults = BUILDERS[name]
    with pytest.raises(ValueError, match=message):
        builder(LEVELS, INFO, **{**defaults, **options})


def test_levels_of_different_widths_raise() -> None:
    with pytest.raises(ValueError, match=r"the same number of channels, not \[16, 8\]"):
        rf_detr((*LEVELS, Level(8, 32)), INFO)
    assert library_detectors.rf_detr is rf_detr
