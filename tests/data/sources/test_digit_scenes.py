import numpy as np
import pytest

from opabinia.contracts import GroundTruth, Source
from opabinia.data.sources.digit_scenes import SIDE, DigitScenes, load_scenes, make_scene
from opabinia.data.sources.digits import load_digits, split_digits


@pytest.fixture(scope="module")
def val() -> DigitScenes:
    return DigitScenes(split="val", masks=True, keypoints=True)


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
    partners = [val.info.keypoints[partner] for partner in sample["flip_pairs"]]
    assert isinstance(val, Source) and partners == ["top", "bottom", "right", "left"]


def test_masks_and_keypoints_are_optional() -> None:
    source = DigitScenes(split="val")
    sample = source[-1]
    assert sample.keys() == {"image", "boxes", "labels", "id", "original_size", "ground_truth"}
    assert (source.info.boxes, source.info.masks, source.info.keypoints) == (True, False, ())
    assert sample["ground_truth"].segments is None and sample["ground_truth"].keypoints is None
    assert sample["id"] == "val/000399.png"
    with pytest.raises(IndexError):
        source[400]
