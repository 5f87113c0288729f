"""The task of detection: what it makes of batches, and where in images its answers lie."""

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
from opabinia.inference.predictor import Prediction
from opabinia.tasks.dense_base import TestTimeAugmentation, image_area, mirror
from opabinia.tasks.detection import Detection
from opabinia.tasks.detection.task import ReadableDetections
from opabinia.tasks.detection.tiles import Tiles, merge_tiles, move_to_image, tile_starts
from opabinia.tasks.detections_base import scale_to_original, stack_detections, targets_from

FACTS = DatasetInfo(samples=4, channels=1, classes=("dot", "bar"), boxes=True)
SIDE = 8


class Pixels(Backbone):
    """Gives the normalised images themselves."""

    out_channels = 1

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def enable_multi_scale(self) -> list[Level]:
        return [Level(1, 1)]

    def pyramid_features(self, images: Tensor) -> list[Tensor]:
        return [images * self.scale]


class Brightest(Detector):
    """Finds what is brighter than the mean colour: one box around it, its score the share of it that is full."""

    size_multiple = 4
    max_detections = 3

    def __init__(self, levels: Sequence[Level], dataset_info: DatasetInfo) -> None:
        super().__init__()

    def losses(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        assert maps[0].shape[-2:] == shape
        wanted = sum((target.boxes.sum() for target in targets), torch.zeros(()))
        return {
            "loss_box": maps[0].sum() * 0 + wanted,
            "loss_drawn": torch.rand(()) + maps[0].sum() * 0,
            "count": torch.tensor(float(sum(len(target.labels) for target in targets))),
        }

    def detect(self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes) -> list[Detections]:
        assert maps[0].shape[-2:] == shape
        return [self._found(one[0], size) for one, size in zip(maps[0], sizes, strict=True)]

    def _found(self, values: Tensor, size: tuple[int, int]) -> Detections:
        assert not values[size[0] :].any() and not values[:, size[1] :].any(), "padding is the mean colour"
        rows, columns = (values > 0.5).nonzero().unbind(1)
        if not len(rows):
            return Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
        box = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        return Detections(box[None].float(), torch.tensor([0.75]), torch.tensor([1]))


class Halves(Brightest):
    """Also gives masks, of which the left half is full, and one point, at the left upper corner."""

    def describe(
        self, maps: Sequence[Tensor], shape: tuple[int, int], sizes: Sizes, found: Sequence[Detections]
    ) -> list[Detections]:
        bright = []
        for one, image in zip(found, maps[0], strict=True):
            masks = torch.zeros(len(one.boxes), 2, 2)
            for number, (left, top, right, bottom) in enumerate(one.boxes.round().int().tolist()):
                middle = (left + right) // 2
                for side, columns in enumerate((slice(left, middle), slice(middle, right))):
                    masks[number, :, side] = image[0, top:bottom, columns].mean().detach()
            points = torch.cat([one.boxes[:, None, :2], torch.ones(len(one.boxes), 1, 1)], 2)
            bright.append(one._replace(masks=masks, keypoints=points))
        return bright


def detection(detector: Any = Brightest, dataset_info: DatasetInfo = FACTS, **keys: Any) -> Detection:
    return Detection(dataset_info, backbone=Pixels, detector=detector, mean=[0.2], std=[1.0], **keys).eval()


def sample(
    size: tuple[int, int],
    box: tuple[int, int, int, int] | None,
    name: str = "a",
    original_size: tuple[int, int] | None = None,
) -> dict[str, Any]:
    image = torch.zeros(1, *size)
    if box is not None:
        image[0, box[1] : box[3], box[0] : box[2]] = 1
    boxes = torch.tensor([box] if box else []).view(-1, 4).float()
    nothing = np.zeros(0)
    ground_truth = GroundTruth(
        name, size, nothing.astype(int), nothing.reshape(0, 4), nothing.astype(int), nothing, nothing > 0
    )
    labels = torch.ones(len(boxes), dtype=torch.int64)
    found = {"image": image, "boxes": boxes, "labels": labels, "id": name, "original_size": original_size or size}
    return {**found, "ground_truth": ground_truth}


def batch_of(*samples: dict[str, Any]) -> Batch:
    return collate(samples, 4)


TWO = (sample((8, 8), (2, 3, 6, 7)), sample((5, 11), (1, 0, 4, 2), "b", original_size=(10, 33)))


def rows(found: Predictions, image: int) -> list[list[float]]:
    return found["boxes"][image][found["labels"][image] >= 0].tolist()  # type: ignore[no-any-return]


# --- where objects are ------------------------------------------------------------------------------------------------


def test_boxes_are_in_the_pixels_of_the_image_as_it_was_read() -> None:
    found = detection().predict(batch_of(*TWO))
    assert found["boxes"].shape == (2, 3, 4)
    assert rows(found, 0) == [[2, 3, 6, 7]]
    assert rows(found, 1) == [[3, 0, 12, 4]]  # three times as wide, twice as high
    assert found["labels"].tolist() == [[1, -1, -1], [1, -1, -1]]
    assert found["scores"].tolist() == [[0.75, 0, 0], [0.75, 0, 0]]


def test_boxes_are_cut_off_at_the_edges_of_the_image() -> None:
    found = Detections(torch.tensor([[-1.0, 2, 9, 20]]), torch.ones(1), torch.zeros(1, dtype=torch.int64))
    assert scale_to_original(found, (8, 8), (16, 8)).boxes.tolist() == [[0, 4, 8, 16]]


def test_keypoints_follow_the_image_too() -> None:
    points = torch.tensor([[[1.0, 2.0, 0.5]]])
    found = Detections(torch.zeros(1, 4), torch.ones(1), torch.zeros(1, dtype=torch.int64), None, points)
    assert scale_to_original(found, (4, 4), (8, 12)).keypoints.tolist() == [[[3, 4, 0.5]]]  # type: ignore[union-attr]


def test_an_image_is_found_the_same_in_any_batch() -> None:
    task = detection()
    alone = [task.predict(batch_of(one)) for one in TWO]
    together = task.predict(batch_of(*TWO))
    for number, one in enumerate(alone):
        assert torch.equal(one["boxes"][0], together["boxes"][number])


def test_what_lies_outside_of_an_image_is_known() -> None:
    mask = image_area(torch.zeros(2, 1, 2, 3), [(2, 3), (1, 2)])
    assert mask[:, 0].int().tolist() == [[[1, 1, 1], [1, 1, 1]], [[1, 1, 0], [0, 0, 0]]]


def test_an_image_without_anything_has_no_rows() -> None:
    found = detection().predict(batch_of(sample((8, 8), None)))
    assert found["labels"].tolist() == [[-1, -1, -1]]
    assert detection().readable({name: value[0] for name, value in found.items()}) == {"detections": []}


def test_rows_are_filled_up() -> None:
    one = Detections(torch.ones(1, 4), torch.ones(1), torch.ones(1, dtype=torch.int64), masks=torch.ones(1, 2, 2))
    none = Detections(torch.ones(0, 4), torch.ones(0), torch.ones(0, dtype=torch.int64), masks=torch.ones(0, 2, 2))
    found = stack_detections([one, none], 2)
    assert found["labels"].tolist() == [[1, -1], [-1, -1]]
    assert found["masks"].shape == (2, 2, 2, 2)
    assert "keypoints" not in found


def test_people_read_classes_scores_and_boxes() -> None:
    found = detection().predict(batch_of(TWO[0]))
    said = detection().readable({name: value[0] for name, value in found.items() if not name.startswith("losses/")})
    assert said == {"detections": [{"class": "bar", "score": 0.75, "box": [2.0, 3.0, 6.0, 7.0]}]}


def test_masks_are_readable_in_pixels_of_the_original_image() -> None:
    found = {
        "labels": torch.tensor([1, -1]),
        "scores": torch.tensor([0.75, 0.0]),
        "boxes": torch.tensor([[1.0, 0.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]]),
        "masks": torch.ones(2, 4, 4),
        "image_size": torch.tensor([3, 4]),
    }
    prediction = Prediction(found, detection().readable(found))
    assert prediction.instance_masks.int().tolist() == [[[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]]
    row = json.loads(json.dumps(prediction.readable))["detections"][0]
    assert row["polygons"] == [[1, 0, 3, 0, 3, 2, 1, 2]] and row["mask"]["size"] == [3, 4]
    assert prediction["masks"].shape == (2, 4, 4), "the tensors are as before"
    with pytest.raises(ValueError, match="predicts no masks"):
        Prediction({}, {}).instance_masks  # noqa: B018


# --- what is to be learned --------------------------------------------------------------------------------------------


def test_targets_are_those_of_the_batch() -> None:
    points = {"keypoints": torch.tensor([[[1.0, 2.0]]]), "visibility": torch.tensor([[2]])}
    batch = batch_of({**TWO[0], **points})
    (target,) = targets_from(batch)
    assert target.boxes.tolist() == [[2, 3, 6, 7]]
    assert target.labels.tolist() == [1]
    assert target.masks is None
    assert target.keypoints is not None and target.keypoints.tolist() == [[[1, 2, 2]]]


def test_losses_and_numbers_of_the_detector_are_reported_by_name() -> None:
    said = detection()(batch_of(*TWO), Clock())
    assert float(said["loss_box"].detach()) == 18 + 7
    assert float(said["count"]) == 2


def test_validation_losses_are_the_same_each_time_and_draw_nothing() -> None:
    task = detection()
    torch.manual_seed(5)
    first = task.predict(batch_of(*TWO))
    after = torch.rand(())
    second = task.predict(batch_of(*TWO))
    assert first["losses/loss_drawn"].tolist() == second["losses/loss_drawn"].tolist()
    assert first["losses/loss"].shape == (2,)
    assert torch.allclose(first["losses/loss"], first["losses/loss_box"] + first["losses/loss_drawn"])
    torch.manual_seed(5)
    assert torch.rand(()) == after


def test_without_boxes_in_the_batch_there_are_no_losses() -> None:
    batch = {key: value for key, value in batch_of(*TWO).items() if key not in ("boxes", "labels")}
    assert not [name for name in detection().predict(batch) if name.startswith("losses")]
    assert not [name for name in detection(validation_loss=False).predict(batch_of(*TWO)) if "losses" in name]


def test_the_old_key_of_a_readable_prediction_still_works() -> None:
    readable = ReadableDetections(detections=[1])
    with pytest.warns(DeprecationWarning, match="'things' of a prediction is now 'detections'"):
        assert readable["things"] == [1]
    with pytest.warns(DeprecationWarning):
        assert readable.get("things") == [1]
    assert readable.get("top") is None and list(readable) == ["detections"]
    with pytest.raises(KeyError):
        readable["top"]


# --- several views ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scales", [[1.0], [2.0], [1.0, 2.0]], ids=str)
def test_views_agree_on_what_is_there(scales: list[float]) -> None:
    found = detection(test_time_augmentation=TestTimeAugmentation(scales=scales)).predict(batch_of(*TWO))
    for number, expected in enumerate(([2, 3, 6, 7], [3, 0, 12, 4])):
        (box,) = rows(found, number)
        assert np.allclose(box, expected, atol=1.6), box  # a view twice as large is blurred


@pytest.mark.parametrize(("loss", "passes"), [(True, 5), (False, 4)])
def test_a_view_is_looked_at_once(loss: bool, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sizes and their mirror images, and what the losses are computed of."""
    task = detection(test_time_augmentation=TestTimeAugmentation(scales=[1.0, 2.0]), validation_loss=loss)
    seen: list[Tensor] = []
    look = task.backbone.pyramid_features
    monkeypatch.setattr(task.backbone, "pyramid_features", lambda images: seen.append(images) or look(images))
    task.predict(batch_of(*TWO))
    assert len(seen) == passes


def test_views_are_padded_as_a_person_says() -> None:
    task = detection(size_multiple=32, test_time_augmentation=TestTimeAugmentation(scales=[1.5]), validation_loss=False)
    shapes: list[tuple[int, int]] = []
    find = task.detector.detect
    task.detector.detect = lambda maps, shape, sizes: shapes.append(shape) or find(maps, shape, sizes)  # type: ignore[method-assign, func-returns-value]
    task.predict(collate([TWO[0]], 32))
    assert shapes == [(64, 64)] * 2  # 48 pixels, rounded up


def test_images_are_mirrored_where_they_are() -> None:
    images = torch.tensor([[[[1, 2, 3]]], [[[4, 5, 0]]]])
    assert mirror(images, [(1, 3), (1, 2)])[:, 0, 0].tolist() == [[3, 2, 1], [5, 4, 0]]


def test_masks_of_views_are_turned_back_and_averaged() -> None:
    one = sample((8, 8), (2, 2, 6, 6))
    one["image"][0, 2:6, 4:6] = 0.8  # the right half is darker
    plain = detection(Halves).predict(batch_of(one))
    views = detection(Halves, test_time_augmentation=TestTimeAugmentation(scales=[1.0])).predict(batch_of(one))
    assert plain["masks"][0, 0, 0].tolist() == pytest.approx([0.8, 0.6])
    assert torch.allclose(views["masks"], plain["masks"])
    assert views["keypoints"][0, 0].tolist() == [[2, 2, 1]]


# --- tiles ------------------------------------------------------------------------------------------------------------


class EachDot(Halves):
    """Finds one box for each bright value: above 2 it is of the second class, its score is the fraction."""

    max_detections = 4

    def _found(self, values: Tensor, size: tuple[int, int]) -> Detections:
        rows = []
        for value in (values + 0.2).unique().tolist():
            if value > 0.5:
                y, x = ((values + 0.2) == value).nonzero().unbind(1)
                rows.append((x.min(), y.min(), x.max() + 1, y.max() + 1, value % 1, value > 2))
        found = torch.tensor(rows).view(-1, 6)
        return Detections(found[:, :4], found[:, 4], found[:, 5].long())


def scene_of(*boxes: tuple[int, int, int, int, float], size: tuple[int, int] = (40, 60)) -> dict[str, Any]:
    one = sample(size, None)
    for left, top, right, bottom, value in boxes:
        one["image"][0, top:bottom, left:right] = value
    return one


def test_detections_of_tiles_are_those_of_the_whole_image() -> None:
    """Objects within one tile, within several, and such that a border cuts and the next tile shows as a whole; images
    smaller than a tile and without objects; masks and keypoints move along. Whatever the batch of tiles."""
    scenes = [
        scene_of((1, 2, 5, 5, 1.5), (13, 13, 18, 18, 1.75), (50, 30, 60, 40, 2.25), (30, 14, 37, 17, 2.875)),
        scene_of((3, 0, 9, 4, 1.5), size=(7, 11)),
        scene_of(),
        scene_of((33, 1, 37, 6, 2.5), size=(9, 44)),
    ]
    whole = detection(EachDot).predict(batch_of(*scenes))
    for batch_size in (1, 5):
        tiles = Tiles(size=16, overlap=0.5, batch_size=batch_size, max_detections=6)
        tiled = detection(EachDot, tiles=tiles).predict(batch_of(*scenes))
        assert tiled["labels"].shape == (4, 6)
        assert not [name for name in tiled if name.startswith("losses/")]
        for number in range(4):
            count = int((whole["labels"][number] >= 0).sum())
            order = whole["scores"][number, :count].argsort(descending=True)
            for name in ("boxes", "scores", "labels", "masks", "keypoints"):
                assert torch.equal(tiled[name][number, :count], whole[name][number][order]), (number, name)
            assert (tiled["labels"][number, count:] == -1).all()


def test_complete_boxes_replace_cut_ones() -> None:
    """Of a class; and not two complete ones next to each other. A box that no tile shows as a whole is kept."""
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
    by_tile = [Detections(*(values[part] for values in rows[:3])) for part in (slice(0, 3), slice(3, 6))]
    cut = [torch.tensor([False, False, False]), torch.tensor([True, True, True])]
    kept = merge_tiles(by_tile, cut, Tiles(size=32))
    assert kept.scores.tolist() == pytest.approx([0.9, 0.9, 0.8, 0.5, 0.3])
    assert kept.masks is None and kept.labels.tolist() == [0, 1, 0, 0, 0]
    assert merge_tiles(by_tile, cut, Tiles(size=32, max_detections=2)).scores.tolist() == pytest.approx([0.9, 0.9])
    tile = Detections(torch.tensor([[0.0, 4, 8, 12], [8.0, 8, 16, 16], [4.0, 4, 9, 9]]), torch.ones(3), labels[:3])
    moved, is_cut = move_to_image(tile, (24, 0), (16, 16), (40, 40))
    assert moved.boxes[0].tolist() == [24, 4, 32, 12] and is_cut.tolist() == [True, True, False]
    assert move_to_image(tile, (24, 24), (16, 16), (40, 40))[1].tolist() == [True, False, False]


def test_many_boxes_of_many_tiles_take_little_memory() -> None:
    """Pairs of all 20,000 cut and complete boxes would take gigabytes."""
    corners = 50.0 * torch.arange(20_000)[:, None] + torch.zeros(1, 4)
    boxes = corners + torch.tensor([0.0, 0.0, 20.0, 20.0])
    rows = [
        Detections(part, torch.rand(len(part)), torch.zeros(len(part), dtype=torch.int64)) for part in boxes.chunk(4)
    ]
    cut = [torch.arange(len(one.boxes)) % 2 == 0 for one in rows]
    assert len(merge_tiles(rows, cut, Tiles(size=32, max_detections=10)).boxes) == 10


def test_tiles_cover_the_image() -> None:
    assert tile_starts(1000, Tiles(size=400, overlap=0.25)) == [0, 300, 600]
    assert tile_starts(1001, Tiles(size=400, overlap=0.25)) == [0, 300, 600, 601]
    assert tile_starts(800, Tiles(size=400, overlap=0)) == [0, 400]
    assert tile_starts(30, Tiles(size=400)) == tile_starts(400, Tiles(size=400)) == [0]


def test_tiles_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"tiles.size: 3 is below 4, the detector's smallest"):
        detection(tiles=Tiles(size=3))
    shrunk = [{**scene_of(size=(8, 8)), "original_size": (80, 80)}]
    with pytest.warns(UserWarning, match=r"resize 80 x 80 to 8 x 8, a single tile; .*data.val.transforms=\[\]"):
        detection(tiles=Tiles(size=16)).predict(batch_of(*shrunk))


class BothClasses(Brightest):
    """Finds two objects that overlap, of different classes, and one on its own."""

    def _found(self, values: Tensor, size: tuple[int, int]) -> Detections:
        boxes = torch.tensor([[0.0, 0, 10, 10], [3.0, 0, 10, 10], [20.0, 20, 24, 24]])
        return Detections(boxes, torch.tensor([0.5, 0.75, 0.25]), torch.tensor([0, 1, 0]))


def test_suppression_across_classes() -> None:
    for class_agnostic_nms, scores in ((None, [0.5, 0.75, 0.25]), (0.6, [0.75, 0.25]), (0.75, [0.75, 0.5, 0.25])):
        found = detection(BothClasses, class_agnostic_nms=class_agnostic_nms).predict(batch_of(scene_of()))
        assert found["scores"][0][found["labels"][0] >= 0].tolist() == scores


def test_scores_are_calibrated_and_sorted() -> None:
    maps = {FACTS.classes[1]: (1.0, -3.0)}
    found = detection(BothClasses, score_calibration=maps).predict(batch_of(scene_of()))
    assert found["scores"][0, :3].tolist() == pytest.approx([0.5, 0.25, 3 / (3 + np.e**3)])
    assert found["labels"][0, :3].tolist() == [0, 0, 1]


# --- oriented boxes ---------------------------------------------------------------------------------------------------


class Turned(Brightest):
    """The boxes of ``EachDot`` as oriented ones, turned by 90 degrees."""

    oriented = True
    max_detections = 4

    def _found(self, values: Tensor, size: tuple[int, int]) -> Detections:
        found = EachDot._found(self, values, size)  # type: ignore[arg-type]
        x, y, width, height = box_convert(found.boxes, "xyxy", "cxcywh").unbind(1)
        return found._replace(boxes=torch.stack([x, y, height, width, torch.full_like(x, 90)], 1))


ORIENTED = replace(FACTS, oriented=True)


def test_oriented_boxes_are_where_the_same_upright_ones_are() -> None:
    """In an image that was resized, in tiles, in mirrored and larger views, suppressed across classes."""
    scenes = [scene_of((1, 2, 5, 5, 1.5), (13, 13, 18, 18, 1.75), (50, 30, 60, 40, 2.25), (30, 14, 37, 17, 2.875))]
    scenes[0]["original_size"] = (80, 120)
    for options in (
        {},
        {"tiles": Tiles(size=16, overlap=0.5)},
        {"test_time_augmentation": TestTimeAugmentation(scales=[1.0])},
        {"class_agnostic_nms": 0.5},
    ):
        found = detection(Turned, ORIENTED, validation_loss=False, **options).predict(batch_of(*scenes))
        expected = detection(EachDot, validation_loss=False, **options).predict(batch_of(*scenes))
        count = int((expected["labels"] >= 0).sum())
        assert count == 4 and torch.equal(found["labels"], expected["labels"]), options
        assert torch.equal(found["scores"], expected["scores"])
        torch.testing.assert_close(upright_boxes(found["boxes"][0, :count]), expected["boxes"][0, :count])


def test_oriented_boxes_are_readable_and_drawn() -> None:
    task = detection(Turned, ORIENTED)
    boxes = torch.tensor([[[10.0, 10, 12, 6, 30]]])
    found = {"boxes": boxes, "scores": torch.tensor([[0.9]]), "labels": torch.tensor([[1]])}
    row = {name: values[0] for name, values in found.items()}
    (read,) = task.readable(row)["detections"]
    assert read["box"] == [10, 10, 12, 6, 30]
    assert read["corners"] == [[3.3, 10.4], [13.7, 4.4], [16.7, 9.6], [6.3, 15.6]]
    drawn = np.asarray(task.draw({"image": torch.zeros(1, 20, 20)}, row, DrawOptions(side=20, text=1)))
    assert drawn[4:6, 13].any() and not drawn[15, 16].any(), "a corner of the box, not one of the box around it"


def test_oriented_data_and_detectors_go_together() -> None:
    with pytest.raises(ValueError, match=r"training data are oriented, .* take rotated_fcos"):
        detection(dataset_info=ORIENTED)
    with pytest.raises(ValueError, match="training data are upright: take fcos"):
        detection(Turned)
    assert detection(Turned, replace(FACTS, samples=0)).detector.oriented, "weights without a run"
    with pytest.raises(ValueError, match="its boxes are upright, those of the detector oriented"):
        detection(Turned, ORIENTED).evaluators(FACTS)
    evaluator, _ = detection(Turned, ORIENTED).evaluators(ORIENTED)
    assert isinstance(evaluator, DotaMap)
    with pytest.raises(ValueError, match="boxes of the data are oriented: take dota_map"):
        detection(Turned, ORIENTED, evaluator=Coco).evaluators(ORIENTED)


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset_info", "message"),
    [(DatasetInfo(4, classes=("a",)), "no boxes|has boxes|coco"), (DatasetInfo(4, boxes=True), "has no classes")],
    ids=["no boxes", "no classes"],
)
def test_data_that_cannot_be_learned_is_refused(dataset_info: DatasetInfo, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        detection(dataset_info=dataset_info)


@pytest.mark.parametrize(
    ("dataset_info", "message"),
    [
        (DatasetInfo(4, 3, ("dot", "bar"), boxes=True), "3 channels"),
        (DatasetInfo(4, 1, ("dot", "bar")), "no boxes"),
        (DatasetInfo(4, 1, ("bar", "dot"), boxes=True), "the order counts"),
        (DatasetInfo(4, 1, ("dot",), boxes=True), "missing: bar"),
    ],
    ids=["channels", "boxes", "order", "missing"],
)
def test_sets_that_do_not_fit_the_training_data_are_refused(dataset_info: DatasetInfo, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        detection().evaluators(dataset_info)


def test_padding_is_what_the_detector_needs_unless_a_person_says_otherwise() -> None:
    assert detection().size_multiple == 4
    assert detection(size_multiple=16).size_multiple == 16


def test_features_are_one_vector_an_image() -> None:
    assert detection().features(batch_of(*TWO))["embedding"].shape == (2, 1)


def test_parts_of_the_backbone_can_be_frozen() -> None:
    frozen: list[int] = []

    class Staged(Pixels):
        def freeze_stages(self, count: int) -> None:
            frozen.append(count)

    Detection(FACTS, backbone=Staged, detector=partial(Brightest), freeze_stages=2)
    assert frozen == [2]
