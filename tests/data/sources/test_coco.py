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
from tests.data.sources.hostile import deep

Content = dict[str, Any]
Change = Callable[[Content], object]
Reader = Callable[..., AnnotatedImages]
OLD_NUMPY = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools
REAL = Path(__file__).resolve().parents[3].parent / "shared" / "data"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco")
    small_data.coco(folder)
    return folder


@pytest.fixture
def read(root: Path, tmp_path: Path) -> Reader:
    """Return a function that reads changed annotations, which are in ``a.json`` then."""

    def read(change: Change = lambda content: None, **keys: Any) -> AnnotatedImages:
        content = json.loads((root / "annotations.json").read_text())
        change(content)
        (tmp_path / "a.json").write_text(json.dumps(content))
        return coco(**{"root": root, "file": tmp_path / "a.json", **keys})

    return read


def annotation(number: int = 0, **values: Any) -> Change:
    return lambda content: content["annotations"][number].update(values)


def image(**values: Any) -> Change:
    """Add a copy of the third image with other values."""
    return lambda content: content["images"].append({**content["images"][2], **values})


# --- valid annotations ------------------------------------------------------------------------------------------------


def test_boxes_and_labels(read: Reader) -> None:
    source = read()
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


def test_ground_truth_is_that_of_the_file(read: Reader) -> None:
    source = read(annotation(bbox=[-0.75, 10, 20, 10], area=123.5), masks=True, keypoints=True)
    ground_truth = source[1]["ground_truth"]
    assert (ground_truth.image_id, ground_truth.size, ground_truth.ids.tolist()) == (11, (48, 64), [100])
    assert ground_truth.boxes.tolist() == [[-0.75, 10, 20, 10]] and ground_truth.boxes.dtype == np.float64
    assert ground_truth.areas.tolist() == [123.5] and ground_truth.labels.tolist() == [0]
    assert ground_truth.crowd.tolist() == [False]
    assert source[1]["boxes"].tolist() == [[0, 10, 19.25, 20]], "training boxes are clipped to the image"
    crowd = source[3]["ground_truth"]
    assert crowd.crowd.tolist() == [False, False, True] and len(source[3]["boxes"]) == 2
    assert len(crowd.segments) == 3 and crowd.keypoints.shape == (3, 2, 3)
    assert crowd.segments[1]["size"] == [48, 64] and len(crowd.segments[0][0]) == 8
    for change in (annotation(area=None), lambda content: content["annotations"][0].pop("area")):
        assert read(change).annotations.areas[0] == 60, "a missing area is that of the box"


@OLD_NUMPY
def test_masks_are_those_of_pycocotools(read: Reader, tmp_path: Path) -> None:
    coco_mask = pytest.importorskip("pycocotools.mask")
    pycocotools_coco = pytest.importorskip("pycocotools.coco")
    random = np.random.default_rng(0)

    def draw(content: Content) -> None:
        for number in (0, 1):
            content["annotations"][number]["segmentation"] = [
                np.column_stack([random.uniform(0, 64, count), random.uniform(0, 48, count)]).reshape(-1).tolist()
                for count in (3, 9)
            ]
        runs = content["annotations"][2]["segmentation"]
        counts = coco_mask.frPyObjects(runs, 48, 64)["counts"].decode()
        content["annotations"][2]["segmentation"] = {"size": [48, 64], "counts": counts}

    before, source = read(masks=True), read(draw, masks=True)
    reference = pycocotools_coco.COCO(str(tmp_path / "a.json"))
    assert source.info.masks
    for number in range(4):
        sample = source[number]
        assert isinstance(sample["masks"], tv_tensors.Mask) and sample["masks"].dtype == torch.uint8
        assert sample["masks"].shape == (len(sample["boxes"]), 48, 64)
        ids = sample["ground_truth"].ids[~sample["ground_truth"].crowd].tolist()
        for mask, number_in_file in zip(sample["masks"].numpy(), ids, strict=True):
            np.testing.assert_array_equal(mask, reference.annToMask(reference.anns[number_in_file]))
    assert torch.equal(before[2]["masks"][1], source[2]["masks"][1]), "compressed and uncompressed runs"
    assert before[2]["ground_truth"].segments[1] == source[2]["ground_truth"].segments[1]


