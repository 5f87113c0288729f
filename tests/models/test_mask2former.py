"""Mask classifiers as detectors: detections from the queries' masks, with tiles and test-time augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import DatasetInfo, InstanceMasks, Level, MaskTargets, SegmentationDecoder, Target
from opabinia.models.detectors.mask2former import MaskClassifier
from opabinia.models.panoptic import paste_mask
from opabinia.tasks.dense_base import TestTimeAugmentation
from opabinia.tasks.detection import Detection
from opabinia.tasks.detection.tiles import Tiles
from tests.tasks.test_segmentation import Pixels

INFO = DatasetInfo(samples=1, channels=1, classes=("dot", "bar"), boxes=True, masks=True)


class BrightPixelDecoder(SegmentationDecoder):
    """Three queries: a bar with the bright pixels, a bar without pixels, and the dark pixels without an object."""

    own_losses = True
    segments: Sequence[MaskTargets] = ()

    def losses(self, layers: Sequence[tuple[Tensor, Tensor]], segments: Sequence[MaskTargets]) -> dict[str, Tensor]:
        self.segments = segments
        return {"loss_ce": layers[0][1].sum() * 0}

    def query_masks(self, maps: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        classes = 6 * torch.eye(3)[[1, 1, 2]].expand(len(maps[0]), 3, 3)
        return [(classes, torch.cat([maps[0], -torch.ones_like(maps[0]), -maps[0]], 1) * 9)]


def make_task(**keys: Any) -> Detection:
    def detector(levels: Sequence[Level], info: DatasetInfo) -> MaskClassifier:
        return MaskClassifier(levels, info, decoder=lambda levels, classes: BrightPixelDecoder())

    return Detection(INFO, backbone=Pixels, detector=detector, mean=[0.5], std=[0.5], size_multiple=4, **keys).eval()


def make_batch() -> dict[str, Any]:
    """Return two images of 24 x 32 and 20 x 24 pixels with a bright triangle; the padding of the second is bright."""
    images = torch.zeros(2, 1, 24, 32)
    images[:, :, 4:12, 6:20] = torch.ones(8, 14).tril(3)
    images[1, :, :, 24:] = 1
    masks = (images[:, :, 4:12] == 1).to(torch.uint8)
    return {
        "image": images,
        "image_sizes": [(24, 32), (20, 24)],
        "original_size": [(24, 32), (20, 24)],
        "boxes": [torch.tensor([[6.0, 4, 17, 12]])] * 2,
        "labels": [torch.tensor([1])] * 2,
        "masks": [InstanceMasks.encode(torch.nn.functional.pad(mask, (6, 12, 4, 12))).runs for mask in masks],
    }


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"tiles": Tiles(size=24, overlap=0.7)},
        {"test_time_augmentation": TestTimeAugmentation(scales=[1.0, 2.0])},
    ],
    ids=["image", "tiles", "views"],
)
def test_boxes_scores_and_masks_are_computed_from_the_queries(keys: dict[str, Any]) -> None:
    with torch.no_grad():
        predictions = make_task(**keys).predict(make_batch())
    certain = torch.tensor([6.0, 0, 0]).softmax(0)[0].item()
    for row, height, width in ((0, 24, 32), (1, 20, 24)):
        assert predictions["labels"][row, 0] == 1
        assert predictions["scores"][row, 0].item() == pytest.approx(certain, abs=0.01)
        assert predictions["boxes"][row, 0].tolist() == pytest.approx([6, 4, 17, 12], abs=0.5)
        mask = paste_mask(predictions["masks"][row, 0], predictions["boxes"][row, 0], (height, width))
        expected = make_batch()["image"][row, 0, :height, :width] > 0.5
        expected[:, 24:] = False
        assert (mask != expected).sum() <= (9 if "test_time_augmentation" in keys else 0)
        assert not (predictions["scores"][row, 1:] > 0.1).any()


def test_every_object_is_a_target_segment_of_the_decoder() -> None:
    task, data = make_task(), make_batch()
    assert "losses/loss_ce" in task.predict(data)
    decoder: Any = task.detector.decoder
    assert [row.labels.tolist() for row in decoder.segments] == [[1], [1]]
    assert all(row.masks.shape == (1, 24, 32) for row in decoder.segments)
    with pytest.raises(ValueError, match="masks: true in the source"):
        task.detector.losses([data["image"]], (24, 32), [(24, 32)], [Target(data["boxes"][0], data["labels"][0])])
    with pytest.raises(ValueError, match="take a mask classifier such as mask2former"):
        MaskClassifier([Level(1, 1)], INFO, decoder=lambda levels, classes: SegmentationDecoder())
