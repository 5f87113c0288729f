"""The detection task: losses, predictions in pixels of the original images, augmented views and tiles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.ops import box_convert

from opabinia.contracts import (
    Backbone,
    Batch,
    Clock,
    DatasetInfo,
    Detections,
    Detector,
    DrawOptions,
    GroundTruth,
    Level,
    Predictions,
    Sizes,
    Target,
)
from opabinia.contracts.rotated_boxes import upright_boxes
from opabinia.data.collate import collate
from opabinia.evaluation.detection.coco import Coco
from opabinia.evaluation.detection.rotated import DotaMap
from opabinia.evaluation.mean_losses import MeanLosses
from opabinia.inference.predictor import Prediction
from opabinia.models.layers import image_area
from opabinia.tasks.dense_base import TestTimeAugmentation
from opabinia.tasks.detection import Detection, test_time_augmentation
from opabinia.tasks.detection.test_time_augmentation import View
from opabinia.tasks.detection.tiles import Tiles, merge_tiles, move_to_image
from opabinia.tasks.detections_base import scale_to_original, targets_from
from tests.fake_gpu import GPU, WithoutBlockingCopies

DATASET_INFO = DatasetInfo(samples=4, channels=1, classes=("dot", "bar"), boxes=True)
SIDE = 8


class Pixels(Backbone):
    """A backbone whose features are the normalized images."""

    out_channels = 1

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def enable_multi_scale(self) -> list[Level]:
        return [Level(1, 1)]

    def pyramid_features(self, images: Tensor) -> list[Tensor]:
        return [images * self.scale]


class BrightBox(Detector):
    """A detector that finds the box around all pixels brighter than the mean color."""

    size_multiple = 4
    max_detections = 3

    def __init__(self, levels: Sequence[Level], dataset_info: DatasetInfo) -> None:
        super().__init__()

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        assert maps[0].shape[-2:] == shape
        sum_of_boxes = sum((target.boxes.sum() for target in targets), torch.zeros(()))
        return {
            "loss_box": maps[0].sum() * 0 + sum_of_boxes,
            "loss_drawn": torch.rand(()) + maps[0].sum() * 0,
            "count": torch.tensor(float(sum(len(target.labels) for target in targets))),
        }

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        assert maps[0].shape[-2:] == shape
        return [self._detect_image(image[0], size) for image, size in zip(maps[0], sizes, strict=True)]

    def _detect_image(self, values: Tensor, size: tuple[int, int]) -> Detections:
        assert not values[size[0] :].any() and not values[:, size[1] :].any(), "padding is the mean color"
        rows, columns = (values > 0.5).nonzero().unbind(1)
        if not len(rows):
            return Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
        box = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        return Detections(box[None].float(), torch.tensor([0.75]), torch.tensor([1]))


class HalfMasks(BrightBox):
    """Also predicts masks with the mean brightness of each half of a box, and one keypoint at its upper left corner."""

    def describe(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, detections: Sequence[Detections]
    ) -> list[Detections]:
        described = []
        for image_detections, image in zip(detections, maps[0], strict=True):
            masks = torch.zeros(len(image_detections.boxes), 2, 2)
            for number, (left, top, right, bottom) in enumerate(image_detections.boxes.round().int().tolist()):
                middle = (left + right) // 2
                for side, columns in enumerate((slice(left, middle), slice(middle, right))):
                    masks[number, :, side] = image[0, top:bottom, columns].mean().detach()
            points = torch.cat([image_detections.boxes[:, None, :2], torch.ones(len(image_detections.boxes), 1, 1)], 2)
            described.append(image_detections._replace(masks=masks, keypoints=points))
        return described


def make_detection(detector: Any = BrightBox, dataset_info: DatasetInfo = DATASET_INFO, **keys: Any) -> Detection:
    return Detection(dataset_info, backbone=Pixels, detector=detector, mean=[0.2], std=[1.0], **keys).eval()


def make_sample(
    size: tuple[int, int],
    box: tuple[int, int, int, int] | None,
    name: str = "a",
    original_size: tuple[int, int] | None = None,
) -> dict[str, Any]:
    image = torch.zeros(1, *size)
    if box is not None:
        image[0, box[1] : box[3], box[0] : box[2]] = 1
    boxes = torch.tensor([box] if box else []).view(-1, 4).float()
    empty = np.zeros(0)
    ground_truth = GroundTruth(name, size, empty.astype(int), empty.reshape(0, 4), empty.astype(int), empty, empty > 0)
    labels = torch.ones(len(boxes), dtype=torch.int64)
    inputs = {"image": image, "boxes": boxes, "labels": labels, "id": name, "original_size": original_size or size}
    return {**inputs, "ground_truth": ground_truth}


def batch_of(*samples: dict[str, Any]) -> Batch:
    return collate(samples, 4)


SAMPLES = (make_sample((8, 8), (2, 3, 6, 7)), make_sample((5, 11), (1, 0, 4, 2), "b", original_size=(10, 33)))


def detected_boxes(predictions: Predictions, image: int) -> list[list[float]]:
    return predictions["boxes"][image][predictions["labels"][image] >= 0].tolist()  # type: ignore[no-any-return]


# --- positions of objects ---------------------------------------------------------------------------------------------


def test_boxes_are_in_pixels_of_the_original_image() -> None:
    predictions = make_detection().predict(batch_of(*SAMPLES))
    assert predictions["boxes"].shape == (2, 3, 4)
    assert detected_boxes(predictions, 0) == [[2, 3, 6, 7]]
    assert detected_boxes(predictions, 1) == [[3, 0, 12, 4]]  # three times as wide, twice as high
    assert predictions["labels"].tolist() == [[1, -1, -1], [1, -1, -1]]
    assert predictions["scores"].tolist() == [[0.75, 0, 0], [0.75, 0, 0]]


def test_boxes_are_scaled_and_clipped_and_keypoints_scaled_to_the_original_image() -> None:
    points = torch.tensor([[[1.0, 2.0, 0.5]]])
    detections = Detections(torch.tensor([[-1.0, 2, 9, 20]]), torch.ones(1), torch.zeros(1).long(), None, points)
    scaled = scale_to_original(detections, (8, 8), (16, 24))
    assert scaled.boxes.tolist() == [[0, 4, 24, 16]]
    assert scaled.keypoints is not None and scaled.keypoints.tolist() == [[[3, 4, 0.5]]]


def test_no_factors_are_copied_to_the_device_so_that_the_host_waits() -> None:
    with FakeTensorMode(), WithoutBlockingCopies():
        scores, points = torch.zeros(4, device=GPU), torch.zeros(4, 2, 3, device=GPU)
        rows = Detections(torch.zeros(4, 4, device=GPU), scores, scores.long(), None, points)
        scaled = scale_to_original(rows, (8, 8), (16, 8))
        moved, _ = move_to_image(rows, (4, 0), (8, 8), (32, 32))
        view = View([], (16, 16), [(16, 16)], (2.0, 2.0), False)
        factors = test_time_augmentation._factors(rows, view)
    assert {values.device for values in (scaled.boxes, moved.boxes, factors)} == {GPU}


def test_image_area_excludes_padding() -> None:
    mask = image_area((2, 3), [(2, 3), (1, 2)], torch.device("cpu"))
    assert mask[:, 0].int().tolist() == [[[1, 1, 1], [1, 1, 1]], [[1, 1, 0], [0, 0, 0]]]


def test_masks_are_readable_in_pixels_of_the_original_image() -> None:
    tensors = {
        "labels": torch.tensor([1, -1]),
        "scores": torch.tensor([0.75, 0.0]),
        "boxes": torch.tensor([[1.0, 0.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]]),
        "masks": torch.ones(2, 4, 4),
        "image_size": torch.tensor([3, 4]),
    }
    prediction = Prediction(tensors, make_detection().presenter().readable(tensors))
    assert prediction.instance_masks.int().tolist() == [[[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]]
    row = json.loads(json.dumps(prediction.readable))["detections"][0]
    assert row["polygons"] == [[1, 0, 3, 0, 3, 2, 1, 2]] and row["mask"]["size"] == [3, 4]
    assert prediction["masks"].shape == (2, 4, 4), "the tensors are unchanged"
    with pytest.raises(ValueError, match="predicts no masks"):
        Prediction({}, {}).instance_masks  # noqa: B018


# --- targets and losses -----------------------------------------------------------------------------------------------


def test_targets_are_those_of_the_batch() -> None:
    points = {"keypoints": torch.tensor([[[1.0, 2.0]]]), "visibility": torch.tensor([[2]])}
    batch = batch_of({**SAMPLES[0], **points})
    (target,) = targets_from(batch)
    assert target.boxes.tolist() == [[2, 3, 6, 7]]
    assert target.labels.tolist() == [1]
    assert target.masks is None
    assert target.keypoints is not None and target.keypoints.tolist() == [[[1, 2, 2]]]


def test_losses_and_scalars_of_the_detector_keep_their_names() -> None:
    losses = make_detection()(batch_of(*SAMPLES), Clock())
    assert float(losses["loss_box"].detach()) == 18 + 7
    assert float(losses["count"]) == 2


def test_validation_losses_are_deterministic_and_leave_the_random_state() -> None:
    task = make_detection()
    torch.manual_seed(5)
    first = task.predict(batch_of(*SAMPLES))
    next_random = torch.rand(())
    second = task.predict(batch_of(*SAMPLES))
    assert first["losses/loss_drawn"].tolist() == second["losses/loss_drawn"].tolist()
    assert first["losses/loss"].shape == (2,)
    assert torch.allclose(first["losses/loss"], first["losses/loss_box"] + first["losses/loss_drawn"])
    torch.manual_seed(5)
    assert torch.rand(()) == next_random


def test_without_boxes_in_the_batch_there_are_no_losses() -> None:
    batch = {key: value for key, value in batch_of(*SAMPLES).items() if key not in ("boxes", "labels")}
    assert not [name for name in make_detection().predict(batch) if name.startswith("losses")]
    assert not [name for name in make_detection(validation_loss=False).predict(batch_of(*SAMPLES)) if "losses" in name]


# --- test-time augmentation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scales", [[1.0], [2.0], [1.0, 2.0]], ids=str)
def test_merged_views_keep_the_boxes(scales: list[float]) -> None:
    predictions = make_detection(test_time_augmentation=TestTimeAugmentation(scales=scales)).predict(batch_of(*SAMPLES))
    for number, expected in enumerate(([2, 3, 6, 7], [3, 0, 12, 4])):
        (box,) = detected_boxes(predictions, number)
        assert np.allclose(box, expected, atol=1.6), box  # upscaling blurs the edges


@pytest.mark.parametrize("validation_loss", [True, False])
def test_the_backbone_runs_once_per_view_of_padded_images(
    validation_loss: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views are two scales and their mirror images; losses need one more pass."""
    augmentation = TestTimeAugmentation(scales=[1.0, 1.5])
    task = make_detection(size_multiple=32, test_time_augmentation=augmentation, validation_loss=validation_loss)
    sides: list[int] = []
    pyramid_features = task.backbone.pyramid_features
    monkeypatch.setattr(
        task.backbone, "pyramid_features", lambda images: sides.append(images.shape[-1]) or pyramid_features(images)
    )
    task.predict(collate([SAMPLES[0]], 32))
    assert sides == [32] * validation_loss + [32, 32, 64, 64], "48 pixels, rounded up"


