"""Oriented objects in DOTA's text format."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from opabinia.contracts import DrawOptions, Source
from opabinia.data.check import run_checks
from opabinia.data.sources import dota
from opabinia.visualization.presenters.by_keys import draw_sample

HEADER = "imagesource:GoogleEarth\ngsd:0.146343590398\n"
SHIP = "10 20 30 10.0 35 20 15 30 ship 0"
HARD = "40 10 50 10 50 20 40 20 small-vehicle 1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("images", "labelTxt"):
        (tmp_path / folder).mkdir()
    for name, text in (("P1", f"{HEADER}{SHIP}\n{HARD}\n\n"), ("P2", "")):
        Image.new("RGB", (60, 40)).save(tmp_path / "images" / f"{name}.png")
        (tmp_path / "labelTxt" / f"{name}.txt").write_text(text)
    return tmp_path


def test_corners_classes_and_difficult_objects(root: Path) -> None:
    source = dota(root=root)
    assert isinstance(source, Source)
    assert source.info.boxes and source.info.oriented
    assert source.classes == ("ship", "small-vehicle") and source.info.category_ids == (1, 2) and len(source) == 2
    sample = source[0]
    ground_truth = sample["ground_truth"]
    assert sample["id"] == "images/P1.png" == ground_truth.image_id
    assert sample["boxes"].tolist() == [pytest.approx([22.5, 20, 500**0.5, 125**0.5, 26.565], abs=1e-3)]
    assert sample["labels"].tolist() == [0] and ground_truth.labels.tolist() == [0, 1]
    assert ground_truth.crowd.tolist() == [False, True] and ground_truth.ids.tolist() == [3, 4]
    assert ground_truth.corners[0].tolist() == [[10, 20], [30, 10], [35, 20], [15, 30]]
    assert ground_truth.boxes.tolist() == [[10, 10, 25, 20], [40, 10, 10, 10]]
    assert ground_truth.areas.tolist() == pytest.approx([250, 100])
    assert source[1]["boxes"].shape == (0, 5) and source[1]["ground_truth"].corners.shape == (0, 4, 2)
    selected = dota(root=root, classes=["plane", "small-vehicle", "ship"], empty="drop")
    assert selected[0]["labels"].tolist() == [2] and len(selected) == 1
    drawn = draw_sample(sample, source.info, DrawOptions())
    assert drawn.width >= 60 and len(set(drawn.get_flattened_data())) > 2


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (SHIP[:-2], "1 line that is not x1 y1 ... x4 y4 class difficult", "9 columns, expected 10"),
        (f"{SHIP} 0", "1 line that is not", "11 columns, expected 10"),
        ("x" + SHIP, "1 line that is not", "'x10' is not a number of at most 16777216"),
        (SHIP[:-1] + "9", "1 line that is not", "difficult is '9', expected 0, 1 or 2"),
        (SHIP.replace("ship", "shop"), "1 unknown class", "class 'shop'"),
    ],
)
def test_every_broken_line_is_named(root: Path, line: str, kind: str, message: str) -> None:
    (root / "labelTxt" / "P1.txt").write_text(f"{HEADER}{HARD}\n{line}\n")
    with pytest.raises(ValueError, match=f"{kind}.*P1.txt, line 4: {message}"):
        dota(root=root, classes=["ship", "small-vehicle"])
    source = dota(root=root, classes=["ship", "small-vehicle"], broken="drop")
    assert source[0]["ground_truth"].ids.tolist() == [3]


def test_missing_label_files_and_folders(root: Path) -> None:
    (root / "labelTxt" / "P2.txt").unlink()
    with pytest.raises(ValueError, match=r"1 label file that cannot be read: P2\.txt: No such file or directory"):
        dota(root=root)
    assert len(dota(root=root, broken="drop")) == 1
    with pytest.raises(ValueError, match="annfiles"):
        dota(root=root, labels="annfiles")
    (root / "labelTxt" / "P1.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"P1\.txt: 'utf-8' codec can't decode byte"):
        dota(root=root)
    with pytest.raises(ValueError, match=r"labelTxt has no label file that can be read"):
        dota(root=root, broken="drop")


def test_the_data_check_reports_and_counts_oriented_boxes(root: Path) -> None:
    flat, outside = "10 10 20 20 10 10 20 20 ship 0", "55 10 75 10 75 20 55 20 ship 0"
    partly, tiny = "50 10 65 10 65 20 50 20 ship 0", "10 10 40 39 41 38 11 9 ship 0"
    (root / "labelTxt" / "P2.txt").write_text("\n".join([flat, outside, partly, tiny]))
    with pytest.raises(ValueError, match=r"line 1: .*; images/P2\.png, line 2: .*broken: clip clips"):
        dota(root=root)
    report = run_checks({"train": dota(root=root, broken="drop")})
    cases = {
        finding.kind: [f"{case[0].id} {case[0].annotation}" for case in finding.cases] for finding in report.findings
    }
    assert cases["boxes without area"] == ["images/P2.png line 1"]
    assert cases["oriented boxes whose center is outside the image"] == ["images/P2.png line 2"]
    assert cases["boxes with a side of less than 2 pixels"] == ["images/P2.png line 4"]
    boxes = report.datasets["train"].boxes
    assert boxes is not None and (boxes.objects, boxes.crowds, boxes.tiny) == (3, 1, 1)
    assert boxes.per_class == {"ship": 3, "small-vehicle": 0}
