"""Objects in the JSON of COCO, LVIS and Roboflow; invalid annotations are reported, clipped or dropped."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from opabinia.contracts import Source
from opabinia.data.collate import collate
from opabinia.data.sources import coco, roboflow
from opabinia.data.sources.detection_base import AnnotatedImages, flip_pairs
from scripts import small_data

Content = dict[str, Any]
OLD_NUMPY = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools
REAL = Path(__file__).resolve().parents[3].parent / "shared" / "data"


@pytest.fixture(autouse=True)
def propagating_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in another test may have disabled propagation of the log."""
    monkeypatch.setattr(logging.getLogger("opabinia"), "propagate", True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    small_data.coco(tmp_path)
    return tmp_path


def changed(root: Path, change: Callable[[Content], object] = lambda content: None) -> Path:
    """Change the annotations, and return their file."""
    content = json.loads((root / "annotations.json").read_text())
    change(content)
    (root / "annotations.json").write_text(json.dumps(content))
    return root / "annotations.json"


def read(root: Path, change: Callable[[Content], object] = lambda content: None, **keys: Any) -> AnnotatedImages:
    return coco(root=root, file=changed(root, change), **keys)


# --- valid annotations ------------------------------------------------------------------------------------------------


def test_boxes_and_labels(root: Path) -> None:
    source = read(root)
    assert isinstance(source, Source)
    assert len(source) == 4 and source.channels == 3
    assert source.classes == ("block", "bar") and source.info.category_ids == (3, 7)
    assert source.info.boxes and not source.info.masks and source.info.keypoints == () and source.info.frequencies == ()
    assert source.info.sizes.tolist() == [[48, 64]] * 4
    for sample, scene in zip((source[number] for number in range(4)), small_data.scenes(), strict=True):
        objects = scene.objects[:2]  # the third is a crowd
        assert sample["id"] == f"{scene.name}.png" and sample["original_size"] == (48, 64)
        assert isinstance(sample["image"], tv_tensors.Image) and sample["image"].shape == (3, 48, 64)
        assert isinstance(sample["boxes"], tv_tensors.BoundingBoxes) and sample["boxes"].dtype == torch.float32
        corners = [[left, top, left + width, top + height] for _, left, top, width, height in objects]
        assert sample["boxes"].tolist() == corners
        assert sample["labels"].tolist() == [label for label, *_ in objects] and sample["labels"].dtype == torch.int64
        assert "masks" not in sample and "keypoints" not in sample
    assert [labels.tolist() for labels in source.info.present] == [[], [0], [0, 1], [0, 1]]


def test_ground_truth_is_that_of_the_file(root: Path) -> None:
    def shift(content: Content) -> None:
        content["annotations"][0] |= {"bbox": [-0.75, 10, 20, 10], "area": 123.5}

    source = read(root, shift, masks=True, keypoints=True)
    ground_truth = source[1]["ground_truth"]
    assert (ground_truth.image_id, ground_truth.size, ground_truth.ids.tolist()) == (11, (48, 64), [100])
    assert ground_truth.boxes.tolist() == [[-0.75, 10, 20, 10]] and ground_truth.boxes.dtype == np.float64
    assert (
        ground_truth.areas.tolist() == [123.5]
        and ground_truth.labels.tolist() == [0]
        and ground_truth.crowd.tolist() == [False]
    )
    assert source[1]["boxes"].tolist() == [[0, 10, 19.25, 20]], "training boxes are clipped to the image"
    crowd = source[3]["ground_truth"]
    assert crowd.crowd.tolist() == [False, False, True] and len(source[3]["boxes"]) == 2
    assert len(crowd.segments) == 3 and crowd.keypoints.shape == (3, 2, 3)
    assert crowd.segments[1]["size"] == [48, 64] and len(crowd.segments[0][0]) == 8


def test_a_missing_area_is_that_of_the_box(root: Path) -> None:
    assert read(root, annotation(bbox=[3, 1, 20, 10], area=None)).annotations.areas[0] == 200
    assert read(root, lambda content: content["annotations"][0].pop("area")).annotations.areas[0] == 200


@OLD_NUMPY
def test_masks_are_those_of_pycocotools(root: Path) -> None:
    pycocotools_coco = pytest.importorskip("pycocotools.coco")
    random = np.random.default_rng(0)

    def draw(content: Content) -> None:
        for number in (0, 1):
            content["annotations"][number]["segmentation"] = [
                np.column_stack([random.uniform(0, 64, count), random.uniform(0, 48, count)]).reshape(-1).tolist()
                for count in (3, 9)
            ]

    source = read(root, draw, masks=True)
    reference = pycocotools_coco.COCO(str(root / "annotations.json"))
    assert source.info.masks
    for number in range(4):
        sample = source[number]
        assert isinstance(sample["masks"], tv_tensors.Mask) and sample["masks"].dtype == torch.uint8
        assert sample["masks"].shape == (len(sample["boxes"]), 48, 64)
        ids = sample["ground_truth"].ids[~sample["ground_truth"].crowd].tolist()
        for mask, annotation in zip(sample["masks"].numpy(), ids, strict=True):
            np.testing.assert_array_equal(mask, reference.annToMask(reference.anns[annotation]))


@OLD_NUMPY
def test_compressed_rle_is_decoded_like_uncompressed(root: Path) -> None:
    mask = pytest.importorskip("pycocotools.mask")
    before = read(root, masks=True)[2]

    def compress(content: Content) -> None:
        for annotation in content["annotations"]:
            if isinstance(annotation["segmentation"], dict):
                runs = mask.frPyObjects(annotation["segmentation"], 48, 64)
                annotation["segmentation"] = {"size": [48, 64], "counts": runs["counts"].decode()}

    after = read(root, compress, masks=True)[2]
    assert torch.equal(before["masks"], after["masks"])
    assert after["masks"][1].sum() == after["ground_truth"].areas[1]
    assert before["ground_truth"].segments[1] == after["ground_truth"].segments[1]


def test_keypoints(root: Path) -> None:
    source = read(root, lambda content: content["annotations"][1].pop("keypoints"), keypoints=True)
    assert source.info.keypoints == ("left_corner", "right_corner")
    sample = source[2]
    assert isinstance(sample["keypoints"], tv_tensors.KeyPoints) and sample["keypoints"].dtype == torch.float32
    assert sample["visibility"].tolist() == [[0, 0], [2, 1]] and sample["flip_pairs"] == [1, 0]
    (_, left, top, width, _) = list(small_data.scenes())[2].objects[1]
    assert sample["keypoints"][1].tolist() == [[left + 0.5, top + 0.5], [left + width - 0.5, top + 0.5]]
    assert sample["ground_truth"].keypoints[1].tolist() == [[left, top, 2], [left + width - 1, top, 1]], (
        "as in the file"
    )


def test_left_and_right_keypoints_are_swapped_by_a_flip() -> None:
    assert flip_pairs(["nose", "left_eye", "right_eye"]) == [0, 2, 1]
    assert flip_pairs(["L-hand", "R-hand", "leftFoot", "rightFoot", "RIGHT", "LEFT", "left"]) == [1, 0, 3, 2, 5, 4, 6]
    assert flip_pairs(["bright", "tail", "left_fin"]) == [0, 1, 2], "a keypoint without a partner keeps its index"


def test_a_source_can_be_pickled_and_its_samples_collated(root: Path) -> None:
    source = pickle.loads(pickle.dumps(read(root, masks=True, keypoints=True)))
    batch = collate([source[number] for number in range(4)], size_multiple=32)
    assert batch["image"].shape == (4, 3, 64, 64) and [len(boxes) for boxes in batch["boxes"]] == [0, 1, 2, 2]
    assert [(len(runs), runs.shape[2]) for runs in batch["masks"]] == [(count, 2) for count in (0, 1, 2, 2)]
    assert [ground_truth.image_id for ground_truth in batch["ground_truth"]] == [10, 11, 12, 13]


def test_the_fingerprint_changes_with_the_annotations(root: Path) -> None:
    first = read(root).fingerprint()
    assert first == read(root).fingerprint() and first.startswith("4 images with 6 objects of 2 classes")
    assert first != read(root, lambda content: content["annotations"][2].update(bbox=[1, 1, 5, 5])).fingerprint()


# --- keys -------------------------------------------------------------------------------------------------------------


def test_classes_are_taken_in_the_given_order(root: Path) -> None:
    source = read(root, classes=["bar", "block"])
    assert source.info.category_ids == (7, 3) and source[2]["labels"].tolist() == [1, 0]
    bars = read(root, classes=["bar"])
    assert len(bars) == 4 and [len(bars[number]["ground_truth"].labels) for number in range(4)] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match=r"annotations\.json has no class 'bars'; there is bar"):
        read(root, classes=["bars"])
    with pytest.raises(ValueError, match="classes: 'bar' is listed twice"):
        read(root, classes=["bar", "bar"])


