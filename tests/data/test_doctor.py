"""The data doctor: what it counts, and what it finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from opabinia.data.doctor import check_up, problems
from opabinia.data.sources import Digits, ImageFolder, Joined, coco
from opabinia.data.sources.faults import TOLD
from scripts import small_data


@pytest.fixture
def root(tmp_path: Path) -> Path:
    small_data.coco(tmp_path)
    return tmp_path


def edit(root: Path, place: int, **values: Any) -> None:
    content = json.loads((root / "things.json").read_text())
    content["annotations"][place].update(values)
    (root / "things.json").write_text(json.dumps(content))


def read(root: Path, **keys: Any) -> Any:
    return coco(root=root, file=root / "things.json", broken="drop", **keys)


def test_things_are_counted(root: Path) -> None:
    edit(root, 0, bbox=[63, 5, 1.5, 10])  # half a pixel of it is outside
    found = check_up(read(root, classes=["bar", "block"], masks=True))
    assert (found.pictures, found.of_class, found.problems) == (4, {"bar": 2, "block": 3}, [])
    assert found.boxes is not None
    assert (found.boxes.things, found.boxes.of_class, found.boxes.crowds) == (5, {"bar": 2, "block": 3}, 1)
    assert (found.boxes.empty, found.boxes.tiny) == (1, 1)
    assert found.boxes.smallest == found.boxes.largest == (48, 64)


def test_joined_sets_are_counted_together(root: Path) -> None:
    found = check_up(Joined(sources=[Digits(), Digits(split="val")]))
    assert found.pictures == sum(found.of_class.values()) == len(Digits()) + len(Digits(split="val"))
    assert found.boxes is None and found.problems == []


def test_pictures_that_cannot_be_read_or_have_another_size(root: Path) -> None:
    source = read(root)
    Image.new("RGB", (48, 64)).save(root / "1.png")
    (root / "2.png").write_bytes(b"no picture")
    size, unreadable = sorted(problems(source), key=lambda fault: fault.first[0].picture)
    assert (size.kind, size.count) == ("pictures of another size", 1)
    assert size.first[0].picture == "1.png" and "48 x 64 pixels" in size.first[0].value
    assert (unreadable.kind, unreadable.first[0].picture) == ("pictures that cannot be read", "2.png")


def test_what_the_source_left_out_is_told(root: Path) -> None:
    edit(root, 0, bbox=[5, 5, -3, 4])
    (fault,) = problems(read(root))
    assert fault.kind == "boxes without area" and (fault.first[0].picture, fault.first[0].thing) == (
        "1.png",
        "annotation 100",
    )


def test_run_lengths_are_decoded(root: Path) -> None:
    edit(root, 0, segmentation={"size": [48, 64], "counts": "zzz"})
    (fault,) = problems(read(root, masks=True))
    assert fault.count == 1 and (fault.first[0].picture, fault.first[0].thing) == ("1.png", "annotation 100")


def test_every_sample_of_other_sources_is_read(tmp_path: Path) -> None:
    for number in range(TOLD + 5):
        path = tmp_path / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no picture")
    Image.new("RGB", (5, 4)).save(tmp_path / "a" / "00.png")
    found = check_up(ImageFolder(root=tmp_path))
    assert found.of_class == {"a": 8, "b": 7} and found.boxes is None
    (fault,) = found.problems
    assert fault.count == TOLD + 4 and len(fault.first) == TOLD and "02.png cannot be decoded" in fault.first[0].value