def test_masks_of_views_are_mirrored_back_and_averaged() -> None:
    sample = make_sample((8, 8), (2, 2, 6, 6))
    sample["image"][0, 2:6, 4:6] = 0.8  # the right half is darker
    plain = make_detection(HalfMasks).predict(batch_of(sample))
    views = make_detection(HalfMasks, test_time_augmentation=TestTimeAugmentation(scales=[1.0])).predict(
        batch_of(sample)
    )
    assert plain["masks"][0, 0, 0].tolist() == pytest.approx([0.8, 0.6])
    assert torch.allclose(views["masks"], plain["masks"])
    assert views["keypoints"][0, 0].tolist() == [[2, 2, 1]]


# --- tiles ------------------------------------------------------------------------------------------------------------


class DotDetector(HalfMasks):
    """Finds a box for each bright value. Values above 2 are the second class; the fraction is the score."""

    max_detections = 4

    def _detect_image(self, pixels: Tensor, size: tuple[int, int]) -> Detections:
        rows = []
        for value in (pixels + 0.2).unique().tolist():
            if value > 0.5:
                y, x = ((pixels + 0.2) == value).nonzero().unbind(1)
                rows.append((x.min(), y.min(), x.max() + 1, y.max() + 1, value % 1, value > 2))
        table = torch.tensor(rows).view(-1, 6)
        return Detections(table[:, :4], table[:, 4], table[:, 5].long())