def test_keypoints(read: Reader) -> None:
    source = read(lambda content: content["annotations"][1].pop("keypoints"), keypoints=True)
    assert source.info.keypoints == ("left_corner", "right_corner")
    sample = source[2]
    assert isinstance(sample["keypoints"], tv_tensors.KeyPoints) and sample["keypoints"].dtype == torch.float32
    assert sample["visibility"].tolist() == [[0, 0], [2, 1]] and sample["flip_pairs"] == [1, 0]
    (_, left, top, width, _) = list(small_data.scenes())[2].objects[1]
    assert sample["keypoints"][1].tolist() == [[left + 0.5, top + 0.5], [left + width - 0.5, top + 0.5]]
    in_file = [[left, top, 2], [left + width - 1, top, 1]]
    assert sample["ground_truth"].keypoints[1].tolist() == in_file, "as in the file"
    unlabeled = read(annotation(keypoints=[64.5, 48.9, 2, 900, 900, 0]), keypoints=True)
    assert unlabeled[1]["visibility"].tolist() == [[2, 0]], "within a pixel, and at any place if not labeled"


def test_left_and_right_keypoints_are_swapped_by_a_flip() -> None:
    assert flip_pairs(["nose", "left_eye", "right_eye"]) == [0, 2, 1]
    assert flip_pairs(["L-hand", "R-hand", "leftFoot", "rightFoot", "RIGHT", "LEFT", "left"]) == [1, 0, 3, 2, 5, 4, 6]
    assert flip_pairs(["bright", "tail", "left_fin"]) == [0, 1, 2], "a keypoint without a partner keeps its index"


def test_a_source_can_be_pickled_and_its_samples_collated(read: Reader) -> None:
    source = pickle.loads(pickle.dumps(read(masks=True, keypoints=True)))
    batch = collate([source[number] for number in range(4)], size_multiple=32)
    assert batch["image"].shape == (4, 3, 64, 64) and [len(boxes) for boxes in batch["boxes"]] == [0, 1, 2, 2]
    assert [(len(runs), runs.shape[2]) for runs in batch["masks"]] == [(count, 2) for count in (0, 1, 2, 2)]
    assert [ground_truth.image_id for ground_truth in batch["ground_truth"]] == [10, 11, 12, 13]


def test_the_fingerprint_changes_with_the_annotations(read: Reader) -> None:
    assert read().fingerprint() == read().fingerprint() == "4 images with 6 objects of 2 classes, 91ce4aa1c71fe3cf"
    assert read(annotation(2, bbox=[1, 1, 5, 5])).fingerprint() != read().fingerprint()


# --- keys -------------------------------------------------------------------------------------------------------------


def test_classes_are_taken_in_the_given_order(read: Reader) -> None:
    source = read(classes=["bar", "block"])
    assert source.info.category_ids == (7, 3) and source[2]["labels"].tolist() == [1, 0]
    bars = read(classes=["bar"])
    assert len(bars) == 4 and [len(bars[number]["ground_truth"].labels) for number in range(4)] == [0, 0, 1, 1]
    with pytest.raises(ValueError, match=r"a\.json has no class 'bars'; there is bar"):
        read(classes=["bars"])
    with pytest.raises(ValueError, match="classes: 'bar' is listed twice"):
        read(classes=["bar", "bar"])


def test_images_without_objects_are_dropped_when_asked(read: Reader, caplog: pytest.LogCaptureFixture) -> None:
    source = read(annotation(iscrowd=1), empty="drop")
    assert [source[number]["ground_truth"].image_id for number in range(len(source))] == [12, 13]
    assert [source[number]["id"] for number in range(2)] == ["2.png", "3.png"] and len(source.info.present) == 2
    assert not caplog.messages

    def only_crowds(content: Content) -> None:
        for row in content["annotations"]:
            row["iscrowd"] = 1

    assert len(read(only_crowds)) == 4
    assert [line.split(": ")[-1] for line in caplog.messages] == ["there are no objects in its 4 images"]


