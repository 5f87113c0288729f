"""Damaged and hostile files, given to commands: an error that names the file, exit status 2, no traceback.

``tests/data/sources/test_annotation_values.py`` has all values of annotations; here is one of each kind.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scripts import small_data
from tests.cli.conftest import CommandResult
from tests.data.sources.test_shards import write as write_shard
from tests.data.videos import write as write_video

Command = Callable[..., CommandResult]
DEEP = "[" * 100_000
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 9)
)


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    """Interrupt a test that hangs or fills the memory, after 30 s."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(30)
    yield
    signal.alarm(0)


def write(file: Path, content: str | Image.Image, **options: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content) if isinstance(content, str) else content.save(file, **options)


def coco(**values: Any) -> Callable[[Path], object]:
    def make(root: Path) -> None:
        content = small_data.coco_content(root)
        content["annotations"][0].update(values)
        write(root / "a.json", json.dumps(content))

    return make


def cvat(size: str, shape: str = "") -> Callable[[Path], object]:
    labels = "<meta><task><labels><label><name>cat</name></label></labels></task></meta>"

    def make(root: Path) -> None:
        write(root / "a.png", Image.new("RGB", (8, 8)))
        write(root / "a.xml", f"<annotations>{labels}<image name='a.png' {size}>{shape}</image></annotations>")

    return make


def voc(root: Path) -> None:
    small_data.voc(root)
    file = root / "Annotations" / "1.xml"
    file.write_text(file.read_text().replace("<width>64", f"<width>{'9' * 23}"))


def roboflow(root: Path) -> None:
    small_data.roboflow(root)
    file = root / "train" / "_annotations.coco.json"
    content = json.loads(file.read_text())
    content["images"][0]["height"] = "9" * 5000
    content["categories"][0]["supercategory"] = ["objects"]
    file.write_text(json.dumps(content))


def panoptic(root: Path) -> None:
    write(root / "images" / "a.png", Image.new("RGB", (4, 4)))
    write(root / "maps" / "a.png", Image.new("RGB", (4, 4), (5, 0, 0)))
    segments = {"image_id": 1, "file_name": "a.png", "segments_info": [{"id": [5], "category_id": 1}]}
    image = {"id": 1, "file_name": "a.png", "height": 4, "width": 4}
    categories = [{"id": 1, "name": "cell", "isthing": 1}]
    write(root / "a.json", json.dumps({"images": [image], "annotations": [segments], "categories": categories}))


def yolo(content: str) -> Callable[[Path], object]:
    return lambda root: write(root / "a.yaml", content)


def shard(**members: str) -> Callable[[Path], object]:
    content = [("a.png", b"\x89PNG"), *((f"a.{kind}", text.encode()) for kind, text in members.items())]
    return lambda root: write_shard(root / "a.tar", content)


def listed_twice(root: Path) -> None:
    write(root / "1.png", Image.new("RGB", (4, 4)))
    write(root / "a.csv", "path,label\n1.png,a\n./1.png,b\n")