def scene_of(*boxes: tuple[int, int, int, int, float], size: tuple[int, int] = (40, 60)) -> dict[str, Any]:
    sample = make_sample(size, None)
    for left, top, right, bottom, value in boxes:
        sample["image"][0, top:bottom, left:right] = value
    return sample


def test_detections_of_tiles_are_those_of_the_whole_image() -> None:
    """Covers objects within one or several tiles, objects cut in one tile and complete in the next, images smaller than
    a tile or without objects, masks, keypoints, and batches of tiles."""
    scenes = [
        scene_of((1, 2, 5, 5, 1.5), (13, 13, 18, 18, 1.75), (50, 30, 60, 40, 2.25), (30, 14, 37, 17, 2.875)),
        scene_of((3, 0, 9, 4, 1.5), size=(7, 11)),
        scene_of(),
        scene_of((33, 1, 37, 6, 2.5), size=(9, 44)),
    ]
    untiled = make_detection(DotDetector).predict(batch_of(*scenes))
    for batch_size in (1, 5):
        tiles = Tiles(size=16, overlap=0.5, batch_size=batch_size, max_detections=6)
        tiled = make_detection(DotDetector, tiles=tiles).predict(batch_of(*scenes))
        assert tiled["labels"].shape == (4, 6)
        assert not [name for name in tiled if name.startswith("losses/")]
        for number in range(4):
            count = int((untiled["labels"][number] >= 0).sum())
            order = untiled["scores"][number, :count].argsort(descending=True)
            for name in ("boxes", "scores", "labels", "masks", "keypoints"):
                assert torch.equal(tiled[name][number, :count], untiled[name][number][order]), (number, name)
            assert (tiled["labels"][number, count:] == -1).all()


