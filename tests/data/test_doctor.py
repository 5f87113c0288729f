"""The data doctor: what it counts, and what it finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from opabinia.data.doctor import check_up
from opabinia.data.sources import Digits, ImageFolder, Joined, Videos, ViewsOfFilms, coco
from opabinia.data.sources.faults import TOLD
from scripts import small_data
from tests.data.films import write, write_sound


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
    size, unreadable = sorted(check_up(source).problems, key=lambda fault: fault.first[0].picture)
    assert (size.kind, size.count) == ("pictures of another size", 1)
    assert size.first[0].picture == "1.png" and "48 x 64 pixels" in size.first[0].value
    assert (unreadable.kind, unreadable.first[0].picture) == ("pictures that cannot be read", "2.png")


def test_what_the_source_left_out_is_told(root: Path) -> None:
    edit(root, 0, bbox=[5, 5, -3, 4])
    (fault,) = check_up(read(root)).problems
    assert fault.kind == "boxes without area" and (fault.first[0].picture, fault.first[0].thing) == (
        "1.png",
        "annotation 100",
    )


def test_run_lengths_are_decoded(root: Path) -> None:
    edit(root, 0, segmentation={"size": [48, 64], "counts": "zzz"})
    (fault,) = check_up(read(root, masks=True)).problems
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


def test_films(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "jump" / f"{number}.mp4", 5 + 10 * number, size=(32, 32 + 8 * number))
    write(tmp_path / "run" / "uneven.mp4", 4, size=(24, 24), times=[0, 100, 200, 300])
    whole = check_up(Videos(root=tmp_path))
    assert (whole.pictures, whole.of_class, whole.problems) == (4, {"jump": 3, "run": 1}, [])
    assert whole.films is not None and whole.boxes is None
    assert (whole.films.smallest, whole.films.largest) == ((24, 24), (32, 48))
    assert whole.films.frames == (4, 10, 25) and whole.films.fps == (10, 25, 25)
    assert whole.films.seconds == pytest.approx((0.2, 0.5, 1.0))

    (tmp_path / "run" / "empty.mp4").touch()
    write_sound(tmp_path / "run" / "sound.mp4")
    cut = write(tmp_path / "run" / "cut.mkv", 40, size=(32, 32), gop=5)
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    found = check_up(ViewsOfFilms(source=Videos(root=tmp_path), clips=2, crops=3))
    assert found.pictures == 7 and found.of_class == {"jump": 3, "run": 4}, "films, not views"
    unreadable, damaged = sorted(found.problems, key=lambda fault: -fault.count)
    assert unreadable.kind == "films that cannot be read" and unreadable.count == 2
    assert str(unreadable.first[0]) == f"sample 4: {tmp_path / 'run' / 'empty.mp4'} is empty: it has 0 bytes"
    assert (
        damaged.kind.startswith("films that are damaged") and "cut.mkv is cut off; the first" in damaged.first[0].value
    )
