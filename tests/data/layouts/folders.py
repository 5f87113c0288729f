"""Small folders of data in every layout, and broken and ambiguous ones."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".tif": "TIFF", ".bmp": "BMP", ".gif": "GIF", ".ppm": "PPM"}


@cache
def encoded_image(suffix: str, mode: str = "RGB", values: tuple[int, ...] = (0,)) -> bytes:
    """Return an image file of 8 x 8 pixels, with these values in turn."""
    pixels = np.resize(np.array(values, np.uint8), (8, 8) if mode in ("L", "P") else (8, 8, len(mode)))
    image = Image.fromarray(pixels, "L" if mode == "P" else mode)
    if mode == "P":
        image = image.convert("P")
        image.frombytes(pixels.tobytes())
        image.putpalette([channel for value in range(256) for channel in (value, 255 - value, value // 2)])
    file = io.BytesIO()
    image.save(file, FORMATS[suffix.lower()])
    return file.getvalue()


class Maker:
    """Writes files below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file and its folder."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def images(self, *names: str) -> None:
        """Write images; ``{a,b}`` stands for both, ``*3`` at the end for three numbered ones."""
        for name in names:
            for path in expand(name):
                self.write(path, encoded_image(os.path.splitext(path)[1]))

    def maps(self, *names: str, values: tuple[int, ...] = (0, 1, 2), mode: str = "L") -> None:
        """Write segmentation maps with these values, all of them in each."""
        for name in names:
            for path in expand(name):
                self.write(path, encoded_image(os.path.splitext(path)[1], mode, values))

    def json(self, name: str, content: Any) -> None:
        """Write JSON."""
        self.write(name, json.dumps(content))


def expand(name: str) -> list[str]:
    """Return the names that ``a{b,c}/{1..3}.jpg`` stands for."""
    start, brace, rest = name.partition("{")
    if not brace:
        return [name]
    options, _, end = rest.partition("}")
    first, dots, last = options.partition("..")
    chosen = [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)] if dots else options.split(",")
    return [path for option in chosen for path in expand(f"{start}{option}{end}")]


# --- annotations ------------------------------------------------------------------------------------------------------


def coco(names: Sequence[str], *, masks: bool = False, keypoints: bool = False, **more: Any) -> dict[str, Any]:
    """Return annotations of one box in each image, in COCO's format."""
    category = {"id": 1, "name": "cat"} | ({"keypoints": ["nose"], "skeleton": []} if keypoints else {})
    boxes = []
    for number in range(1, len(names) + 1):
        box: dict[str, Any] = {"id": number, "image_id": number, "category_id": 1, "bbox": [1, 1, 4, 4]}
        box |= {"area": 16, "iscrowd": 0}
        box |= {"segmentation": [[1, 1, 5, 1, 5, 5, 1, 5]]} if masks else {}
        box |= {"keypoints": [2, 2, 2], "num_keypoints": 1} if keypoints else {}
        boxes.append(box)
    images = [{"id": i, "file_name": name, "width": 8, "height": 8} for i, name in enumerate(names, 1)]
    return {"images": images, "annotations": boxes, "categories": [category]} | more


def panoptic(names: Sequence[str]) -> dict[str, Any]:
    """Return panoptic annotations of one segment in each image."""
    content = coco(names)
    segment = {"id": 1, "category_id": 1, "iscrowd": 0, "area": 64, "bbox": [0, 0, 8, 8]}
    content["annotations"] = [
        {"image_id": i, "file_name": f"{os.path.splitext(name)[0]}.png", "segments_info": [segment]}
        for i, name in enumerate(names, 1)
    ]
    content["categories"] = [{"id": 1, "name": "cat", "isthing": 1}]
    return content


def voc_xml(name: str = "cat") -> str:
    """Return an XML file of Pascal VOC with one object."""
    sides = "".join(
        f"<{side}>{value}</{side}>" for side, value in zip(("xmin", "ymin", "xmax", "ymax"), (1, 1, 5, 5), strict=True)
    )
    size = "<size><width>8</width><height>8</height><depth>3</depth></size>"
    return f"<annotation>{size}<object><name>{name}</name><bndbox>{sides}</bndbox></object></annotation>"


def labelme_json(image: str, label: str = "cat") -> dict[str, Any]:
    """Return a file of LabelMe with one polygon."""
    shape = {"label": label, "points": [[1, 1], [5, 1], [5, 5]], "shape_type": "polygon", "group_id": None}
    return {"version": "5", "shapes": [shape], "imagePath": image, "imageHeight": 8, "imageWidth": 8}


def via_json(names: Sequence[str], label: str = "cat") -> dict[str, Any]:
    """Return a file of VIA with a rectangle in each image."""
    shape = {"name": "rect", "x": 1, "y": 1, "width": 4, "height": 4}
    region = {"shape_attributes": shape, "region_attributes": {"kind": label, "class": label}}
    return {f"{name}1": {"filename": name, "size": 1, "regions": [region], "file_attributes": {}} for name in names}


