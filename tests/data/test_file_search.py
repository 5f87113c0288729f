"""Tests of searching folders: no reader takes hidden files, as of macOS, for data, or follows a loop of links."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from PIL import Image

from opabinia.data.file_search import find_files, list_images
from opabinia.data.sources import FrameFolders, dota, kitti, market1501, mot, named_images, voc, yolo
from opabinia.inference.input_files import find_files as find_inputs

HIDDEN = b"\0\5\x16\7Mac OS X"
"""Beginning of the file ``._1.jpg`` that macOS writes next to ``1.jpg`` on disks of other systems."""


def write(root: Path, *files: str, text: str = "") -> None:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if text:
            (root / name).write_text(text)
        else:
            Image.new("RGB", (20, 10)).save(root / name)


def link(path: Path, target: Path) -> None:
    if not path.is_symlink():
        path.symlink_to(target)


def make_yolo(root: Path) -> Sequence[str]:
    write(root, "images/a/1.jpg", "images/2.jpg")
    write(root, "labels/a/1.txt", text="0 0.5 0.5 0.2 0.2")
    link(root / "images" / "a" / "loop", root / "images")
    source = yolo(data=root / "images", root=root, names=["x"])
    return [source.id(index) for index in range(len(source))]


def make_dota(root: Path) -> Sequence[str]:
    write(root, "images/1.png", "images/2.png")
    write(root, "labelTxt/1.txt", "labelTxt/2.txt", text="1 1 9 1 9 9 1 9 x 0")
    source = dota(root=root)
    return [source.id(index) for index in range(len(source))]


def make_kitti(root: Path) -> Sequence[str]:
    write(root, "image_2/1.png", "image_2/2.png")
    lines = "Car 0 0 0 1 1 9 9 0 0 0 0 0 0 0"
    write(root, "label_2/1.txt", "label_2/2.txt", text=lines)
    source = kitti(root=root)
    return [source.id(index) for index in range(len(source))]


def make_voc(root: Path) -> Sequence[str]:
    write(root, "1.jpg", "2.jpg")
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    write(root, "1.xml", "2.xml", text=f"<annotation><object><name>x</name>{box}</object></annotation>")
    source = voc(root=root, split=None)
    return [source.id(index) for index in range(len(source))]


def make_named(root: Path) -> Sequence[str]:
    write(root, "cat.1.jpg", "dog.1.jpg")
    source = named_images(root=root)
    return [source.id(index) for index in range(len(source))]


def make_market(root: Path) -> Sequence[str]:
    write(root, "bounding_box_train/0001_c1_1.jpg", "bounding_box_train/0002_c2_1.jpg")
    source = market1501(root=root)
    return [source.id(index) for index in range(len(source))]


def make_frames(root: Path) -> Sequence[str]:
    write(root, "video/1.jpg", "video/2.jpg")
    write(root, "list.txt", text="video 0\n")
    frames = FrameFolders(file=root / "list.txt")[0]["video"]
    frames.read(range(frames.frames))
    return [frames.name(number) for number in range(frames.frames)]


def make_kitti_tracks(root: Path) -> Sequence[str]:
    write(root, "image_02/0000/000000.png", "image_02/0001/000000.png")
    lines = "0 1 Car 0 0 0 1 1 9 9 0 0 0 0 0 0 0"
    write(root, "label_02/0000.txt", "label_02/0001.txt", text=lines)
    source = mot(root=root, format="kitti")
    return [source.id(index) for index in range(len(source))]


def make_inputs(root: Path) -> Sequence[str]:
    write(root, "b/1.jpg", "2.jpg")
    link(root / "b" / "loop", root)
    return [str(path.relative_to(root)) for path in find_inputs([root])]


@pytest.mark.parametrize(
    "make",
    [make_yolo, make_dota, make_kitti, make_voc, make_named, make_market, make_frames, make_kitti_tracks, make_inputs],
    ids=lambda make: make.__name__,
)
def test_hidden_files_are_no_images(
    make: Callable[[Path], Sequence[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = list(make(tmp_path))
    for path in [path for path in tmp_path.rglob("*.*") if path.is_file()]:
        path.with_name(f"._{path.name}").write_bytes(HIDDEN)
    assert list(make(tmp_path)) == found and len(found) == 2
    assert not caplog.messages


def test_images_before_arrays_and_no_subfolders(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "2.npy").touch()
    assert list_images(tmp_path) == [b"2.npy"]
    write(tmp_path, "1.png", "b/3.jpg")
    assert list_images(tmp_path) == [b"1.png"]
    assert find_files(tmp_path) == [b"1.png", b"b/3.jpg"]
    assert find_files(tmp_path, suffixes=[".npy"]) == [b"2.npy"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir(mode=0)
    for search in (list_images, find_files):
        with pytest.raises(ValueError, match=r"secret cannot be searched: Permission denied"):
            search(tmp_path / "secret")