def test_complete_boxes_replace_cut_ones() -> None:
    """Only boxes of the same class are replaced. Complete neighbors, and boxes cut in every tile, are kept."""
    boxes = [
        [0.0, 0, 10, 10],
        [4.0, 0, 16, 10],
        [20.0, 0, 30, 10],
        [21.0, 0, 27, 10],
        [22.0, 0, 30, 10],
        [50, 0, 60, 9],
    ]
    scores, labels = torch.tensor([0.9, 0.8, 0.5, 0.9, 0.7, 0.3]), torch.tensor([0, 0, 0, 1, 0, 0])
    rows = Detections(torch.tensor(boxes), scores, labels)
    by_tile = [Detections(*(values[span] for values in rows[:3])) for span in (slice(0, 3), slice(3, 6))]
    cut = [torch.tensor([False, False, False]), torch.tensor([True, True, True])]
    merged = merge_tiles(by_tile, cut, Tiles(size=32))
    assert merged.scores.tolist() == pytest.approx([0.9, 0.9, 0.8, 0.5, 0.3])
    assert merged.masks is None and merged.labels.tolist() == [0, 1, 0, 0, 0]
    assert merge_tiles(by_tile, cut, Tiles(size=32, max_detections=2)).scores.tolist() == pytest.approx([0.9, 0.9])
    tile = Detections(torch.tensor([[0.0, 4, 8, 12], [8.0, 8, 16, 16], [4.0, 4, 9, 9]]), torch.ones(3), labels[:3])
    moved, is_cut = move_to_image(tile, (24, 0), (16, 16), (40, 40))
    assert moved.boxes[0].tolist() == [24, 4, 32, 12] and is_cut.tolist() == [True, True, False]
    assert move_to_image(tile, (24, 24), (16, 16), (40, 40))[1].tolist() == [True, False, False]


