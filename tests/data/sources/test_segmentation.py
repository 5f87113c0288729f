"""Segmentation sources."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from opabinia.contracts import GroundTruthMap, Sample
from opabinia.data.sources import (
    Concat,
    DigitScenes,
    Indexed,
    ade20k,
    cityscapes,
    coco_panoptic,
    coco_stuff,
    digit_maps,
    segmentation_folder,
    segmentation_list,
    voc_segmentation,
)
from opabinia.data.sources.annotation_errors import SCALED_MAP, WRONG_SIZE
from opabinia.data.sources.segmentation_base import MapError
from opabinia.data.sources.segmentation_folder import PixelLabels, SegmentationFiles

VALUES = np.array([[0, 1, 2], [255, 2, 1]], dtype=np.uint8)


def save(path: Path, values: Any, mode: str | None = None) -> None:
    """Write an image, or a map with a palette whose colors are not its indices."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(values))
    if mode == "P":
        image.putpalette([7, 7, 7, 200, 0, 0] * 128)
    image.save(path)


def write_pair(root: Path, values: Any = VALUES, mode: str | None = None, name: str = "a") -> None:
    save(root / f"images/{name}.jpg", np.zeros((*np.shape(values)[:2], 3), dtype=np.uint8))
    save(root / f"labels/{name}.png", values, mode)


def labels_of(source: SegmentationFiles) -> list[list[int]]:
    return source[0]["ground_truth_map"].labels.tolist()  # type: ignore[no-any-return]


def test_digit_maps() -> None:
    source = digit_maps(split="val", panoptic=True)
    sample = source[0]
    ground_truth: GroundTruthMap = sample["ground_truth_map"]
    assert source.info.maps and source.info.boxes and source.info.sizes is not None
    assert source.classes == ("background", *"0123456789") and source.info.thing_labels == tuple(range(1, 11))
    assert isinstance(sample["mask"], tv_tensors.Mask) and sample["mask"].dtype == torch.uint8
    assert ground_truth.segments is not None and ground_truth.segment_labels is not None
    labels = ground_truth.segment_labels.tolist()
    assert labels == [*sample["labels"].tolist(), 0] == [*sample["ground_truth"].labels, 0]
    for number, label in enumerate(ground_truth.segment_labels, 1):
        assert set(ground_truth.labels[ground_truth.segments == number]) == {label}
    for number, mask in enumerate(sample["masks"].numpy(), 1):  # digits do not overlap here: a mask is its visible part
        assert ((ground_truth.segments == number) == mask.astype(bool)).all()
    semantic = digit_maps(split="val")
    assert not semantic.info.boxes and semantic.info.thing_labels == ()
    assert semantic[0].keys() == {"image", "mask", "id", "original_size", "ground_truth_map"}
    assert semantic[0]["ground_truth_map"].segments is None
    assert (semantic[0]["mask"].numpy() == ground_truth.labels).all()
    assert semantic.fingerprint() != source.fingerprint()


def test_formats_of_label_maps(tmp_path: Path) -> None:
    """Gray, 16-bit, palette and color maps give the same labels."""
    colors = [(0, 0, 0), (128, 0, 0), (0, 0, 255)]
    color_map = np.array([*colors, *[(9, 9, 9)] * 253], dtype=np.uint8)[VALUES]
    cases: dict[str, tuple[Any, str | None]] = {
        "gray": (VALUES, None),
        "bits16": (VALUES.astype(np.uint16), None),
        "palette": (VALUES, "P"),
        "color": (color_map, None),
    }
    for name, (values, mode) in cases.items():
        write_pair(tmp_path / name, values, mode)
        source = segmentation_folder(root=tmp_path / name, classes=["a", "b", "c"], colors=colors, unlisted="ignore")
        assert labels_of(source) == VALUES.tolist(), name
        assert source.id(0) == "images/a.jpg" and source.info.sizes.tolist() == [[2, 3]]
    sample: Sample = source[0]
    assert sample["original_size"] == (2, 3) and sample["mask"].tolist() == VALUES.tolist()
    sample["mask"][:] = 7
    assert (sample["ground_truth_map"].labels == VALUES).all()


