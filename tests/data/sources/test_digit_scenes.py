import numpy as np
import pytest

from opabinia.contracts import GroundTruth, Source
from opabinia.data.sources.digit_scenes import FLIP_PAIRS, SIDE, DigitScenes, load_scenes, make_scene
from opabinia.data.sources.digits import load_digits, split_digits


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
    """A change of the generator needs a new name of the cached file."""
    parts = [load_scenes("train"), load_scenes("val")]
    sums = [[int(part[key].sum(dtype=np.int64)) for key in ("images", "owners", "boxes", "points")] for part in parts]
    assert sums == [[1975063301, 6907556, 1425039, 2879525], [486276272, 1727312, 363065, 734155]]
    digits, labels = load_digits()
    scenes = parts[1]
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
        edges = [top + 0.5, bottom - 0.5, left + 0.5, right - 0.5]
        assert [points[0, 1], points[1, 1], points[2, 0], points[3, 0]] == edges
        columns, rows = points.long().T
        assert sample["masks"][0, rows, columns].all() and sample["visibility"].eq(2).all()
    partners = [val.info.keypoints[partner] for partner in FLIP_PAIRS]
    assert sample["flip_pairs"] == list(FLIP_PAIRS) and partners == ["top", "bottom", "right", "left"]


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
