import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.contracts import GroundTruth, Source
from opabinia.data.sources.digit_scenes import FLIP_PAIRS, KEYPOINTS, SCENES, SIDE, DigitScenes, load_scenes, make_scene
from opabinia.data.sources.digits import load_digits, split_digits


def write_coco(folder: Path) -> None:
    """Write the scenes (PNG) and ``annotations/instances_{train,val}.json`` in COCO's format."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for split in SCENES:
        (folder / split).mkdir(exist_ok=True)
        source = DigitScenes(split=split, masks=True, keypoints=True)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for sample in (source[index] for index in range(len(source))):
            ground_truth: GroundTruth = sample["ground_truth"]
            Image.fromarray(sample["image"][0].numpy()).save(folder / sample["id"])
            name = sample["id"].removeprefix(f"{split}/")
            images.append({"id": ground_truth.image_id, "file_name": name, "height": SIDE, "width": SIDE})
            annotations.extend(_coco_annotations(ground_truth))
        categories = [
            {"id": number, "name": name, "keypoints": KEYPOINTS, "skeleton": [[1, 2], [3, 4]]}
            for number, name in zip(source.info.category_ids, source.classes, strict=True)
        ]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))


def _coco_annotations(ground_truth: GroundTruth) -> Iterator[dict[str, Any]]:
    assert ground_truth.segments is not None and ground_truth.keypoints is not None
    for row, segment in enumerate(ground_truth.segments):
        yield {
            "id": int(ground_truth.ids[row]),
            "image_id": ground_truth.image_id,
            "category_id": int(ground_truth.labels[row]) + 1,
            "bbox": ground_truth.boxes[row].tolist(),
            "area": float(ground_truth.areas[row]),
            "iscrowd": 0,
            "segmentation": segment,
            "keypoints": ground_truth.keypoints[row].astype(int).ravel().tolist(),
            "num_keypoints": int((ground_truth.keypoints[row, :, 2] > 0).sum()),
        }


WITH_NUMPY_2 = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools


@pytest.fixture(scope="module")
def val() -> DigitScenes:
    return DigitScenes(split="val", masks=True, keypoints=True)


def test_scenes_hold_one_to_six_digits_of_all_classes(val: DigitScenes) -> None:
    assert isinstance(val, Source)
    for split, number in (("train", 1600), ("val", 400)):
        scenes = load_scenes(split)  # type: ignore[arg-type]
        assert scenes["images"].shape == (number, SIDE, SIDE)
        assert np.unique(scenes["counts"]).tolist() == [1, 2, 3, 4, 5, 6]
        class_counts = np.bincount(scenes["labels"], minlength=10)
        assert class_counts.min() > 0.8 * class_counts.mean()
        heights = scenes["boxes"][:, 3].astype(int) - scenes["boxes"][:, 1]
        assert heights.min() < 24 and heights.max() > 55


def test_the_scenes_are_the_same_on_every_machine() -> None:
    parts = [load_scenes("train"), load_scenes("val")]
    sums = [[int(part[key].sum(dtype=np.int64)) for key in ("images", "owners", "boxes", "points")] for part in parts]
    assert sums == [[1975063301, 6907556, 1425039, 2879525], [486276272, 1727312, 363065, 734155]]


def test_cached_scenes_equal_newly_made_ones() -> None:
    """A change of the generator needs a new name of the cached file."""
    digits, labels = load_digits()
    scenes = load_scenes("val")
    scene = make_scene(digits[split_digits(labels)["val"]], 646300219)
    assert np.array_equal(scene.image, scenes["images"][0]) and np.array_equal(scene.owners, scenes["owners"][0])


def test_boxes_are_tight_around_visible_pixels(val: DigitScenes) -> None:
    for index in range(0, len(val), 7):
        sample = val[index]
        assert sample["masks"].sum(0).max() == 1, "a pixel belongs to one object"
        for mask, box in zip(sample["masks"], sample["boxes"].tolist(), strict=True):
            rows, columns = mask.nonzero().T.tolist()
            assert box == [min(columns), min(rows), max(columns) + 1, max(rows) + 1]


def test_keypoints_lie_on_the_edges_of_an_uncovered_digit(val: DigitScenes) -> None:
    single_digit = [index for index in range(len(val)) if len(val[index]["labels"]) == 1]
    for index in single_digit[::5]:
        sample = val[index]
        left, top, right, bottom = sample["boxes"][0].tolist()
        points = sample["keypoints"][0]
        assert [points[0, 1], points[1, 1], points[2, 0], points[3, 0]] == [
            top + 0.5,
            bottom - 0.5,
            left + 0.5,
            right - 0.5,
        ]
        columns, rows = points.long().T
        assert sample["masks"][0, rows, columns].all() and sample["visibility"].eq(2).all()
    assert sample["flip_pairs"] == list(FLIP_PAIRS) and [val.info.keypoints[partner] for partner in FLIP_PAIRS] == [
        "top",
        "bottom",
        "right",
        "left",
    ]


def test_a_covered_keypoint_is_labelled_but_not_visible(val: DigitScenes) -> None:
    num_covered = 0
    for index in range(len(val)):
        sample = val[index]
        for mask, points, visibility in zip(sample["masks"], sample["keypoints"], sample["visibility"], strict=True):
            columns, rows = points.long().T
            assert (mask[rows, columns] == (visibility == 2)).all()
            num_covered += int((visibility == 1).sum())
    assert num_covered > 20


def test_the_ground_truth_agrees_with_the_sample(val: DigitScenes) -> None:
    ids = []
    for index in (0, 3, 399):
        sample = val[index]
        ground_truth: GroundTruth = sample["ground_truth"]
        corners = np.concatenate(
            [ground_truth.boxes[:, :2], ground_truth.boxes[:, :2] + ground_truth.boxes[:, 2:]], axis=1
        )
        assert np.array_equal(corners, sample["boxes"].numpy()) and ground_truth.image_id == index
        assert np.array_equal(ground_truth.areas, sample["masks"].sum((1, 2)).numpy()) and not ground_truth.crowd.any()
        assert np.array_equal(ground_truth.labels, sample["labels"].numpy())
        assert val.info.present[index].tolist() == sorted(set(ground_truth.labels.tolist()))
        assert ground_truth.keypoints is not None and ground_truth.segments is not None
        assert np.array_equal(ground_truth.keypoints[:, :, :2] + 0.5, sample["keypoints"].numpy())
        assert np.array_equal(ground_truth.keypoints[:, :, 2], sample["visibility"].numpy())
        for segment, mask in zip(ground_truth.segments, sample["masks"], strict=True):
            values = np.arange(len(segment["counts"])) % 2
            assert np.array_equal(np.repeat(values, segment["counts"]).reshape(SIDE, SIDE).T, mask.numpy())
        ids += ground_truth.ids.tolist()
    assert len(set(ids)) == len(ids) and min(ids) == 1


def test_masks_and_keypoints_are_optional() -> None:
    source = DigitScenes(split="val")
    sample = source[-1]
    assert sample.keys() == {"image", "boxes", "labels", "id", "original_size", "ground_truth"}
    assert (source.info.boxes, source.info.masks, source.info.keypoints) == (True, False, ())
    assert sample["ground_truth"].segments is None and sample["ground_truth"].keypoints is None
    assert sample["id"] == "val/000399.png"
    with pytest.raises(IndexError):
        source[400]


@WITH_NUMPY_2
@pytest.mark.slow
def test_scenes_written_as_coco_are_read_by_pycocotools(tmp_path: Path, val: DigitScenes) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    write_coco(tmp_path)
    reference = coco.COCO(tmp_path / "annotations" / "instances_val.json")
    assert len(reference.imgs) == len(val) and len(list((tmp_path / "train").iterdir())) == 1600
    sample = val[5]
    assert np.array_equal(np.array(Image.open(tmp_path / sample["id"])), sample["image"][0].numpy())
    annotations = reference.loadAnns(reference.getAnnIds(imgIds=[5]))
    assert [annotation["category_id"] - 1 for annotation in annotations] == sample["labels"].tolist()
    for annotation, mask in zip(annotations, sample["masks"], strict=True):
        assert np.array_equal(reference.annToMask(annotation), mask.numpy())
    categories = json.loads((tmp_path / "annotations" / "instances_val.json").read_text())["categories"]
    assert [category["name"] for category in categories] == list(val.classes)