def test_images_without_objects_are_dropped_when_asked(root: Path) -> None:
    def only_a_crowd(content: Content) -> None:
        content["annotations"][0]["iscrowd"] = 1

    source = read(root, only_a_crowd, empty="drop")
    assert [source[number]["ground_truth"].image_id for number in range(len(source))] == [12, 13]
    assert [source[number]["id"] for number in range(2)] == ["2.png", "3.png"] and len(source.info.present) == 2


def test_images_with_only_crowds_are_reported(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    def only_crowds(content: Content) -> None:
        for annotation in content["annotations"]:
            annotation["iscrowd"] = 1

    caplog.set_level(logging.WARNING, "opabinia")
    read(root)
    assert not caplog.messages
    assert len(read(root, only_crowds)) == 4
    assert caplog.messages == [f"{root / 'annotations.json'}: there are no objects in its 4 images"]


def test_images_with_few_keypoints_are_dropped_when_asked(root: Path) -> None:
    def hide(content: Content) -> None:
        content["annotations"][0]["keypoints"] = [0, 0, 0, 5, 5, 1]

    assert len(read(root, hide, keypoints=True, min_keypoints=1)) == 3
    assert len(read(root, hide, keypoints=True, min_keypoints=2)) == 2
    with pytest.raises(ValueError, match="min_keypoints needs keypoints: true"):
        read(root, min_keypoints=1)
    with pytest.raises(ValueError, match="no image is left to train on"):
        read(root, keypoints=True, min_keypoints=5)


def test_lvis(root: Path) -> None:
    def as_lvis(content: Content) -> None:
        for category, frequency in zip(content["categories"], "fr", strict=True):
            category["frequency"] = frequency
        for image in content["images"]:
            image["coco_url"] = f"http://images.example.org/{root.name}/{image.pop('file_name')}"
            image |= {"neg_category_ids": [7], "not_exhaustive_category_ids": [3] if image["id"] == 12 else []}

    file = changed(root, as_lvis)
    source = coco(root=root.parent, file=file)
    assert source.info.frequencies == ("r", "f") and source[1]["id"] == f"{root.name}/1.png"
    assert source[2]["ground_truth"].absent == (1,) and source[2]["ground_truth"].not_exhaustive == (0,)
    assert source[1]["ground_truth"].not_exhaustive == ()
    assert coco(root=root.parent, file=file, classes=["block"])[2]["ground_truth"].absent == ()


def test_lvis_file_names_of_2014_are_taken_from_the_url(root: Path) -> None:
    def as_lvis(content: Content) -> None:
        for image in content["images"]:
            image["coco_url"] = f"http://images.example.org/{root.name}/{image['file_name']}"
            image |= {"file_name": f"COCO_val2014_{image['file_name']}", "neg_category_ids": []}

    assert read(root, as_lvis)[1]["id"] == "1.png"


def test_a_file_without_annotations_lists_images_for_prediction(root: Path) -> None:
    source = read(root, lambda content: content.pop("annotations"))
    assert len(source) == 4 and source.classes == ("block", "bar") and len(source[1]["boxes"]) == 0


# --- broken objects ---------------------------------------------------------------------------------------------------


def annotation(number: int = 0, **values: Any) -> Callable[[Content], object]:
    return lambda content: content["annotations"][number].update(values)


BROKEN: dict[str, tuple[Callable[[Content], object], str]] = {
    "negative width": (
        annotation(bbox=[9, 5, -4, 6]),
        r"1 box without area: 1\.png, annotation 100: left, top, width, height 9, 5, -4, 6 in 64 x 48 pixels",
    ),
    "no width": (annotation(bbox=[9, 5, 0, 6]), r"1 box without area: 1\.png, annotation 100: .* 9, 5, 0, 6"),
    "NaN": (
        annotation(bbox=[9, float("nan"), 4, 6]),
        r"not four finite numbers of at most 2\^24: 1\.png, annotation 100: bbox \[9, nan, 4, 6\]",
    ),
    "infinite": (
        annotation(bbox=[9, 5, float("inf"), 6]),
        r"not four finite numbers of at most 2\^24: 1\.png, annotation 100",
    ),
    "a text": (
        annotation(bbox=["9", 5, 4, 6]),
        r"not four finite numbers of at most 2\^24: 1\.png, annotation 100: bbox \['9', 5, 4, 6\]",
    ),
    "a huge number": (
        annotation(bbox=[9, 5, 10**400, 6]),
        r"not four finite numbers of at most 2\^24: 1\.png, annotation 100",
    ),
    "three numbers": (
        annotation(bbox=[9, 5, 4]),
        r"not four finite numbers of at most 2\^24: 1\.png, annotation 100: bbox \[9, 5, 4\]",
    ),
    "partly outside": (
        annotation(bbox=[10, 5, 60, 26]),
        r"1 box that extends beyond the image: 1\.png, annotation 100",
    ),
    "outside": (annotation(bbox=[70, 5, 20, 6]), r"1 box outside the image: 1\.png, annotation 100"),
    "polygon of two points": (
        annotation(segmentation=[[1, 1, 5, 5]]),
        r"neither polygons of three .*: 1\.png, annotation 100",
    ),
    "odd polygon": (annotation(segmentation=[[1, 1, 5, 5, 9, 1, 3]]), r"neither polygons of three"),
    "polygon of NaN": (annotation(segmentation=[[1, 1, 5, 5, 9, float("nan")]]), r"neither polygons of three"),
    "polygon outside": (
        annotation(segmentation=[[1, 1, 90, 5, 9, 1]]),
        r"1 segmentation that extends .*1, 1, 90, 5 in",
    ),
    "no outline": (annotation(segmentation=[]), r"1 object without a segmentation: 1\.png, annotation 100"),
    "runs of another size": (
        annotation(segmentation={"size": [64, 48], "counts": [3072]}),
        r"nor RLE of the image's size: 1\.png, annotation 100: size \[64, 48\], counts \[3072\]",
    ),
    "runs too short": (annotation(segmentation={"size": [48, 64], "counts": [-3, 9]}), "nor RLE of the image's size"),
    "keypoints too short": (
        annotation(keypoints=[1, 2, 2]),
        r"1 keypoint list that is not .*: 1\.png, annotation 100: 3 values, \[1, 2, 2\], expected 6 numbers",
    ),
    "unknown category": (annotation(category_id=5), r"1 unknown class: 1\.png, annotation 100: category_id 5"),
    "unlisted image": (annotation(image_id=99), r"1 unknown image: image 99, annotation 100: image_id 99"),
    "number twice": (annotation(1, id=100), r"1 id that is used more than once: 2\.png, annotation 100"),
    "image twice": (
        lambda content: content["images"].append({**content["images"][2]}),
        r"1 image that is listed more than once: 2\.png: as image 12 and 12",
    ),
    "file twice": (
        lambda content: content["images"].append({**content["images"][2], "id": 77}),
        r"1 image that is listed more than once: 2\.png: as image 12 and 77",
    ),
    "id twice": (
        lambda content: content["images"].append({**content["images"][2], "file_name": "9.png"}),
        r"1 image that is listed more than once: 9\.png: another image has the same id, 12",
    ),
    "missing image": (
        lambda content: content["images"].append({**content["images"][2], "id": 77, "file_name": "no.png"}),
        r"1 missing image: no\.png: not in",
    ),
}
STRUCTURE = (
    "unknown category",
    "unlisted image",
    "number twice",
    "image twice",
    "file twice",
    "id twice",
    "missing image",
)
CLIPPED = ("partly outside", "polygon outside")


@pytest.mark.parametrize("kind", BROKEN)
def test_invalid_annotations_are_reported_with_file_and_id(root: Path, kind: str) -> None:
    change, message = BROKEN[kind]
    with pytest.raises(ValueError, match=message) as error:
        read(root, change, masks=True, keypoints=True)
    assert str(error.value).startswith(str(root / "annotations.json")) and "broken: drop" in str(error.value)
    assert ("broken: clip" in str(error.value)) == (kind not in STRUCTURE)


@pytest.mark.parametrize("kind", BROKEN)
def test_clip_and_drop_leave_nothing_broken(root: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    change, _ = BROKEN[kind]
    changed(root, change)
    caplog.set_level(logging.WARNING, "opabinia")
    keys: dict[str, Any] = {"root": root, "file": root / "annotations.json", "masks": True, "keypoints": True}
    for broken in ("drop", "clip"):
        if broken == "clip" and kind in STRUCTURE:
            with pytest.raises(ValueError, match="broken: drop drops them"):
                coco(**keys, broken=broken)
            continue
        caplog.clear()
        source = coco(**keys, broken=broken)
        (line,) = caplog.messages
        assert line.startswith(str(root / "annotations.json")) and "dropped" in line
        assert len(source) == 4 and len(source.info.errors) == 1 and source.info.errors[0].count == 1
        samples = [source[number] for number in range(4)]
        remaining = 6 if kind in ("image twice", "file twice", "id twice", "missing image") else 5
        assert sum(len(sample["ground_truth"].ids) for sample in samples) == (
            6 if broken == "clip" and kind in CLIPPED else remaining
        )
        for sample in samples:
            left, top, right, bottom = sample["boxes"].unbind(1)
            assert (left >= 0).all() and (top >= 0).all() and (right <= 64).all() and (bottom <= 48).all()
            assert (left < right).all() and (top < bottom).all()


def test_clip_clips_boxes_and_polygons_to_the_image(root: Path) -> None:
    change = annotation(bbox=[50, 5, 20, 6], segmentation=[[50, 5, 70, 5, 70, 11, 50, 11]])
    sample = read(root, change, masks=True, broken="clip")[1]
    assert sample["boxes"].tolist() == [[50, 5, 64, 11]] and sample["ground_truth"].boxes.tolist() == [[50, 5, 20, 6]]
    assert sample["masks"].sum() == 14 * 6


def test_the_valid_ones_of_several_polygons_are_used(root: Path) -> None:
    change = annotation(segmentation=[[1, 1, 5, 5], [10, 10, 20, 10, 20, 20, 10, 20]])
    source = read(root, change, masks=True, broken="clip")
    assert source[1]["masks"].sum() == 100 and source.info.errors[0].count == 1


def test_at_most_a_pixel_outside_is_rounding(root: Path) -> None:
    source = read(root, annotation(bbox=[-1, -0.5, 66, 49.5]))
    assert source.info.errors == () and source[1]["boxes"].tolist() == [[0, 0, 64, 48]]


def test_the_first_ten_are_reported_and_all_are_counted(root: Path) -> None:
    def flatten(content: Content) -> None:
        first = content["annotations"][0]
        content["annotations"] += [{**first, "id": 200 + number, "bbox": [5, 5, 0, 0]} for number in range(30)]

    with pytest.raises(ValueError, match=r"30 boxes without area: ") as error:
        read(root, flatten)
    assert str(error.value).count("annotation 2") == 10 and "annotation 209:" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"images": [], "annotations": [{"id": 1, ', r"not complete JSON: .*, line 1, column 42; is it truncated\?"),
        (b"", r"not complete JSON: Expecting value, line 1, column 1"),
        (b"[]", "holds a list; expected an object with images, annotations, categories"),
        (b'{"images": []}', "has no 'annotations'; expected images, annotations, categories, found images"),
        (b'{"images": [], "annotations": []}', "has no 'categories'; expected"),
        (b'{"images": {}, "annotations": [], "categories": []}', "'images' is a dict; expected a list"),
        (
            b'{"images": [{"id": 1}], "annotations": [], "categories": []}',
            "images: 1 of 1 are not objects with id, width",
        ),
        (b'{"images": [], "annotations": [3], "categories": []}', "annotations: 1 of 1 are not .*: number 0: 3"),
        (b'{"images": [], "annotations": [], "categories": []}', "has no classes"),
        (b'{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}', "lists no image"),
        (
            b'{"images": [], "annotations": [], "categories": [{"id": "1", "name": "a"}]}',
            "category id '1' is not an",
        ),
        (b"\x80{}", "cannot be read"),
        (b"[" * 100_000, "cannot be read: maximum recursion depth"),
        (b"9" * 5000, "cannot be read: Exceeds the limit"),
    ],
)
@pytest.mark.parametrize("broken", ["error", "drop"])
def test_a_file_with_another_structure_is_reported(tmp_path: Path, content: bytes, message: str, broken: Any) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        coco(root=tmp_path, file=tmp_path / "a.json", broken=broken)
    assert str(tmp_path / "a.json") in str(error.value)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("images", {"id": 2**63}, r"image id 9223372036854775808 is not an integer of 64 bits"),
        ("images", {"width": 10**30}, "sizes in pixels"),
        ("images", {"file_name": "\ud800.png"}, r"image 10: '\\ud800\.png' is not a file name"),
        ("images", {"neg_category_ids": 3}, r"neg_category_ids: 1 of 4 are not lists of category ids: image 10: 3"),
        ("images", {"not_exhaustive_category_ids": [[1]]}, r"not_exhaustive_category_ids: 1 of 4 are not lists of"),
        ("annotations", {"id": -(10**30)}, "annotation id -1000000000000000000000000000000 is not an integer of 64"),
        ("annotations", {"image_id": 10**100}, r"unknown image: image 1.*, annotation 1\d+: image_id 10+\.\.\.0+\. "),
        ("categories", {"keypoints": 1.5}, r"keypoints of categories: 1 of 2 are not lists of names: 7: 1\.5"),
    ],
)
def test_values_that_fit_no_array_are_reported(root: Path, section: str, change: Content, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(root, lambda content: content[section][0].update(change), keypoints=section == "categories")


def test_class_names_with_lone_surrogates_can_be_encoded(root: Path) -> None:
    source = read(root, lambda content: content["categories"][0].update(name="a\ud800"))
    assert source.classes[1] == r"a\xed\xa0\x80" and source.fingerprint()


def test_missing_files_and_folders_are_reported(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none\.json; .* which holds "):
        coco(root=root, file=root / "none.json")
    with pytest.raises(ValueError, match="there is no folder"):
        coco(root=root / "none", file=root / "annotations.json")
    (root / "empty").mkdir()
    with pytest.raises(ValueError, match=r"none of its 4 images is in .*empty, such as 0\.png"):
        coco(root=root / "empty", file=root / "annotations.json", broken="drop")


def test_an_image_of_another_size_is_reported_when_it_is_read(root: Path) -> None:
    source = read(root)
    Image.new("RGB", (48, 64)).save(root / "2.png")
    with pytest.raises(ValueError, match=r"2\.png has 48 x 64 pixels, .*annotations\.json says 64 x 48"):
        source[2]


def test_rle_that_cannot_be_decoded_is_reported_when_it_is_read(root: Path) -> None:
    source = read(root, annotation(segmentation={"size": [48, 64], "counts": "zzz"}), masks=True)
    with pytest.raises(ValueError, match=r"annotations\.json, image 11, annotation 100: "):
        source[1]


# --- Roboflow ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    small_data.roboflow(tmp_path)
    return tmp_path


def test_the_placeholder_category_of_roboflow_is_dropped(exported: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "opabinia")
    train, valid = roboflow(root=exported), roboflow(root=exported, split="valid", masks=True)
    assert train.classes == valid.classes == ("block", "bar") and train.info.category_ids == (3, 7)
    assert train[1]["id"] == "1.png" and valid.info.masks
    assert "category 0, 'objects', is a placeholder without annotations: dropped" in caplog.text


def test_a_category_with_objects_in_any_split_is_not_dropped(exported: Path) -> None:
    file = exported / "valid" / "_annotations.coco.json"
    content = json.loads(file.read_text())
    content["annotations"][0]["category_id"] = 0
    file.write_text(json.dumps(content))
    assert (
        roboflow(root=exported).classes == roboflow(root=exported, split="valid").classes == ("objects", "block", "bar")
    )


def test_a_class_without_objects_is_no_placeholder(exported: Path) -> None:
    file = exported / "train" / "_annotations.coco.json"
    content = json.loads(file.read_text())
    content["categories"][-1] |= {"name": "empty"}
    file.write_text(json.dumps(content))
    assert roboflow(root=exported).classes == ("empty", "block", "bar")


def test_a_missing_split_is_reported(exported: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"there is no file .*test.*_annotations\.coco\.json; .* holds train",
    ):
        roboflow(root=exported, split="test")


# --- real photographs -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (REAL / "bccd").is_dir(), reason="the blood cells are not here")
@pytest.mark.parametrize(("split", "images", "objects"), [("train", 205, 2804), ("val", 87, 1137), ("test", 72, 945)])
def test_blood_cells(split: str, images: int, objects: int) -> None:
    source = coco(root=REAL / "bccd" / split, file=REAL / "bccd" / "annotations" / f"instances_{split}.json")
    assert (
        source.classes == ("RBC", "WBC", "Platelets")
        and source.info.category_ids == (1, 2, 3)
        and source.info.errors == ()
    )
    samples = [source[number] for number in range(len(source))]
    assert (len(samples), sum(len(sample["boxes"]) for sample in samples)) == (images, objects)
    for sample in samples:
        assert sample["image"].shape == (3, 480, 640) and len(sample["ground_truth"].ids) == len(sample["labels"])
        assert (sample["boxes"][:, 2:] > sample["boxes"][:, :2]).all() and sample["boxes"].max() <= 640


@pytest.mark.skipif(not (REAL / "coco_free").is_dir(), reason="the free images of COCO are not here")
@OLD_NUMPY
@pytest.mark.parametrize("split", ["train", "val"])
def test_free_images_of_coco(split: str) -> None:
    pycocotools_coco = pytest.importorskip("pycocotools.coco")
    file = REAL / "coco_free" / "annotations" / f"instances_{split}2017.json"
    source = coco(root=REAL / "coco_free" / f"{split}2017", file=file, masks=True)
    reference = pycocotools_coco.COCO(str(file))
    assert len(source.classes) == 80 and source.info.category_ids[:2] == (1, 2) and source.info.category_ids[-1] == 90
    crowds = 0
    for sample in (source[number] for number in range(len(source))):
        ground_truth = sample["ground_truth"]
        crowds += int(ground_truth.crowd.sum())
        expected = [reference.anns[number] for number in ground_truth.ids.tolist()]
        boxes = np.array([annotation["bbox"] for annotation in expected]).reshape(-1, 4)
        np.testing.assert_array_equal(ground_truth.boxes, boxes)
        np.testing.assert_array_equal(ground_truth.areas, [annotation["area"] for annotation in expected])
        objects = [annotation for annotation in expected if not annotation["iscrowd"]]
        for mask, annotation in zip(sample["masks"].numpy(), objects, strict=True):
            np.testing.assert_array_equal(mask, reference.annToMask(annotation))
    assert crowds == sum(annotation["iscrowd"] for annotation in reference.anns.values()) > 0