COCO = "coco, root: ROOT, file: ROOT/a.json, masks: true, keypoints: true"
CVAT, PANOPTIC = "cvat, root: ROOT, file: ROOT/a.xml, masks: true", "coco_panoptic, root: ROOT/images, maps: ROOT/maps"
CASES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "height of 23 digits": (CVAT, cvat(f"width='8' height='{'9' * 23}'"), "a.xml.*is not an integer of 64 bits"),
    "width of 23 digits": ("voc, root: ROOT", voc, "1.xml: .*is not an integer of 64 bits"),
    "mask of 90 TiB": (
        CVAT,
        cvat(
            "width='9999999' height='9999999'",
            "<mask label='cat' rle='99999980000001' left='0' top='0' width='9999999' height='9999999'/>",
        ),
        "a.xml.*not a size in pixels",
    ),
    "keypoints": (COCO, coco(keypoints=[10**300, 1, 2, 5, 5, 1]), "keypoint lists? that"),
    "crowd": (COCO, coco(iscrowd="0"), "flags that are not .*1.png, annotation 100: iscrowd '0'"),
    "area": (COCO, coco(area=-50), "areas that are .*1.png, annotation 100: area -50"),
    "home": ("yolo, data: ROOT/a.yaml", yolo("names: [a]\ntrain: x\npath: ~nosuchuser"), "a.yaml: path '~nosuchuser'"),
    "date": (
        "yolo, data: ROOT/a.yaml",
        yolo("names: [a]\nd: 2020-13-45"),
        "a.yaml is not YAML: month must be in 1..12",
    ),
    "link": (
        "shards, files: ROOT/a*.tar",
        lambda root: (root / "a.tar").symlink_to("a.tar"),
        "a.tar cannot be read: Too many levels",
    ),
    "deep member": ("shards, files: ROOT/a.tar, json_label: x", shard(json=DEEP), "a.tar, sample 'a' .*cannot be read"),
    "deep list": (
        "video_list, file: ROOT/a.json",
        lambda root: write(root / "a.json", DEEP),
        "a.json cannot be read: max",
    ),
    "segment": (f"{PANOPTIC}, file: ROOT/a.json", panoptic, r"a.png, segment \[5\]: not in"),
    "supercategory": ("roboflow, root: ROOT", roboflow, "_annotations.coco.json: .*image 10"),
    "class number": ("shards, files: ROOT/a.tar", shard(cls="1000000000"), "a.tar/a.png: label .*too many classes"),
    "label of 5,000 digits": (
        "shards, files: ROOT/a.tar",
        shard(cls="9" * 5000),
        "a.tar, sample 'a'.* 5000 characters",
    ),
    "table of 5,000 digits": (
        "table, file: ROOT/a.csv",
        lambda root: write(root / "a.csv", f"path,label\na.png,{'9' * 5000}\n"),
        r"a.csv.* line 2\b.*5000 characters",
    ),
    "two names": ("table, file: ROOT/a.csv", listed_twice, "a.csv lists 1 image more than once: 1.png"),
    "negative radius": (
        CVAT,
        cvat("width='8' height='8'", "<ellipse label='cat' cx='4' cy='4' rx='-5' ry='2'/>"),
        "a.png, shape 1: a ellipse of a negative size",
    ),
    "polygon elsewhere": (
        COCO,
        coco(segmentation=[[40, 40, 50, 40, 50, 45]]),
        "segmentations outside the box:.*1.png, annotation 100",
    ),
    "nan as class": ("shards, files: ROOT/a.tar", shard(cls="nan"), "a.tar, sample 'a' .*label is nan"),
    "bomb": ("yolo, data: ROOT/a.yaml", yolo(f"{BOMB}names: [*a8]\ntrain: images"), r"a.yaml is not YAML: \*a0 stands"),
    "20 million classes": (
        "video_list, file: ROOT/a.txt",
        lambda root: write(write_video(root / "0.mp4", 4).with_name("a.txt"), "0.mp4 20000000\n"),
        "a.txt, line 1: label .*too many classes",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_data_check(opabinia: Command, tmp_path: Path, name: str) -> None:
    options, make, message = CASES[name]
    root = tmp_path / "data"
    root.mkdir()
    make(root)
    source = f"{{name: {options.replace('ROOT', str(root))}}}"
    write(tmp_path / "r.yaml", f"base: classification/digits\ndata:\n  train: {{source: {source}, transforms: []}}\n")
    result = opabinia("data", "check", tmp_path / "r.yaml", "data.val=null")
    assert result.status == 2 and "Traceback" not in result.err
    assert re.search(message, result.out + result.err, re.DOTALL), result.out + result.err
    assert len(result.err.splitlines()) <= 2 and max(map(len, result.err.splitlines())) < 1000


def test_yolo_images_that_exif_rotates(opabinia: Command, tmp_path: Path) -> None:
    small_data.yolo(tmp_path)
    (file,) = (tmp_path / "images" / "train").glob("1.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(file).rotate(90, expand=True).save(file.with_suffix(".tif"), exif=exif)
    file.unlink()
    source = f"{{name: yolo, data: {tmp_path / 'data.yaml'}}}"
    write(tmp_path / "r.yaml", f"base: classification/digits\ndata:\n  train: {{source: {source}, transforms: []}}\n")
    result = opabinia("data", "check", tmp_path / "r.yaml", "data.val=null")
    assert (result.status, result.err) == (0, "")
    assert "largest image" in result.out and "48 x 64" not in result.out and "64 x 48" in result.out