def test_many_boxes_of_many_tiles_take_little_memory() -> None:
    """Comparing all pairs of 20,000 boxes would take gigabytes."""
    corners = 50.0 * torch.arange(20_000)[:, None] + torch.zeros(1, 4)
    boxes = corners + torch.tensor([0.0, 0.0, 20.0, 20.0])
    rows = [
        Detections(chunk, torch.rand(len(chunk)), torch.zeros(len(chunk), dtype=torch.int64))
        for chunk in boxes.chunk(4)
    ]
    cut = [torch.arange(len(detections.boxes)) % 2 == 0 for detections in rows]
    assert len(merge_tiles(rows, cut, Tiles(size=32, max_detections=10)).boxes) == 10


def test_invalid_tiles_are_reported() -> None:
    with pytest.raises(ValueError, match=r"tiles.size: 3 is below 4, the detector's smallest"):
        make_detection(tiles=Tiles(size=3))
    shrunk = [{**scene_of(size=(8, 8)), "original_size": (80, 80)}]
    with pytest.warns(UserWarning, match=r"resize 80 x 80 to 8 x 8, a single tile; .*data.val.transforms=\[\]"):
        make_detection(tiles=Tiles(size=16)).predict(batch_of(*shrunk))


class OverlappingClasses(BrightBox):
    """Finds two overlapping objects of different classes, and a separate one."""

    def _detect_image(self, values: Tensor, size: tuple[int, int]) -> Detections:
        boxes = torch.tensor([[0.0, 0, 10, 10], [3.0, 0, 10, 10], [20.0, 20, 24, 24]])
        return Detections(boxes, torch.tensor([0.5, 0.75, 0.25]), torch.tensor([0, 1, 0]))


@pytest.mark.parametrize(
    ("keys", "scores", "labels"),
    [
        ({}, [0.5, 0.75, 0.25], [0, 1, 0]),
        ({"class_agnostic_nms": 0.6}, [0.75, 0.25], [1, 0]),
        ({"class_agnostic_nms": 0.75}, [0.75, 0.5, 0.25], [1, 0, 0]),
        ({"score_calibration": {"bar": (1.0, -3.0)}}, [0.5, 0.25, 3 / (3 + np.e**3)], [0, 0, 1]),
    ],
)
def test_suppression_of_all_classes_and_calibrated_scores(
    keys: dict[str, Any], scores: list[float], labels: list[int]
) -> None:
    predictions = make_detection(OverlappingClasses, **keys).predict(batch_of(scene_of()))
    valid = predictions["labels"][0] >= 0
    assert predictions["scores"][0][valid].tolist() == pytest.approx(scores)
    assert predictions["labels"][0][valid].tolist() == labels


# --- oriented boxes ---------------------------------------------------------------------------------------------------


class RotatedBoxes(BrightBox):
    """The boxes of ``DotDetector`` as oriented boxes, rotated by 90 degrees."""

    oriented = True
    max_detections = 4

    def _detect_image(self, values: Tensor, size: tuple[int, int]) -> Detections:
        detections = DotDetector._detect_image(self, values, size)  # type: ignore[arg-type]
        x, y, width, height = box_convert(detections.boxes, "xyxy", "cxcywh").unbind(1)
        return detections._replace(boxes=torch.stack([x, y, height, width, torch.full_like(x, 90)], 1))


ORIENTED = replace(DATASET_INFO, oriented=True)


def test_oriented_and_upright_boxes_agree() -> None:
    """Covers resized images, tiles, mirrored views and class-agnostic NMS."""
    scenes = [scene_of((1, 2, 5, 5, 1.5), (13, 13, 18, 18, 1.75), (50, 30, 60, 40, 2.25), (30, 14, 37, 17, 2.875))]
    scenes[0]["original_size"] = (80, 120)
    for options in (
        {},
        {"tiles": Tiles(size=16, overlap=0.5)},
        {"test_time_augmentation": TestTimeAugmentation(scales=[1.0])},
        {"class_agnostic_nms": 0.5},
    ):
        predictions = make_detection(RotatedBoxes, ORIENTED, validation_loss=False, **options).predict(
            batch_of(*scenes)
        )
        expected = make_detection(DotDetector, validation_loss=False, **options).predict(batch_of(*scenes))
        count = int((expected["labels"] >= 0).sum())
        assert count == 4 and torch.equal(predictions["labels"], expected["labels"]), options
        assert torch.equal(predictions["scores"], expected["scores"])
        torch.testing.assert_close(upright_boxes(predictions["boxes"][0, :count]), expected["boxes"][0, :count])


