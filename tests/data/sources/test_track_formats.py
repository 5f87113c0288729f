"""Videos with tracks in the formats of CVAT, KITTI and CocoVID: the same frames and tracks, and damaged files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.contracts.tracking import Role
from opabinia.data.sources import mot
from opabinia.data.sources.track_formats import _interpolated
from opabinia.data.sources.voc import parse_xml
from tests.data.sources.test_mot import tracks_of

FRAMES = 4
BOX = (2, 3, 22, 23)
"""Left, top, right, bottom in frame 0; it moves by 10 pixels to the right in each frame."""


def write_frames(folder: Path, template: str) -> None:
    folder.mkdir(parents=True)
    for number in range(FRAMES):
        Image.new("L", (64, 48), number * 9).save(folder / template.format(number))


def box(frame: int, /, **changes: Any) -> str:
    corners = {"xtl": BOX[0] + 10 * frame, "ytl": BOX[1], "xbr": BOX[2] + 10 * frame, "ybr": BOX[3]}
    values = {"frame": frame, "outside": 0, "occluded": 0, "keyframe": 1} | corners | changes
    attributes = " ".join(f'{key}="{value}"' for key, value in values.items())
    return f"<box {attributes}/>"


def cvat_file(*boxes: str, label: str = "dog") -> str:
    labels = "".join(f"<label><name>{name}</name></label>" for name in ("cat", "dog"))
    meta = f"<meta><task><labels>{labels}</labels></task></meta>"
    return f'<annotations>{meta}<track id="7" label="{label}">{"".join(boxes)}</track></annotations>'


def kitti_line(frame: int, track: int = 7, name: str = "dog") -> str:
    left, top, right, bottom = BOX
    return f"{frame} {track} {name} 0 0 -1 {left + 10 * frame} {top} {right + 10 * frame} {bottom} 1 1 1 0 0 0 -1"


def coco_content() -> dict[str, Any]:
    common = {"category_id": 5, "instance_id": 7}
    return {
        "categories": [{"id": 5, "name": "dog"}],
        "videos": [{"id": 1, "name": "a", "fps": 5}],
        "images": [
            {"id": 10 + frame, "video_id": 1, "frame_id": frame, "file_name": f"a/{frame}.png"}
            for frame in range(FRAMES)
        ],
        "annotations": [
            {"id": frame, "image_id": 10 + frame, "bbox": [BOX[0] + 10 * frame, BOX[1], 20, 20]} | common
            for frame in (0, 1, 2)
        ],
    }


def write(root: Path, format: str) -> Path:
    if format == "cvat":
        write_frames(root / "a" / "images", "frame_{:06d}.PNG")
        (root / "a" / "annotations.xml").write_text(cvat_file(box(0), box(2), box(3, outside=1)), encoding="utf-8")
    elif format == "kitti":
        write_frames(root / "image_02" / "a", "{:06d}.png")
        (root / "label_02").mkdir()
        lines = [*map(kitti_line, (0, 1, 2)), kitti_line(1, -1, "DontCare"), kitti_line(0, -1, "DontCare")]
        (root / "label_02" / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    else:
        write_frames(root / "a", "{}.png")
        (root / "tracks.json").write_text(json.dumps(coco_content()), encoding="utf-8")
    return root


FORMATS: dict[str, dict[str, Any]] = {"cvat": {}, "kitti": {}, "coco_vid": {"file": "tracks.json"}}


@pytest.mark.parametrize("format", FORMATS)
def test_frames_and_tracks(format: Any, tmp_path: Path) -> None:
    source = mot(root=write(tmp_path, format), format=format, classes=["dog"], **FORMATS[format])
    assert len(source) == FRAMES and source.classes == ("dog",)
    assert source[1]["boxes"].tolist() == [[12, 3, 32, 23]] and len(source[3]["boxes"]) == 0
    truth = tracks_of(source)["a"]
    counted = truth.roles == Role.COUNTED
    assert truth.frames[counted].tolist() == [0, 1, 2] and set(truth.ids[counted].tolist()) == {7}
    assert truth.boxes[counted][:, 0].tolist() == [2, 12, 22], "of CVAT, the box of frame 1 is interpolated"
    track = source.ground_truth(2).track
    assert track is not None and track.time == (0.4 if format == "coco_vid" else None)


def test_regions_are_ignored_for_all_classes(tmp_path: Path) -> None:
    file = write(tmp_path, "kitti") / "label_02" / "a.txt"
    file.write_text(f"{file.read_text()}\n{kitti_line(3, 8, 'cat')}", encoding="utf-8")
    source = mot(root=tmp_path, format="kitti")
    assert source.classes == ("cat", "dog"), "sorted, without regions"
    ground_truth = source.ground_truth(0)
    objects = sorted(zip(ground_truth.labels.tolist(), ground_truth.crowd.tolist(), strict=True))
    assert objects == [(0, True), (1, False), (1, True)]
    assert np.bincount(tracks_of(source)["a"].roles, minlength=4).tolist() == [4, 0, 0, 2]


def test_outside_ends_the_visibility() -> None:
    boxes = [box(0), box(2, outside=1), box(5, xtl=0, ytl=0, xbr=10, ybr=10), box(7, xtl=4, ytl=0, xbr=14, ybr=20)]
    rows = _interpolated(parse_xml(f"<track>{''.join(reversed(boxes))}</track>".encode()), 7, 1)
    assert [values[0] for _, values in rows] == [0, 1, 5, 6, 7]
    assert rows[3][1][2:6] == [2, 0, 10, 15]
    assert _interpolated(parse_xml(b"<track/>"), 7, 1) == []


def test_frames_that_are_counted_from_another_number(tmp_path: Path) -> None:
    write_frames(tmp_path / "a" / "img1", "{:06d}.png")
    (tmp_path / "a" / "gt").mkdir()
    (tmp_path / "a" / "gt" / "gt.txt").write_text(f"1,1,1,1,9,9,1\n{FRAMES},1,1,1,9,9,1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2: there is no image of the frame; .* \(first_frame: 1 would fit\)"):
        mot(root=tmp_path)
    source = mot(root=tmp_path, first_frame=1)
    assert [len(source[index]["boxes"]) for index in range(FRAMES)] == [1, 0, 0, 1]


# --- damaged files ----------------------------------------------------------------------------------------------------


def content(name: str, *lines: str) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        (root / name).write_text("\n".join(lines), encoding="utf-8")

    return damage


def removed(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def cvat(*boxes: str, label: str = "dog") -> Callable[[Path], None]:
    return content(XML, cvat_file(*boxes, label=label))


def coco(key: str, number: int, **changes: Any) -> Callable[[Path], None]:
    """Change entries of a record; None removes them."""
    table = coco_content()
    changed = table[key][number] | changes
    table[key][number] = {name: value for name, value in changed.items() if value is not None}
    return content(JSON, json.dumps(table))


XML, TXT, JSON = "a/annotations.xml", "label_02/a.txt", "tracks.json"
CASES: dict[str, dict[str, tuple[Callable[[Path], None], str]]] = {
    "cvat": {
        "no XML": (content(XML, "<annotations>"), "not complete XML"),
        "a document type": (content(XML, "<!DOCTYPE a><annotations/>"), "declares a document type"),
        "no tracks": (content(XML, "<annotations/>"), "has no tracks: export the task as CVAT for video 1.1"),
        "an unknown label": (cvat(box(0), label="cow"), "track 7: label 'cow' is none of the task's: cat, dog"),
        "a polygon": (cvat('<polygon frame="0"/>'), "track 7: a polygon at frame 0: only boxes are read"),
        "a corner that is text": (cvat(box(0, xtl="x")), "track 7: box 1: 'x' is not a number"),
        "a frame that is text": (cvat(box(0, frame="x")), "track 7: box 1: 'x' is not an integer"),
        "no flag": (cvat(box(0, outside=2)), "box 1: '2' is none of 0, 1, true and false"),
        "frames beyond the images": (cvat(box(4)), "box 1: there is no image of the frame; there are 0 to 3"),
        "two boxes in a frame": (cvat(box(1), box(1)), "box 2: the track has two boxes in the frame"),
        "no area": (cvat(box(0, xbr=1)), "box 1: the box has no area: 'frame 0 of track 7'"),
        "no file": (removed(XML), "none of its folders has an annotations.xml"),
    },
    "kitti": {
        "columns are missing": (content(TXT, "0 7 dog 0 0 -1 1 2 3 4"), "line 1: 10 columns in place of 17"),
        "text": (content(TXT, kitti_line(0).replace(" 2 3 ", " x 3 ")), "line 1: 'x' is not a number"),
        "no image": (content(TXT, kitti_line(0), kitti_line(9)), "line 2: there is no image of the frame"),
        "a track twice": (content(TXT, kitti_line(0), kitti_line(0)), "line 2: the track has two boxes"),
        "no track": (content(TXT, kitti_line(0, -1)), "line 1: the track is negative"),
        "no labels": (removed(TXT), r"has no label_02/\*.txt, the label files of KITTI tracking"),
    },
    "coco_vid": {
        "no JSON": (content(JSON, "{"), JSON),
        "a list": (content(JSON, "[]"), "has no list categories: it is not of the format CocoVID"),
        "no name": (coco("videos", 0, name=None), "videos.0 has no name"),
        "a frame that is text": (coco("images", 1, frame_id="x"), "images.1: 'x' is not an integer"),
        "a path that leads out": (coco("images", 1, file_name="../b.png"), "images.1: '../b.png' is not below"),
        "a frame twice": (coco("images", 1, frame_id=0), "images.1: the video has two frames with the number 0"),
        "an unknown image": (coco("annotations", 2, image_id=3), "annotations.2: image_id 3 is unknown"),
        "an unknown class": (coco("annotations", 0, category_id=3), "annotations.0: category_id 3 is unknown"),
        "no box": (coco("annotations", 0, bbox=[1]), "annotations.0: bbox .1. is no list of four numbers"),
        "no track": (coco("annotations", 0, instance_id=None), "annotations.0: None is not an integer"),
        "no area": (coco("annotations", 1, bbox=[1, 2, 0, 3]), "annotation 1: the box has no area"),
        "no images": (coco("videos", 0, id=2), "videos.0: 'a' has no images"),
    },
}


@pytest.mark.parametrize(("format", "name"), [(format, name) for format, cases in CASES.items() for name in cases])
def test_a_damaged_file_has_one_clear_error(format: Any, name: str, tmp_path: Path) -> None:
    damage, message = CASES[format][name]
    damage(write(tmp_path, format))
    with pytest.raises(ValueError, match=message) as caught:
        mot(root=tmp_path, format=format, **FORMATS[format])
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file: coco_vid needs it"):
        mot(root=tmp_path, format="coco_vid")