def test_images_with_few_keypoints_are_dropped_when_asked(read: Reader) -> None:
    hide = annotation(keypoints=[0, 0, 0, 5, 5, 1])
    assert [len(read(hide, keypoints=True, min_keypoints=count)) for count in (1, 2)] == [3, 2]
    with pytest.raises(ValueError, match="min_keypoints needs keypoints: true"):
        read(min_keypoints=1)
    with pytest.raises(ValueError, match="no image is left to train on"):
        read(keypoints=True, min_keypoints=5)


def test_lvis(read: Reader, root: Path) -> None:
    def as_lvis(content: Content, prefix: str = "") -> None:
        for category, frequency in zip(content["categories"], "fr", strict=True):
            category["frequency"] = frequency
        for row in content["images"]:
            row["coco_url"] = f"http://images.example.org/{root.name}/{row.pop('file_name')}"
            row |= {"neg_category_ids": [7], "not_exhaustive_category_ids": [3] if row["id"] == 12 else []}

    source = read(as_lvis, root=root.parent)
    assert source.info.frequencies == ("r", "f") and source[1]["id"] == f"{root.name}/1.png"
    assert source[2]["ground_truth"].absent == (1,) and source[2]["ground_truth"].not_exhaustive == (0,)
    assert source[1]["ground_truth"].not_exhaustive == ()
    assert read(as_lvis, root=root.parent, classes=["block"])[2]["ground_truth"].absent == ()

    def with_names_of_2014(content: Content) -> None:
        names = [row["file_name"] for row in content["images"]]
        as_lvis(content)
        for row, name in zip(content["images"], names, strict=True):
            row["file_name"] = f"COCO_val2014_{name}"

    assert read(with_names_of_2014)[1]["id"] == "1.png"


def test_a_file_without_annotations_lists_images_for_prediction(read: Reader) -> None:
    source = read(lambda content: content.pop("annotations"))
    assert len(source) == 4 and source.classes == ("block", "bar") and len(source[1]["boxes"]) == 0


# --- invalid objects --------------------------------------------------------------------------------------------------