def cvat_xml(names: Sequence[str]) -> str:
    """Return a file of CVAT with one polygon in each image."""
    shape = '<polygon label="cat" points="1,1;5,1;5,5" z_order="0"/>'
    images = "".join(
        f'<image id="{i}" name="{name}" width="8" height="8">{shape}</image>' for i, name in enumerate(names)
    )
    meta = "<meta><task><labels><label><name>cat</name></label></labels></task></meta>"
    return f"<annotations><version>1.1</version>{meta}{images}</annotations>"


BOX, POLYGON, CORNERS = "0 0.5 0.5 0.5 0.5\n", "0 0.1 0.1 0.9 0.1 0.5 0.9\n", "1 0.1 0.1 0.9 0.1 0.9 0.9 0.1 0.9\n"
"""Lines of YOLO's label files."""
DOTA_LINES = "imagesource:GoogleEarth\ngsd:0.1\n1 1 6 1 6 6 1 6 plane 0\n"


def yolo(make: Maker, *places: tuple[str, str], line: str = BOX) -> None:
    """Write images and label files in pairs of folders, two in each."""
    for images, labels in places:
        make.images(f"{images}/{{1..2}}.jpg")
        for number in (1, 2):
            make.write(f"{labels}/{number}.txt", line)


# --- folders ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A folder, and how it is read.

    Attributes:
        name: name of the test.
        make: writes the files.
        layout, task: the expected reading.
        train, val, test: number of samples of each split; None: there is none.
        given: arguments of ``recognize``.
        file: a single file that is given in place of the folder.
        classes: expected names of the classes of the source.
        notes: parts of the expected remarks.
    """

    name: str
    make: Callable[[Maker], object]
    layout: str
    task: str
    train: int
    val: int | None = None
    test: int | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    classes: Sequence[str] | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Wrong:
    """A folder that cannot be read, or in several ways, and parts of the expected error."""

    name: str
    make: Callable[[Maker], object]
    parts: Sequence[str]
    given: Mapping[str, str] = field(default_factory=dict)
    file: str = ""


def shards(make: Maker, *names: str, label: str = "cls") -> None:
    """Write tar files of two images with labels."""
    for name in names:
        path = make.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for number in range(2):
                content = str(number) if label == "cls" else json.dumps({"label": f"class {number}"})
                for suffix, data in ((label, content.encode()), ("jpg", encoded_image(".jpg"))):
                    member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def idx(make: Maker, *prefixes: str) -> None:
    """Write idx files of four images."""
    for prefix in prefixes:
        for name, array in (("images-idx3", np.zeros((4, 8, 8))), ("labels-idx1", np.arange(4))):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
            make.write(f"{prefix}-{name}-ubyte", header + array.astype(np.uint8).tobytes())


def videos(make: Maker, *names: str) -> None:
    """Write files whose content is not read."""
    for name in names:
        for path in expand(name):
            make.write(path, b"x")


def steps(*parts: Callable[[Maker], object]) -> Callable[[Maker], None]:
    """Return a function that makes all of these."""

    def make_all(make: Maker) -> None:
        for part in parts:
            part(make)

    return make_all


def images(*names: str) -> Callable[[Maker], None]:
    """Return a function that writes images."""
    return lambda make: make.images(*names)


def text(name: str, content: str) -> Callable[[Maker], None]:
    """Return a function that writes a file."""
    return lambda make: make.write(name, content)


def content(name: str, value: Any) -> Callable[[Maker], None]:
    """Return a function that writes a JSON file."""
    return lambda make: make.json(name, value)


def maps(*names: str, values: tuple[int, ...] = (0, 1, 2), mode: str = "L") -> Callable[[Maker], None]:
    """Return a function that writes segmentation maps."""
    return lambda make: make.maps(*names, values=values, mode=mode)


CATS = ["{cat,dog}/{1..2}.jpg"]
CAT_SPLITS = ["train/{cat,dog}/{1..3}.jpg", "val/{cat,dog}/1.jpg"]
MARKET = ["{bounding_box_train,query,bounding_box_test}/{0001,0002}_c{1,2}s1_000001_00.jpg"]


def numbered(name: str, first: int) -> Callable[[Maker], None]:
    """Return a step that writes maps whose values number objects of a pixel, ``first`` in one map, and one more in each
    further one."""

    def write(make: Maker) -> None:
        for count, path in enumerate(expand(name), first):
            pixels = np.arange(1, 65, dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(np.where(pixels <= count, pixels, 0).reshape(8, 8)).save(file, "PNG")
            make.write(path, file.getvalue())

    return write