def test_values_are_mapped_to_classes(tmp_path: Path) -> None:
    write_pair(tmp_path)
    reduced = segmentation_folder(root=tmp_path, classes=["b", "c"], reduce_zero_label=True)
    assert labels_of(reduced) == [[255, 0, 1], [255, 1, 0]]
    merged = segmentation_folder(root=tmp_path, values={"x": [0, 2], "y": [1]})
    assert merged.classes == ("x", "y") and labels_of(merged) == [[0, 1, 0], [255, 0, 1]]
    binary = segmentation_folder(root=tmp_path, values={"rest": [0, 1, 2], "object": [255]})
    assert labels_of(binary) == [[0, 0, 0], [1, 0, 0]]
    ordered = segmentation_folder(
        root=tmp_path, classes=["y", "x"], values={"x": [2]}, ignore=[255, 1], unlisted="ignore"
    )
    assert labels_of(ordered) == [[255, 255, 1], [255, 1, 255]]
    (tmp_path / "classes.txt").write_text("# name:color_rgb:parts:actions\nsky:0,0,9::\nthe road:128,64,128::\n")
    from_file = segmentation_folder(root=tmp_path, class_file=tmp_path / "classes.txt", unlisted="ignore")
    assert from_file.classes == ("sky", "the road") and from_file.info.colors == ((0, 0, 9), (128, 64, 128))
    assert labels_of(from_file) == [[0, 1, 255], [255, 255, 1]]


def test_the_nearest_class_of_other_values(tmp_path: Path) -> None:
    write_pair(tmp_path, np.array([[0, 3, 126], [129, 250, 255]], dtype=np.uint8))
    values = {"a": [0], "b": [255]}
    assert labels_of(segmentation_folder(root=tmp_path, values=values, unlisted="nearest")) == [[0, 0, 0], [1, 1, 1]]
    colors = np.array([[[9, 0, 0], [250, 20, 0]], [[0, 0, 0], [200, 90, 0]]], dtype=np.uint8)
    write_pair(tmp_path, colors)
    source = segmentation_folder(root=tmp_path, classes=["a", "b"], colors=[(0, 0, 0), (255, 0, 0)], unlisted="nearest")
    assert labels_of(source) == [[0, 1], [0, 1]]