def test_oriented_boxes_are_readable_and_drawn() -> None:
    task = make_detection(RotatedBoxes, ORIENTED)
    boxes = torch.tensor([[[10.0, 10, 12, 6, 30]]])
    predictions = {"boxes": boxes, "scores": torch.tensor([[0.9]]), "labels": torch.tensor([[1]])}
    row = {name: values[0] for name, values in predictions.items()}
    (readable,) = task.presenter().readable(row)["detections"]
    assert readable["box"] == [10, 10, 12, 6, 30]
    assert readable["corners"] == [[3.3, 10.4], [13.7, 4.4], [16.7, 9.6], [6.3, 15.6]]
    drawn = np.asarray(task.presenter().draw({"image": torch.zeros(1, 20, 20)}, row, DrawOptions(side=20, text=1)))
    assert drawn[4:6, 13].any() and not drawn[15, 16].any(), (
        "a corner of the oriented box, not of its bounding rectangle"
    )


# --- options and invalid data -----------------------------------------------------------------------------------------

NO_BOXES = DatasetInfo(4, channels=1, classes=("dot", "bar"))


@pytest.mark.parametrize(
    ("detector", "keys", "message"),
    [
        (BrightBox, {"dataset_info": NO_BOXES}, "has no boxes: take a source with boxes, such as coco"),
        (BrightBox, {"dataset_info": DatasetInfo(4, boxes=True)}, "has no classes"),
        (BrightBox, {"dataset_info": ORIENTED}, r"training data are oriented, .* take rotated_fcos"),
        (RotatedBoxes, {}, "training data are upright: take fcos"),
        (BrightBox, {"score_calibration": {"dog": (1.0, 0.0)}}, "the training data has no class 'dog'"),
        (BrightBox, {"score_calibration": {"dot": (0.0, 0.0)}}, "the slope of 'dot' is 0.0; it must be above 0"),
    ],
)
def test_training_data_that_do_not_fit_are_refused(detector: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_detection(detector, **keys)


@pytest.mark.parametrize(
    ("keys", "evaluated", "message"),
    [
        ({}, DatasetInfo(4, channels=3, classes=("dot", "bar"), boxes=True), "3 channels"),
        ({}, NO_BOXES, "no boxes"),
        ({}, DatasetInfo(4, channels=1, classes=("bar", "dot"), boxes=True), "the order counts"),
        ({}, DatasetInfo(4, channels=1, classes=("dot",), boxes=True), "missing: bar"),
        ({"detector": RotatedBoxes}, DATASET_INFO, "its boxes are upright, those of the detector oriented"),
        ({"detector": RotatedBoxes, "evaluator": Coco}, ORIENTED, "boxes of the data are oriented: take dota_map"),
    ],
)
def test_evaluation_data_that_do_not_fit_are_refused(
    keys: dict[str, Any], evaluated: DatasetInfo, message: str
) -> None:
    trained = ORIENTED if "detector" in keys else DATASET_INFO
    with pytest.raises(ValueError, match=message):
        make_detection(**keys, dataset_info=trained).evaluators(evaluated)


def test_detectors_have_their_evaluator_and_size_multiple() -> None:
    assert make_detection().size_multiple == 4 and make_detection(size_multiple=16).size_multiple == 16
    assert [type(evaluator) for evaluator in make_detection().evaluators(DATASET_INFO)] == [Coco, MeanLosses]
    evaluator, _ = make_detection(RotatedBoxes, ORIENTED).evaluators(ORIENTED)
    assert isinstance(evaluator, DotaMap)
    assert make_detection(RotatedBoxes, replace(DATASET_INFO, samples=0)).detector.oriented, "weights without a run"


def test_stages_of_the_backbone_can_be_frozen() -> None:
    frozen: list[int] = []

    class Staged(Pixels):
        def freeze_stages(self, count: int) -> None:
            frozen.append(count)

    Detection(DATASET_INFO, backbone=Staged, detector=partial(BrightBox), freeze_stages=2)
    assert frozen == [2]