NO_BOX = r"1 box that is not four finite numbers of at most 2\^24: 1\.png, annotation 100"
NO_POLYGON = r"1 segmentation that is neither polygons of three .* nor RLE of the image's size: 1\.png, annotation 100"
NO_POINTS = r"1 keypoint list that is not x, y and visibility 0, 1 or 2 of each name: 1\.png, annotation 100"
TWICE = r"1 image that is listed more than once: "
INVALID: dict[str, tuple[Change, str]] = {
    "negative width": (
        annotation(bbox=[9, 5, -4, 6]),
        r"1 box without area: 1\.png, annotation 100: left, top, width, height 9, 5, -4, 6 in 64 x 48 pixels",
    ),
    "no width": (annotation(bbox=[9, 5, 0, 6]), r"1 box without area: 1\.png, annotation 100: .* 9, 5, 0, 6"),
    "NaN": (annotation(bbox=[9, float("nan"), 4, 6]), rf"{NO_BOX}: bbox \[9, nan, 4, 6\]"),
    "a text": (annotation(bbox=["9", 5, 4, 6]), rf"{NO_BOX}: bbox \['9', 5, 4, 6\]"),
    "three numbers": (annotation(bbox=[9, 5, 4]), rf"{NO_BOX}: bbox \[9, 5, 4\]"),
    "partly outside": (annotation(bbox=[10, 5, 60, 26]), r"1 box that extends beyond .*: 1\.png, annotation 100"),
    "outside": (annotation(bbox=[70, 5, 20, 6]), r"1 box outside the image: 1\.png, annotation 100"),
    "polygon of two points": (annotation(segmentation=[[1, 1, 5, 5]]), NO_POLYGON),
    "odd polygon": (annotation(segmentation=[[1, 1, 5, 5, 9, 1, 3]]), NO_POLYGON),
    "polygon outside": (annotation(segmentation=[[1, 1, 90, 5, 9, 1]]), r"1 segmentation that extends .*1, 1, 90, 5"),
    "another polygon": (annotation(segmentation=[[40, 40, 50, 40, 50, 45]]), "1 segmentation outside the box: 1.png"),
    "no outline": (annotation(segmentation=[]), r"1 object without a segmentation: 1\.png, annotation 100"),
    "runs of another size": (
        annotation(segmentation={"size": [64, 48], "counts": [3072]}),
        rf"{NO_POLYGON}: size \[64, 48\], counts \[3072\]",
    ),
    "runs too short": (annotation(segmentation={"size": [48, 64], "counts": [-3, 9]}), NO_POLYGON),
    "keypoints too short": (annotation(keypoints=[1, 2, 2]), rf"{NO_POINTS}: 3 values, \[1, 2, 2\], expected 6 numb"),
    "visibility 7": (annotation(keypoints=[3, 17, 7, 5, 18, 1]), NO_POINTS),
    "keypoint outside": (
        annotation(keypoints=[3, 17, 1, 66, 18, 2]),
        "1 visible keypoint outside the image: 1.png, annotation 100: x, y, visibility 66, 18, 2 in 64 x 48 pixels",
    ),
    "crowd as text": (annotation(iscrowd="0"), "1 flag that is not 0, 1, true or false: 1.png, .* 100: iscrowd '0'"),
    "negative area": (annotation(area=-50), "1 area that is not finite or below 0: 1.png, annotation 100: area -50"),
    "area as text": (annotation(area="5"), "area '5'"),
    # Those that clipping cannot fix.
    "unknown category": (annotation(category_id=5), r"1 unknown class: 1\.png, annotation 100: category_id 5"),
    "nested category": (annotation(category_id=deep()), "1 unknown class: 1.png, annotation 100: category_id"),
    "unlisted image": (annotation(image_id=99), r"1 unknown image: image 99, annotation 100: image_id 99"),
    "huge image id": (annotation(image_id=10**100), r"unknown image: image 1.*, annotation 100: image_id 10+\.\.\.0+"),
    "number twice": (annotation(1, id=100), r"1 id that is used more than once: 2\.png, annotation 100"),
    "image twice": (image(), rf"{TWICE}2\.png: as image 12 and 12"),
    "file twice": (image(id=77), rf"{TWICE}2\.png: as image 12 and 77"),
    "file under two names": (image(id=77, file_name="./1.png"), rf"{TWICE}1\.png: as image 11 and 77"),
    "id twice": (image(file_name="9.png"), rf"{TWICE}9\.png: another image has the same id, 12"),
    "missing image": (image(id=77, file_name="no.png"), r"1 missing image: no\.png: not in"),
    "absolute path": (image(id=77, file_name="/etc/passwd"), "1 image outside root: /etc/passwd: not below .*root: /"),
}
NOT_CLIPPED = list(INVALID)[list(INVALID).index("unknown category") :]
ADDED_IMAGES = NOT_CLIPPED[NOT_CLIPPED.index("image twice") :]
FIXED_BY_CLIPPING = {
    "partly outside": "clipped to the image",
    "polygon outside": "clipped to the image, those without area in it dropped",
    "keypoint outside": "hidden",
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_annotations_are_reported_clipped_or_dropped(
    read: Reader, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    change, message = INVALID[name]
    with pytest.raises(ValueError, match=message) as error:
        read(change, masks=True, keypoints=True)
    assert str(error.value).startswith(str(tmp_path / "a.json")) and "broken: drop" in str(error.value)
    assert ("broken: clip" in str(error.value)) == (name not in NOT_CLIPPED)
    if name in NOT_CLIPPED:
        with pytest.raises(ValueError, match="broken: drop drops them"):
            read(change, masks=True, keypoints=True, broken="clip")
    for broken in ("drop",) if name in NOT_CLIPPED else ("drop", "clip"):
        caplog.clear()
        source = read(change, masks=True, keypoints=True, broken=broken)
        (line,) = caplog.messages
        fixed = FIXED_BY_CLIPPING.get(name, "dropped") if broken == "clip" else "dropped"
        assert line.startswith(str(tmp_path / "a.json")) and line.endswith(f": {fixed}")
        assert len(source) == 4 and [group.count for group in source.info.errors] == [1]
        samples = [source[number] for number in range(4)]
        kept = name in ADDED_IMAGES or (broken == "clip" and name in FIXED_BY_CLIPPING)
        assert sum(len(sample["ground_truth"].ids) for sample in samples) == (6 if kept else 5)
        for sample in samples:
            left, top, right, bottom = sample["boxes"].unbind(1)
            assert (left >= 0).all() and (top >= 0).all() and (right <= 64).all() and (bottom <= 48).all()
            assert (left < right).all() and (top < bottom).all() and sample["masks"].flatten(1).any(1).all()


def test_an_unknown_class_and_an_unknown_image_are_both_reported(read: Reader) -> None:
    with pytest.raises(ValueError, match=r"1 unknown class, 1 unknown image: .*category_id 5; .*image_id 99"):
        read(annotation(category_id=5, image_id=99))


def test_clipping(read: Reader, caplog: pytest.LogCaptureFixture) -> None:
    change = annotation(bbox=[50, 5, 20, 6], segmentation=[[50, 5, 70, 5, 70, 11, 50, 11]])
    sample = read(change, masks=True, broken="clip")[1]
    assert sample["boxes"].tolist() == [[50, 5, 64, 11]] and sample["ground_truth"].boxes.tolist() == [[50, 5, 20, 6]]
    assert sample["masks"].sum() == 14 * 6
    assert "1 box that extends beyond the image" in caplog.text and "): clipped to the image\n" in caplog.text
    hidden = read(annotation(keypoints=[3, 17, 1, 66, 18, 2]), keypoints=True, broken="clip")
    assert hidden[1]["visibility"].tolist() == [[1, 0]], "a keypoint outside is hidden"
    assert "): hidden\n" in caplog.text and "dropped\n" not in caplog.text.replace("area in it dropped", "")
    read(annotation(1, bbox=[70, 50, 5, 5]), broken="clip")
    assert "): dropped\n" in caplog.text
    outside = read(annotation(1, segmentation=[[70, 50, 80, 50, 80, 60]]), masks=True, broken="clip")
    assert 101 not in outside.annotations.ids, "objects without a mask are dropped"
    change = annotation(segmentation=[[1, 1, 5, 5], [10, 10, 20, 10, 20, 20, 10, 20]])
    source = read(change, masks=True, broken="clip")
    assert source[1]["masks"].sum() == 100 and source.info.errors[0].count == 1, "the valid ones of several polygons"
    source = read(annotation(bbox=[-1, -0.5, 66, 49.5]))
    assert source.info.errors == () and source[1]["boxes"].tolist() == [[0, 0, 64, 48]], "a pixel is rounding"


def test_the_first_ten_are_reported_and_all_are_counted(read: Reader) -> None:
    def flatten(content: Content) -> None:
        first = content["annotations"][0]
        content["annotations"] += [{**first, "id": 200 + number, "bbox": [5, 5, 0, 0]} for number in range(30)]

    with pytest.raises(ValueError, match=r"30 boxes without area: ") as error:
        read(flatten)
    assert str(error.value).count("annotation 2") == 10 and "annotation 209:" in str(error.value)


# --- invalid files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"images": [], "annotations": [{"id": 1, ', r"not complete JSON: .*, line 1, column 42; is it truncated\?"),
        (b"", r"not complete JSON: Expecting value, line 1, column 1"),
        (b"[]", "holds a list; expected an object with images, annotations, categories"),
        (b'{"images": []}', "has no 'annotations'; expected images, annotations, categories, found images"),
        (b'{"images": [], "annotations": []}', "has no 'categories'; expected"),
        (b'{"images": {}, "annotations": [], "categories": []}', "'images' is a dict; expected a list"),
        (b'{"images": [{"id": 1}], "annotations": [], "categories": []}', "images: 1 of 1 are not objects with id, w"),
        (b'{"images": [], "annotations": [3], "categories": []}', "annotations: 1 of 1 are not .*: number 0: 3"),
        (b'{"images": [], "annotations": [], "categories": []}', "has no classes"),
        (b'{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}', "lists no image"),
        (b'{"images": [], "annotations": [], "categories": [{"id": "1", "name": "a"}]}', "category id '1' is not an"),
        (b"\x80{}", "a.json is not UTF-8: invalid start byte at byte 0"),
        (b"[" * 100_000, "cannot be read: maximum recursion depth"),
        (b"9" * 5000, "cannot be read: Exceeds the limit"),
    ],
)
def test_a_file_with_another_structure_is_reported(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    for broken in ("error", "drop"):
        with pytest.raises(ValueError, match=message) as error:
            coco(root=tmp_path, file=tmp_path / "a.json", broken=broken)  # type: ignore[arg-type]
        assert str(tmp_path / "a.json") in str(error.value)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("images", {"id": 2**63}, r"image id 9223372036854775808 is not an integer of 64 bits"),
        *(("images", {"height": size, "width": size}, "1 of 4 are not sizes in pixels: image 10: ")
          for size in (2**24, 20_000, "64", True, 0)),
        ("images", {"file_name": "\ud800.png"}, r"image 10: '\\ud800\.png' is not a file name"),
        ("images", {"neg_category_ids": 3}, r"neg_category_ids: 1 of 4 are not lists of category ids: image 10: 3"),
        ("images", {"not_exhaustive_category_ids": [[1]]}, r"not_exhaustive_category_ids: 1 of 4 are not lists of"),
        ("annotations", {"id": -(10**30)}, "annotation id -1000000000000000000000000000000 is not an integer of 64"),
        ("annotations", {"id": deep()}, "annotation id .* is not an integer of 64 bits"),
        ("categories", {"keypoints": 1.5}, r"keypoints of categories: 1 of 2 are not lists of names: 7: 1\.5"),
        *(("categories", {"name": name}, r"a\.json: category 7: name .* (neither text|not a name)")
          for name in (["a"], "")),
    ],
)  # fmt: skip
def test_invalid_values_are_reported(read: Reader, section: str, change: Content, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(lambda content: content[section][0].update(change), keypoints="keypoints" in change)


def test_class_names_with_lone_surrogates_can_be_encoded(read: Reader) -> None:
    source = read(lambda content: content["categories"][0].update(name="a\ud800"))
    assert source.classes[1] == r"a\xed\xa0\x80" and source.fingerprint()


def test_missing_files_and_folders_are_reported(read: Reader, root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none\.json; .* which holds "):
        coco(root=root, file=root / "none.json")
    with pytest.raises(ValueError, match="there is no folder"):
        read(root=root / "none")
    with pytest.raises(ValueError, match=r"none of its 4 images is in .*, such as 0\.png"):
        read(root=tmp_path, broken="drop")


def test_files_are_compared_with_the_annotations_when_they_are_read(read: Reader, root: Path, tmp_path: Path) -> None:
    def absolute(content: Content) -> None:
        for number, row in enumerate(content["images"]):
            size = (48, 64) if number == 2 else (64, 48)
            Image.open(root / row["file_name"]).resize(size).save(tmp_path / f"{number}.png")
            row["file_name"] = f"{tmp_path}/{number}.png"

    source = read(absolute, root=Path("/"))
    assert source[1]["labels"].tolist() == [0], "root: / allows absolute paths"
    with pytest.raises(ValueError, match=r"2\.png has 48 x 64 pixels, .*a\.json says 64 x 48"):
        source[2]
    source = read(annotation(segmentation={"size": [48, 64], "counts": "zzz"}), masks=True)
    with pytest.raises(ValueError, match=r"a\.json, image 11, annotation 100: "):
        source[1]


# --- Roboflow ---------------------------------------------------------------------------------------------------------


def test_roboflow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "opabinia")
    small_data.roboflow(tmp_path)
    train, valid = roboflow(root=tmp_path), roboflow(root=tmp_path, split="valid", masks=True)
    assert train.classes == valid.classes == ("block", "bar") and train.info.category_ids == (3, 7)
    assert train[1]["id"] == "1.png" and valid.info.masks
    assert "category 0, 'objects', is a placeholder without annotations: dropped" in caplog.text
    with pytest.raises(ValueError, match=r"there is no file .*test.*_annotations\.coco\.json; .* holds train"):
        roboflow(root=tmp_path, split="test")


@pytest.mark.parametrize(
    ("split", "change", "classes"),
    [
        pytest.param("valid", annotation(category_id=0), ("objects", "block", "bar"), id="objects in any split"),
        pytest.param("train", lambda content: content["categories"][-1].update(name="empty"), ("empty", "block", "bar"),
                     id="no placeholder"),
        pytest.param("train", lambda content: content["categories"][0].update(supercategory=["a"]),
                     ("objects", "block", "bar"), id="nested supercategory"),
    ],
)  # fmt: skip
def test_categories_of_roboflow_are_kept(tmp_path: Path, split: str, change: Change, classes: tuple[str, ...]) -> None:
    small_data.roboflow(tmp_path)
    file = tmp_path / split / "_annotations.coco.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    assert roboflow(root=tmp_path).classes == classes
    assert split == "train" or roboflow(root=tmp_path, split="valid").classes == classes


# --- real photographs -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (REAL / "bccd").is_dir(), reason="the blood cells are not here")
def test_blood_cells() -> None:
    source = coco(root=REAL / "bccd" / "test", file=REAL / "bccd" / "annotations" / "instances_test.json")
    assert source.classes == ("RBC", "WBC", "Platelets") and source.info.category_ids == (1, 2, 3)
    samples = [source[number] for number in range(len(source))]
    assert source.info.errors == () and (len(samples), sum(len(sample["boxes"]) for sample in samples)) == (72, 945)
    for sample in samples:
        assert sample["image"].shape == (3, 480, 640) and len(sample["ground_truth"].ids) == len(sample["labels"])
        assert (sample["boxes"][:, 2:] > sample["boxes"][:, :2]).all() and sample["boxes"].max() <= 640


@pytest.mark.skipif(not (REAL / "coco_free").is_dir(), reason="the free images of COCO are not here")
@OLD_NUMPY
def test_free_images_of_coco() -> None:
    pycocotools_coco = pytest.importorskip("pycocotools.coco")
    file = REAL / "coco_free" / "annotations" / "instances_val2017.json"
    source = coco(root=REAL / "coco_free" / "val2017", file=file, masks=True)
    reference = pycocotools_coco.COCO(str(file))
    assert len(source.classes) == 80 and source.info.category_ids[:2] == (1, 2) and source.info.category_ids[-1] == 90
    crowds = 0
    for sample in (source[number] for number in range(len(source))):
        ground_truth = sample["ground_truth"]
        crowds += int(ground_truth.crowd.sum())
        expected = [reference.anns[number] for number in ground_truth.ids.tolist()]
        boxes = np.array([row["bbox"] for row in expected]).reshape(-1, 4)
        np.testing.assert_array_equal(ground_truth.boxes, boxes)
        np.testing.assert_array_equal(ground_truth.areas, [row["area"] for row in expected])
        objects = [row for row in expected if not row["iscrowd"]]
        for mask, row in zip(sample["masks"].numpy(), objects, strict=True):
            np.testing.assert_array_equal(mask, reference.annToMask(row))
    assert crowds == sum(row["iscrowd"] for row in reference.anns.values()) > 0