def test_wrong_values_name_the_pixel(tmp_path: Path) -> None:
    write_pair(tmp_path)
    with pytest.raises(ValueError, match=r"labels/a.png: no class has the value 2 \(row 0, column 2, and 1 more"):
        segmentation_folder(root=tmp_path, classes=["a", "b"])[0]
    one_pixel = np.zeros((2, 3), dtype=np.uint8)
    one_pixel[1, 2] = 9
    save(tmp_path / "labels/a.png", one_pixel)
    with pytest.raises(ValueError, match=r"no class has the value 9 \(row 1, column 2\); unlisted"):
        segmentation_folder(root=tmp_path, classes=["a", "b"])[0]
    save(tmp_path / "labels/a.png", np.full((2, 3, 3), 4, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"no class has the value \[4, 4, 4\] \(row 0, column 0"):
        segmentation_folder(root=tmp_path, classes=["a"], colors=[(1, 2, 3)])[0]
    with pytest.raises(ValueError, match="color image; give the colors"):
        segmentation_folder(root=tmp_path, classes=["a"])[0]
    Image.fromarray(np.full((2, 3), 70000, dtype=np.int32)).save(tmp_path / "labels/a.tiff")
    with pytest.raises(ValueError, match="has values outside 0 to 65535"):
        segmentation_folder(root=tmp_path, classes=["a"], label_suffix=".tiff")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the names of the classes are needed"),
        ({"classes": ["a", "a"]}, "'a' is listed twice"),
        ({"classes": []}, "0 classes; segmentation needs 1 to 255"),
        ({"classes": ["a"], "values": {"b": [1]}}, "values: the list of classes has no class 'b'"),
        ({"values": {"a": [1], "b": [2, 1]}}, "values: 1 belongs to 'a' and 'b'"),
        ({"values": {"a": [1]}, "reduce_zero_label": True}, "exclude each other"),
        ({"classes": ["a"], "colors": [(1, 2, 3)] * 2}, "2 colors for 1 class"),
        ({"classes": ["a"], "images": "photos"}, "there is no folder .*photos"),
        ({"classes": ["a"], "image_suffix": ".bmp"}, "images has no image"),
        ({"classes": ["a"], "labels": "maps"}, "none of 1 image has a label map; expected maps/a.png"),
        ({"classes": ["a"], "list_file": "list.txt"}, r"list\.txt: 1 of 2 paths lead out of"),
        ({"class_file": "a 1 2 3\na 4 5 6\n"}, r"classes\.txt: 'a' is listed twice"),
        ({"class_file": "a 1 2 3\nb 4 5 256\n"}, r"1 of 2 are not names with colors from 0 to 255: b 4 5 256"),
        ({"classes": ["a"], "class_file": "a\n"}, "classes and class_file exclude each other"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_pair(tmp_path)
    (tmp_path / "list.txt").write_text("a\n../../a\n")
    if "class_file" in options:
        (tmp_path / "classes.txt").write_text(options["class_file"])
        options = {**options, "class_file": tmp_path / "classes.txt"}
    with pytest.raises(ValueError, match=message):
        segmentation_folder(root=tmp_path, **options)


def test_broken_files_are_reported_at_once(tmp_path: Path) -> None:
    for name in "abcd":
        write_pair(tmp_path, name=name)
    (tmp_path / "labels/a.png").unlink()
    save(tmp_path / "labels/b.png", VALUES[:1])
    (tmp_path / "labels/c.png").write_bytes(b"no image")
    expected = "1 image without a label map, 1 image of another size than annotated, 1 image that cannot be read"
    with pytest.raises(ValueError) as error:
        segmentation_folder(root=tmp_path, classes=["a"])
    assert set(expected.split(", ")) <= set(str(error.value).split(": ")[1].split(", "))
    assert "images/b.jpg: 3 x 2 pixels, labels/b.png has 3 x 1" in str(error.value)
    source = segmentation_folder(root=tmp_path, classes=["a"], broken="drop")
    assert [source.id(index) for index in range(len(source))] == ["images/d.jpg"]
    assert sum(group.count for group in source.info.errors) == 3


def test_maps_with_the_proportions_of_their_image_are_scaled(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    labels = np.kron(np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8), np.ones((10, 10), dtype=np.uint8))
    for name, size in (("a", (40, 60)), ("b", (41, 61)), ("c", (40, 70)), ("d", (60, 40))):
        save(tmp_path / f"images/{name}.jpg", np.zeros(size, dtype=np.uint8))
        save(tmp_path / f"labels/{name}.png", labels)
    source = segmentation_folder(root=tmp_path, classes=["x", "y", "z"], broken="fix")
    assert [source.id(index) for index in range(len(source))] == ["images/a.jpg", "images/b.jpg"]
    assert labels_of(source) == np.kron(labels, np.ones((2, 2), dtype=np.uint8)).tolist()
    assert source[1]["ground_truth_map"].labels.shape == (41, 61)
    assert {group.kind: group.count for group in source.info.errors} == {SCALED_MAP: 2, WRONG_SIZE: 2}
    with pytest.raises(ValueError, match=r"images/a\.jpg: 60 x 40 pixels, labels/a\.png has 30 x 20"):
        segmentation_folder(root=tmp_path, classes=["x", "y", "z"])


def test_an_image_that_is_listed_twice(tmp_path: Path) -> None:
    write_pair(tmp_path)
    (tmp_path / "list.txt").write_text("a\na\n")
    options: dict[str, Any] = {"root": tmp_path, "classes": ["a", "b", "c"], "list_file": "list.txt"}
    with pytest.raises(ValueError, match=r"1 image that is listed more than once: images/a\.jpg: in the list"):
        segmentation_folder(**options)
    assert len(segmentation_folder(**options, broken="drop")) == 1


def test_published_layouts(tmp_path: Path) -> None:
    gray = np.zeros((2, 2), dtype=np.uint8)
    save(tmp_path / "leftImg8bit/val/x/x_1_leftImg8bit.png", gray)
    save(tmp_path / "gtFine/val/x/x_1_gtFine_labelIds.png", np.array([[7, 33], [0, 29]], dtype=np.uint8))
    source = cityscapes(root=tmp_path, split="val")
    assert labels_of(source) == [[0, 18], [255, 255]] and len(source.classes) == len(source.info.colors) == 19
    save(tmp_path / "images/validation/1.jpg", gray)
    save(tmp_path / "annotations/validation/1.png", np.array([[0, 1], [150, 2]], dtype=np.uint8))
    source = ade20k(root=tmp_path, split="val")
    assert labels_of(source) == [[255, 0], [149, 1]] and len(source.classes) == 150
    assert (source.classes[0], source.classes[149]) == ("wall", "flag")
    for name in ("1", "2"):
        save(tmp_path / f"JPEGImages/{name}.jpg", gray)
    save(tmp_path / "SegmentationClass/2.png", np.array([[0, 20], [255, 15]], dtype=np.uint8), "P")
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets/Segmentation/val.txt").write_text("2\n")
    source = voc_segmentation(root=tmp_path, split="val")
    assert labels_of(source) == [[0, 20], [255, 15]] and source.id(0) == "JPEGImages/2.jpg"
    assert source.classes[15] == "person" and source.info.colors[:2] == ((0, 0, 0), (128, 0, 0))
    assert source.info.colors[15] == (192, 128, 128) and source.info.colors[20] == (0, 64, 128)
    save(tmp_path / "val2017/1.jpg", gray)
    save(tmp_path / "stuffthingmaps/val2017/1.png", np.array([[0, 89], [91, 181]], dtype=np.uint8))
    source = coco_stuff(root=tmp_path, split="val2017")
    names = [source.classes[label] for label in np.ravel(labels_of(source))]
    assert names == ["person", "toothbrush", "banner", "wood"] and len(source.classes) == 171


# --- combinations -----------------------------------------------------------------------------------------------------


def test_classes_of_maps_are_merged_by_name(tmp_path: Path) -> None:
    write_pair(tmp_path / "1")
    write_pair(tmp_path / "2")
    colors = [(1, 0, 0), (2, 0, 0), (3, 0, 0)]
    first = segmentation_folder(root=tmp_path / "1", classes=["road", "sky", "car"], colors=colors)
    second = segmentation_folder(root=tmp_path / "2", classes=["sky", "auto", "tree"], colors=[*colors[:2], (4, 0, 0)])
    union = Concat(sources=[first, second], classes="union", class_map={"auto": "car"})
    assert union.classes == ("road", "sky", "car", "tree") and union.info.maps and union.info.thing_labels == ()
    assert union.info.colors == (*colors, (4, 0, 0))
    assert union[0]["mask"].tolist() == VALUES.tolist()
    sample = union[1]
    assert sample["mask"].tolist() == sample["ground_truth_map"].labels.tolist() == [[1, 2, 3], [255, 3, 2]]
    assert sample["ground_truth_map"].image_id == "1/images/a.jpg" and isinstance(sample["mask"], tv_tensors.Mask)
    assert union.info.sizes.tolist() == [[2, 3]] * 2
    indexed: Any = Indexed(source=union)
    assert indexed[1]["index"] == 1 and indexed.info.maps and indexed.info.colors == union.info.colors
    with pytest.raises(ValueError, match="has maps: False, the first one True"):
        Concat(sources=[first, DigitScenes(split="val")], classes="union")


def test_panoptic_sources_are_relabeled() -> None:
    original = digit_maps(split="val", panoptic=True)
    names = ["paper", *original.classes]
    union = Concat(sources=[original], classes=names)
    before, after = original[0], union[0]
    assert union.info.thing_labels == tuple(range(2, 12)) and union.info.boxes and union.info.masks
    assert torch.equal(after["labels"], before["labels"] + 1)
    assert (after["ground_truth"].labels == before["ground_truth"].labels + 1).all()
    old, new = before["ground_truth_map"], after["ground_truth_map"]
    assert (new.labels == old.labels + 1).all() and (new.segment_labels == old.segment_labels + 1).all()
    assert (new.segments == old.segments).all()


# --- COCO panoptic ----------------------------------------------------------------------------------------------------

IDS = np.array([[0, 1, 1, 70000], [300, 300, 5, 5]])


def write_panoptic(root: Path, ids: Any = IDS, **changes: Any) -> dict[str, Any]:
    """Write an annotation file with one image: a person (1), a crowd of persons (300), sky (70000) and a dog (5)."""
    categories = [
        {"id": 9, "name": "sky", "isthing": 0, "color": [0, 0, 9]},
        {"id": 17, "name": "dog", "isthing": 1, "color": [0, 0, 17]},
        {"id": 1, "name": "person", "isthing": 1, "color": [0, 0, 1]},
    ]
    rows = [(1, 1, 0), (300, 1, 1), (70000, 9, 0), (5, 17, 0)]
    segments = [dict(zip(("id", "category_id", "iscrowd"), row, strict=True)) for row in rows]
    content = {
        "images": [{"id": 4, "file_name": "a.jpg", "height": 2, "width": 4}],
        "annotations": [{"image_id": 4, "file_name": "a.png", "segments_info": segments}],
        "categories": categories,
        **changes,
    }
    save(root / "images/a.jpg", np.zeros((2, 4), dtype=np.uint8))
    save(root / "maps/a.png", np.stack([ids % 256, ids // 256 % 256, ids // 256**2], 2).astype(np.uint8))
    (root / "panoptic.json").write_text(json.dumps(content))
    return {"root": root / "images", "maps": root / "maps", "file": root / "panoptic.json"}


def test_coco_panoptic(tmp_path: Path) -> None:
    source = coco_panoptic(**write_panoptic(tmp_path))
    assert source.classes == ("person", "dog", "sky") and source.info.thing_labels == (0, 1)
    assert source.info.category_ids == (1, 17, 9) and source.info.colors[2] == (0, 0, 9)
    assert source.info.present[0].tolist() == [0, 1, 2] and source.info.sizes.tolist() == [[2, 4]]
    sample = source[0]
    ground_truth, objects = sample["ground_truth_map"], sample["ground_truth"]
    assert sample["mask"].tolist() == ground_truth.labels.tolist() == [[255, 0, 0, 2], [0, 0, 1, 1]]
    assert ground_truth.segments.tolist() == [[0, 1, 1, 4], [3, 3, 2, 2]]
    assert ground_truth.segment_labels.tolist() == [0, 1, 0, 2]
    assert ground_truth.crowd.tolist() == [False, False, True, False]
    assert objects.ids.tolist() == [1, 5, 300] and objects.crowd.tolist() == [False, False, True]
    assert objects.boxes.tolist() == [[1, 0, 2, 1], [2, 1, 2, 1], [0, 1, 2, 1]] and objects.areas.tolist() == [2, 2, 2]
    assert sample["labels"].tolist() == [0, 1] and sample["boxes"].tolist() == [[1, 0, 3, 1], [2, 1, 4, 2]]
    assert sample["masks"].shape == (2, 2, 4) and ground_truth.image_id == objects.image_id == 4


ROW = {"image_id": 4, "file_name": "a.png", "segments_info": [{"id": 1, "category_id": 2}]}
IMAGE = {"id": 4, "file_name": "a.jpg", "height": 2, "width": 4}


def category(**values: Any) -> dict[str, Any]:
    return {"categories": [{"id": 1, "name": "cell", "isthing": 1, **values}], "annotations": []}


def segment(**values: Any) -> dict[str, Any]:
    return {"annotations": [{**ROW, "segments_info": [{"id": 1, "category_id": 1, **values}]}]}


@pytest.mark.parametrize(
    ("ids", "changes", "message"),
    [
        (np.where(IDS == 5, 6, IDS), {}, r"maps/a.png: .* has no segment 6, the color at row 1, column 2 \(and 1 more"),
        (IDS[:, :3], {}, "expected a color image of 2 rows x 4 columns, not 2 x 3 x 3"),
        (IDS, {"annotations": [{**ROW, "segments_info": None}]}, "segments_info: 1 of 1 are not lists of .*: image 4"),
        (IDS, {"annotations": [{**ROW, "segments_info": [3]}]}, "segments_info: 1 of 1 are not lists of objects"),
        (IDS, {"annotations": []}, r"1 image without a label map: a[.]jpg: there is no annotation"),
        (IDS, {"annotations": [{**ROW, "file_name": "../a.png"}]}, "1 of 1 paths lead out of"),
        (IDS, {"annotations": [{**ROW, "file_name": [1]}]}, "annotation 0 has neither file_name"),
        (IDS, {"images": [{**IMAGE, "file_name": "/etc/passwd"}]}, "1 of 1 paths lead out of"),
        (IDS, segment(category_id=[]), r"1 unknown class: a\.jpg, segment 1: category \[\]"),
        (IDS, segment(id=[5]), r"a\.jpg, segment \[5\]: not in"),
        (IDS, segment(id={}), r"a\.jpg, segment {}: not in"),
        (IDS, segment(iscrowd="1"), "segment 1: iscrowd '1' is none of 0, 1"),
        (IDS, category(isthing=[1]), r"category 1: isthing \[1\] is none of 0, 1"),
        (IDS, category(isthing="0"), "category 1: isthing '0' is none of 0, 1"),
        (IDS, category(color=5), "category 1: color is 5, expected three numbers"),
    ],
)
def test_broken_panoptic_data(tmp_path: Path, ids: Any, changes: dict[str, Any], message: str) -> None:
    files = write_panoptic(tmp_path, ids, **changes)
    with pytest.raises(ValueError, match=message) as error:
        coco_panoptic(**files)[0]
    assert str(files["file"]) in str(error.value) or not changes


def test_broken_panoptic_data_is_dropped(tmp_path: Path) -> None:
    segments = [{"id": 1, "category_id": 2}, {"id": 1, "category_id": 1}, {"id": 0, "category_id": 1}]
    rows = [{**ROW, "segments_info": segments}, {**ROW, "image_id": 5}]
    files = write_panoptic(tmp_path, np.minimum(IDS, 1), annotations=rows)
    with pytest.raises(ValueError, match="1 unknown image, 1 unknown class, 2 segments whose id is used twice"):
        coco_panoptic(**files)
    source = coco_panoptic(**files, broken="drop")
    assert source[0]["ground_truth_map"].segment_labels.tolist() == [] and (source[0]["mask"] == 255).all()
    assert source[0]["boxes"].shape == (0, 4) and len(source.info.errors) == 3


@pytest.mark.slow
def test_coco_panoptic_objects_are_those_of_the_file(shared_data: Path) -> None:
    """Boxes and areas computed from the pixels equal those of the file."""
    root = shared_data / "coco_free"
    for split in ("train2017", "val2017"):
        file = root / f"annotations/panoptic_{split}.json"
        source = coco_panoptic(root=root / split, maps=root / f"panoptic_{split}", file=file)
        rows = {row["image_id"]: row["segments_info"] for row in json.loads(file.read_text())["annotations"]}
        for sample in (source[index] for index in range(len(source))):
            objects, ground_truth = sample["ground_truth"], sample["ground_truth_map"]
            segments = {row["id"]: row for row in rows[objects.image_id]}
            numbers = np.unique(ground_truth.segments[ground_truth.segments > 0])
            assert len(ground_truth.segment_labels) == len(segments) == len(numbers)
            for number, box, area in zip(objects.ids.tolist(), objects.boxes.tolist(), objects.areas, strict=True):
                assert (box, area) == (segments[number]["bbox"], segments[number]["area"])


def test_images_and_maps_in_one_folder(tmp_path: Path) -> None:
    save(tmp_path / "a.jpg", VALUES)
    save(tmp_path / "a_mask.png", VALUES)
    options: dict[str, Any] = {"images": "", "labels": "", "image_suffix": ".jpg", "label_suffix": "_mask.png"}
    source = segmentation_folder(root=tmp_path, classes=["a", "b", "c"], **options)
    assert labels_of(source) == VALUES.tolist() and source.id(0) == "a.jpg"


# --- other names and lists --------------------------------------------------------------------------------------------


def test_maps_beside_their_images(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / f"{name}.png", np.zeros((2, 3, 3), dtype=np.uint8))
        save(tmp_path / f"{name}_mask.png", VALUES)
    source = segmentation_folder(root=tmp_path, images="", labels="", label_suffix="_mask.png", classes=["x", "y", "z"])
    assert [source.id(index) for index in range(len(source))] == ["a.png", "b.png"]
    assert labels_of(source) == VALUES.tolist()


def test_names_with_other_beginnings(tmp_path: Path) -> None:
    save(tmp_path / "images/img_1.png", np.zeros((2, 3, 3), dtype=np.uint8))
    save(tmp_path / "images/other.png", np.zeros((2, 3, 3), dtype=np.uint8))
    save(tmp_path / "labels/map_1.png", VALUES)
    options: dict[str, Any] = {"root": tmp_path, "classes": ["x", "y", "z"]}
    source = segmentation_folder(**options, image_prefix="img_", label_prefix="map_")
    assert [source.id(index) for index in range(len(source))] == ["images/img_1.png"]


def test_a_list_of_images_and_maps(tmp_path: Path) -> None:
    write_pair(tmp_path)
    file, classes = tmp_path / "list.txt", ["x", "y", "z"]
    file.write_text("images/a.jpg labels/a.png\n")
    source = segmentation_list(file=file, classes=classes)
    assert (len(source), source.id(0)) == (1, "images/a.jpg") and labels_of(source) == VALUES.tolist()
    file.write_text("images/a.jpg, labels/a.png\n")
    assert segmentation_list(file=file, classes=classes, separator=",").id(0) == "images/a.jpg"
    for text, message in (
        ("images/a.jpg\n", r"1 of 1 are not an image and its map: line 1 has 1 field"),
        ("images/a.jpg ../a.png\n", r"1 of 1 paths lead out of"),
        ("images/b.jpg labels/a.png\n", r"images/b.jpg"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            segmentation_list(file=file, classes=classes)


def test_maps_in_color_are_converted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opabinia.data.sources.segmentation_base._BLOCK", 8)
    colors = [(200, 0, 0), (0, 0, 9), (0, 0, 0)]
    expected = np.random.default_rng(0).integers(0, 3, (7, 5))
    values = np.array(colors, np.uint8)[expected]
    converter = PixelLabels(np.zeros(2**16, np.int16), colors, -1)
    labels = converter.convert(values, "a.png")
    assert labels.dtype == np.uint8 and labels.tolist() == expected.tolist()
    values[6, 4] = 1, 2, 3
    with pytest.raises(MapError, match=r"no class has the value \[1, 2, 3\] \(row 6, column 4\)"):
        converter.convert(values, "a.png")
    nearest = PixelLabels(np.zeros(2**16, np.int16), colors, None).convert(values, "a.png")
    assert nearest[6, 4] == 2 and nearest[:6].tolist() == expected[:6].tolist()
