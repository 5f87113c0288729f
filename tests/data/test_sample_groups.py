"""Samples that belong together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opabinia.contracts import SourceInfo
from opabinia.data.examination import Examination, examine
from opabinia.data.sample_groups import find_groups, group_codes, name_of_original, same_files
from opabinia.data.sources import Digits, ImageFolder, Images
from opabinia.data.sources.named import ImageFiles
from tests.data.check.images import drawn


def grouped_names(names: list[str], labels: list[int] | None = None) -> list[list[str]]:
    """Return the groups of two or more names of files that were not read."""
    info = SourceInfo() if labels is None else SourceInfo(classes=("a", "b"), labels=np.array(labels))
    source = ImageFiles(Path("root"), [name.encode() for name in names], info)
    groups = find_groups(source, Examination(np.zeros(0, dtype=np.int64), [], is_complete=False))
    members = [
        [name for name, own in zip(names, groups, strict=True) if own == group] for group in range(max(groups) + 1)
    ]
    return sorted(group for group in members if len(group) > 1)


@pytest.mark.parametrize(
    ("name", "original", "is_augmented"),
    [
        ("a/IMG_12_jpg.rf.0a1b2c3d4e.jpg", "a/IMG_12_jpg", True),
        ("street_crop1.png", "street", False),
        ("street_crop.png", "street", False),
        ("a/b/street-tile_0_512.png", "a/b/street", False),
        ("P0001__1__824___0.png", "P0001", False),
        ("P0001__0.5__0___824.png", "P0001", False),
        ("crop_12.jpg", "crop_12", False),
        ("reptile_12.jpg", "reptile_12", False),
        ("a/img_0001.jpg", "a/img_0001", False),
        ("a/cropland_1.jpg", "a/cropland_1", False),
        ("x.rf.tif", "x.rf", False),
    ],
)
def test_names_of_originals(name: str, original: str, is_augmented: bool) -> None:
    assert name_of_original(name) == (original, is_augmented)


NUMBERED = [f"{number:04d}" for number in range(20)]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ([f"img_{number}.jpg" for number in NUMBERED], 0),
        ([f"{animal}/{animal}_{number}.jpg" for animal in ("cat", "dog", "owl") for number in NUMBERED], 0),
        ([f"{number}.jpg" for number in NUMBERED], 0),
        ([f"IMG_2019{number}_{int(number) * 37 % 101}.jpg" for number in NUMBERED], 0),
        ([f"clip{clip}_{number}.jpg" for clip in range(4) for number in NUMBERED], 4),
        ([f"street{clip}_frame{number}.jpg" for clip in range(4) for number in NUMBERED], 4),
        ([f"a_mp4-{number}_jpg.rf.{number}abcdef.jpg" for number in NUMBERED] + ["b.jpg"] * 30, 0),
        ([f"{clip}_mp4-{number}_jpg.rf.{number}abcdef.jpg" for clip in "abcd" for number in NUMBERED], 4),
        ([f"patient{patient:02d}_{number}.png" for patient in range(4) for number in NUMBERED], 4),
        ([f"scan_{scan}_slice_{number}.png" for scan in range(4) for number in NUMBERED], 4),
        ([f"a/patient_{patient}/{number}.png" for patient in range(4) for number in NUMBERED], 4),
        ([f"street{street}.mp4/{number}.png" for street in range(4) for number in NUMBERED], 4),
        ([f"case_{number}.png" for number in NUMBERED], 0),
        ([f"2011_09_26_drive_000{clip}_{number}.png" for clip in range(4) for number in NUMBERED], 4),
        ([f"{subject:08d}_{scan:03d}.png" for subject in range(4) for scan in (0, 3, 8)], 4),
        ([f"n0144076{animal}_{int(number) ** 3 % 9973}.JPEG" for animal in range(4) for number in NUMBERED], 0),
        ([f"{clip}/v_Dive_g0{clip}_c0{number}.avi" for clip in range(4) for number in range(5)], 4),
        ([f"{number}_jpg.rf.{copy}0abcdef.jpg" for number in range(3) for copy in range(3)], 3),
        ([f"{number}_crop{copy}.jpg" for number in range(5) for copy in range(3)], 5),
        ([f"{word}_{number}.jpg" for word in ("removed", "sequoia", "doorframe") for number in NUMBERED], 0),
        ([f"train_patch_{number}.jpg" for number in NUMBERED], 0),
        ([f"a/{number}.jpg" for number in NUMBERED] + [f"b/{number}.jpg" for number in NUMBERED], 0),
    ],
)
def test_groups_by_names(names: list[str], groups: int) -> None:
    assert len(grouped_names([name for name in names if name != "b.jpg"])) == groups


def test_a_name_that_a_class_has_in_common_is_none_of_an_original() -> None:
    names = [f"{animal}_tile_{number}.jpg" for animal in ("cat", "dog", "owl") for number in range(6)]
    assert len(grouped_names(names)) == 3
    scenes = [f"scene_{scene}/{number}.jpg" for scene in range(2) for number in range(6)]
    assert grouped_names(scenes, [0] * 6 + [1] * 6) == []
    assert grouped_names(names[:12], [0] * 6 + [1] * 6) == []


def walk(number: int, frame: int) -> Image.Image:
    """A frame of a camera that moves over a large drawing."""
    return drawn(number, (1200, 96)).crop((8 * frame, 0, 8 * frame + 128, 96))


def static(number: int, frame: int) -> Image.Image:
    """A frame of a camera that does not move, with some noise and an object that does."""
    image = drawn(number)
    image.paste((255, 0, 0), (3 * frame, 20, 3 * frame + 50, 60))
    return image


def save_frames(folder: Path, picture: Callable[[int, int], Image.Image], name: str, clips: int, frames: int) -> Images:
    for clip in range(clips):
        for frame in range(frames):
            path = folder / name.format(clip=clip, frame=frame, all=clip * frames + frame)
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(clip, frame).save(path)
    return Images(root=folder)


@pytest.mark.parametrize("name", ["{clip}/{frame:03d}.png", "camera{clip}-{frame:03d}.png"])
@pytest.mark.parametrize("picture", [walk, static])
def test_recordings_by_their_images(picture: Callable[[int, int], Image.Image], name: str, tmp_path: Path) -> None:
    source = save_frames(tmp_path, picture, name, 6, 12)
    groups = find_groups(source, examine(source, workers=0))
    for clip in range(6):
        assert len(set(groups[12 * clip : 12 * clip + 12].tolist())) == 1
    assert len(set(groups.tolist())) == 6


def test_frames_under_one_running_number_are_cut_where_the_scene_changes(tmp_path: Path) -> None:
    source = save_frames(tmp_path, static, "img_{all:04d}.png", 6, 10)
    groups = find_groups(source, examine(source, workers=0)).reshape(6, 10)
    assert all(len(set(scene.tolist())) <= 2 for scene in groups)
    assert not any(set(groups[a].tolist()) & set(groups[b].tolist()) for a in range(6) for b in range(a))


def test_unrelated_images_are_no_group(tmp_path: Path) -> None:
    source = save_frames(tmp_path, lambda clip, frame: drawn(100 * clip + frame), "c{clip}/img_{frame:04d}.png", 2, 30)
    assert len(set(find_groups(source, examine(source, workers=0)).tolist())) == 60
    folders = ImageFolder(root=tmp_path)
    assert len(set(find_groups(folders, examine(folders, workers=0)).tolist())) == 60


def test_near_duplicates_are_a_group(tmp_path: Path) -> None:
    for number in range(20):
        drawn(number).save(tmp_path / f"{number * 7 % 20:02d}.png")
    drawn(3).save(tmp_path / "copy.jpg", quality=80)
    Image.new("L", (8, 8), 9).save(tmp_path / "small.png")
    Image.new("L", (8, 8), 9).save(tmp_path / "small too.png")
    source = Images(root=tmp_path)
    groups = dict(zip(source.split_keys(), find_groups(source, examine(source, workers=0)).tolist(), strict=True))
    assert groups["copy.jpg"] == groups["01.png"] and groups["small.png"] == groups["small too.png"]
    assert len(set(groups.values())) == 21


def test_parts_before_the_same_camera_are_no_duplicates(tmp_path: Path) -> None:
    for number in range(30):
        image = drawn(0, (256, 192))
        image.paste((number * 8, 90, 30), (90 + number % 3, 90, 100, 97))
        image.save(tmp_path / f"{number * 7 % 30:03d}.png")
    source = Images(root=tmp_path)
    examination = examine(source, workers=0)
    assert len(examination.near_duplicates()) > 100
    assert len(set(find_groups(source, examination).tolist())) == 30


def test_files_that_were_not_read_are_compared(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(bytes([number % 3]) * (5000 + number // 3))
    (tmp_path / "copy.jpg").write_bytes(bytes([1]) * 5000)
    source = Images(root=tmp_path)
    assert same_files([source]).tolist() == [-1, same_files([source])[1], -1, -1, -1, -1, same_files([source])[1]]
    groups = find_groups(source, Examination(np.zeros(0, dtype=np.int64), [], is_complete=False))
    assert groups[1] == groups[6] and len(set(groups.tolist())) == 6
    ids = np.array([0, 1])
    assert same_files([Digits(split="val")])[ids].tolist() == [-1, -1]  # no files


def test_uncompressed_images_with_the_same_background_are_not_the_same(tmp_path: Path) -> None:
    for number in range(4):
        slice_ = np.zeros((300, 200), dtype=np.uint8)
        slice_[100:150, 40:120] = drawn(number % 3, (80, 50)).convert("L")
        Image.fromarray(slice_).save(tmp_path / f"slice{number}.bmp")
    first, *_, last = codes = same_files([Images(root=tmp_path)]).tolist()
    assert codes == [first, -1, -1, last] and first == last >= 0


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("folder", [0, 0, 1, 1]),
        ("camera", [0, 1, 0, 0]),
        ("(p[0-9]+)_", [0, 1, 0, 1]),
        ("^(.)/(p[0-9]+)_", [0, 1, 2, 3]),
    ],
)
def test_samples_are_equal_in_a_field(field: str, expected: list[int]) -> None:
    info = SourceInfo(cameras=np.array([3, 5, 3, 3]))
    source = ImageFiles(Path("root"), [b"a/p1_1.jpg", b"a/p2_2.jpg", b"b/p1_3.jpg", b"b/p2_4.jpg"], info)
    assert group_codes(source, field).tolist() == expected


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("view", "the samples have no view; a regular expression finds groups in their names"),
        ("p[0-9]", "'p\\[0-9\\]' is neither a field .* nor a regular expression with a group in \\(\\)"),
        ("(p", "'\\(p' is no regular expression: missing \\)"),
        ("(p1)", "'\\(p1\\)' is not in 1 of 2 names of samples, such as 'a/p2_2.jpg'"),
    ],
)
def test_fields_that_samples_do_not_have(field: str, message: str) -> None:
    source = ImageFiles(Path("root"), [b"a/p1_1.jpg", b"a/p2_2.jpg"], SourceInfo())
    with pytest.raises(ValueError, match=message):
        group_codes(source, field)
