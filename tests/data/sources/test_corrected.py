"""Corrections of labels from a list or an annotation tool, and samples of another source."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.contracts import Source
from opabinia.data.sources import Digits, ImageFolder, Table, coco, corrected, cvat, replaced
from opabinia.inference.annotation_files.drafts import Annotation, Box, Draft, image_name
from opabinia.inference.annotation_files.write import Tool, write_drafts
from scripts import small_data


@pytest.fixture
def photos(tmp_path: Path) -> ImageFolder:
    for number in range(6):
        path = tmp_path / "photos" / ("cat", "dog", "owl")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (number * 20, 0, 0)).save(path)
    return ImageFolder(root=tmp_path / "photos")


def write(folder: Path, *rows: str, header: str = "id,label,corrected") -> Path:
    file = folder / "labels.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


def labels_of(source: object) -> dict[str, int]:
    return {sample["id"]: sample["label"] for sample in map(source.__getitem__, range(len(source)))}  # type: ignore[arg-type,attr-defined]


def test_corrections_empty_cells_and_removed_samples(photos: ImageFolder, tmp_path: Path) -> None:
    file = write(tmp_path, "cat/0.png,cat,owl", "dog/1.png,dog,", "owl/5.png,owl, -")
    source = corrected(source=photos, file=file)
    expected = {"cat/0.png": 2, "cat/3.png": 0, "dog/1.png": 1, "dog/4.png": 1, "owl/2.png": 2}
    assert labels_of(source) == expected
    assert source.info.single_labels is not None
    assert source.info.single_labels.tolist() == [expected[source.id(index)] for index in range(len(source))]
    assert photos.info.single_labels is not None
    assert photos.info.single_labels.tolist() == [0, 0, 1, 1, 2, 2]  # unchanged
    assert source.fingerprint() != photos.fingerprint()


def test_a_list_without_corrections_changes_nothing(photos: ImageFolder, tmp_path: Path) -> None:
    source = corrected(source=photos, file=write(tmp_path, "cat/0.png,cat,"))
    assert labels_of(source) == labels_of(photos)


def test_semicolons_of_spreadsheets_and_encoded_images(photos: ImageFolder, tmp_path: Path) -> None:
    file = write(tmp_path, "cat/0.png;dog", header="id;corrected")
    source = corrected(source=photos, file=file)
    assert source.encoded(0)["label"] == source[0]["label"] == 1


def test_several_labels(photos: ImageFolder, tmp_path: Path) -> None:
    rows = [f"cat/{number}.png,{labels}" for number, labels in ((0, "a|b"), (3, "b"))]
    (tmp_path / "photos" / "list.csv").write_text("\n".join(["path,label", *rows]))
    table = Table(file=tmp_path / "photos" / "list.csv", multi_label=True)
    file = write(tmp_path, '"cat/0.png","a; b",b', '"cat/3.png","b","a; b"')
    assert corrected(source=table, file=file).info.labels.tolist() == [[0, 1], [1, 1]]  # type: ignore[union-attr]
    file = write(tmp_path, "cat/3.png,b,no class")
    assert corrected(source=table, file=file).info.labels.tolist() == [[1, 1], [0, 0]]  # type: ignore[union-attr]


def test_whole_batches_have_the_corrected_labels(tmp_path: Path) -> None:
    digits = Digits(split="val")
    source = corrected(source=digits, file=write(tmp_path, f"{digits.id(2)},,7"))
    batch = source.batch(np.arange(4))
    assert batch is None or batch["label"][2] == 7
    assert source[2]["label"] == 7


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (["cat/0.png,cat,dgo"], "id,label,corrected", "line 2: the source has no class 'dgo'; there is dog"),
        (["cat/9.png,cat,dog"], "id,label,corrected", "1 of 1 corrected sample is not in the source: cat/9.png"),
        (
            ["cat/0.png,cat,dog", "cat/0.png,cat,owl"],
            "id,label,corrected",
            "cat/0.png is corrected to 'dog' in line 2 and to 'owl' in line 3",
        ),
        (["cat/0.png,dog"], "id,label", "no column 'corrected'"),
    ],
)
def test_wrong_lists(photos: ImageFolder, tmp_path: Path, rows: list[str], header: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"labels\.csv") as error:
        corrected(source=photos, file=write(tmp_path, *rows, header=header))
    assert message in str(error.value)


def test_sources_without_labels(tmp_path: Path) -> None:
    small_data.coco(tmp_path)
    boxes = coco(root=tmp_path, file=tmp_path / "annotations.json")
    with pytest.raises(ValueError, match="have no labels of their own"):
        corrected(source=boxes, file=write(tmp_path))


# --- files of annotation tools ----------------------------------------------------------------------------------------


def write_drafts_of_digits(out: Path, tool: Tool, classes: dict[int, str]) -> None:
    """Write drafts of digits, by index, with these classes."""
    digits = Digits(split="val")
    drafts = [
        (Draft(image_name(digits.id(index)), (8, 8), [Annotation(name)]), Image.new("L", (8, 8)))
        for index, name in classes.items()
    ]
    write_drafts(drafts, out, tool, digits.classes, of_images=True)


@pytest.mark.parametrize(
    ("tool", "file"), [("cvat", "annotations.xml"), ("label_studio", "tasks.json"), ("labelme", "images")]
)
def test_classes_corrected_in_a_tool(tool: Tool, file: str, tmp_path: Path) -> None:
    digits, out = Digits(split="val"), tmp_path / "out"
    write_drafts_of_digits(out, tool, {3: "9", 5: "8"})
    if tool == "label_studio":  # as it exports the tasks: only the first one has been submitted
        tasks = json.loads((out / file).read_text())
        tasks[0]["annotations"], tasks[1]["annotations"] = tasks[0]["predictions"], []
        (out / file).write_text(json.dumps(tasks))
    source = corrected(source=digits, file=out / file)
    assert source[3]["label"] == 9
    assert source[5]["label"] == (digits[5]["label"] if tool == "label_studio" else 8)
    assert labels_of(source).keys() == labels_of(digits).keys()


def test_a_file_of_a_tool_that_is_broken(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("<a>")
    with pytest.raises(ValueError, match=r"a\.xml is not an XML file of CVAT"):
        corrected(source=Digits(), file=tmp_path / "a.xml")
    (tmp_path / "a.json").write_text('[{"data": {"image": "a.png"}, "annotations": [{"result": [1]}]}]')
    with pytest.raises(ValueError, match=r"a\.json: a\.png: "):
        corrected(source=Digits(), file=tmp_path / "a.json")
    write_drafts_of_digits(tmp_path / "out", "cvat", {3: "9"})
    with pytest.raises(ValueError, match="1 of 1 corrected sample is not in the source: digits/"):
        corrected(source=Digits(split="train"), file=tmp_path / "out/annotations.xml")
    text = (tmp_path / "out/annotations.xml").read_text().replace('label="9"', 'label="nine"')
    (tmp_path / "out/annotations.xml").write_text(text)
    with pytest.raises(ValueError, match="the source has no class 'nine'"):
        corrected(source=Digits(split="val"), file=tmp_path / "out/annotations.xml")


# --- samples of another source ----------------------------------------------------------------------------------------


@pytest.fixture
def boxes(tmp_path: Path) -> Source:
    small_data.coco(tmp_path / "coco")
    return coco(root=tmp_path / "coco", file=tmp_path / "coco/annotations.json")


def corrected_boxes(boxes: Source, out: Path, index: int, annotations: list[Annotation]) -> Source:
    draft = Draft(image_name(boxes.id(index)), boxes[index]["original_size"], annotations)
    path = Path(boxes.paths(index)[0].decode())
    write_drafts([(draft, path)], out, "cvat", boxes.classes)
    return cvat(root=out / "images", file=out / "annotations.xml")


def test_corrected_boxes_take_the_place_of_the_old_ones(boxes: Source, tmp_path: Path) -> None:
    by = corrected_boxes(boxes, tmp_path / "out", 1, [Annotation("bar", Box(1, 2, 11, 12))])
    source = replaced(source=boxes, by=by)
    assert [source.id(index) for index in range(len(source))] == [boxes.id(index) for index in range(len(boxes))]
    assert source[1]["boxes"].tolist() == [[1, 2, 11, 12]] and source[1]["id"] == boxes.id(1)
    assert source.classes[source[1]["labels"][0]] == "bar"
    assert source.ground_truth(1).boxes.tolist() == [[1, 2, 10, 10]]  # type: ignore[union-attr]
    assert source.paths(1) == by.paths(0) and source.paths(0) == boxes.paths(0)
    for index in (0, 2, 3):
        assert source[index]["boxes"].equal(boxes[index]["boxes"])
    assert source.info.present is not None
    assert source.info.present[1].tolist() == [source.classes.index("bar")]
    other = corrected_boxes(boxes, tmp_path / "other", 1, [Annotation("bar", Box(1, 2, 11, 13))])
    assert len({source.fingerprint(), boxes.fingerprint(), replaced(source=boxes, by=other).fingerprint()}) == 3


def test_samples_that_cannot_take_the_place_of_others(boxes: Source, tmp_path: Path) -> None:
    by = corrected_boxes(boxes, tmp_path / "out", 1, [Annotation("bar", Box(1, 2, 11, 12))])
    with pytest.raises(ValueError, match="by: the source has no class 'block'"):
        replaced(source=Digits(), by=by)
    masks = coco(root=tmp_path / "coco", file=tmp_path / "coco/annotations.json", masks=True)
    with pytest.raises(ValueError, match="by: AnnotatedImages has no masks"):
        replaced(source=masks, by=by)
    first = boxes.select(np.array([0]))
    assert first is not None
    with pytest.raises(ValueError, match=r"by: 1 of 1 corrected sample is not in the source: "):
        replaced(source=first, by=by)
