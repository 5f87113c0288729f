"""Mutants of the annotation files of every format: each gives samples, or one error that names a file.

    python -m tests.faults.fuzz_annotations --cases 20000             # print what went wrong
    python -m tests.faults.fuzz_annotations --seed 0 --case 17        # one case again, with its error or traceback

A case depends on the seed and its number only. It fails if an error is not a ValueError or OSError, has several lines
or names no file of the dataset; if samples have numbers that are not finite or huge; and after 10 s or 1 GiB of memory.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
import resource
import shutil
import signal
import tarfile
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image

from opabinia.config import ConfigError
from opabinia.config.build import errors_at
from opabinia.contracts import Source
from opabinia.data import sources
from opabinia.runtime.log import log
from scripts import small_data

SECONDS = 10
MEMORY = 2**30
HUGE = 2.0**50
"""No coordinate or area of a sample is as large."""


@dataclass(frozen=True)
class Format:
    """A format: ``write`` makes a tiny valid dataset in a folder, ``build`` reads it, ``files`` are what is mutated."""

    name: str
    write: Callable[[Path], object]
    build: Callable[[Path], Source]
    files: Sequence[str]


# --- formats ----------------------------------------------------------------------------------------------------------


def _write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def _images(root: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 10), (40 * number, 90, 30)).save(root / name)


def _wider_face(root: Path) -> Source:
    return sources.wider_face(root=root / "images", file=root / "wider_face_train_bbx_gt.txt")


def _list(name: str, text: str) -> Callable[[Path], None]:
    """Write a list of four images or videos."""

    def write(root: Path) -> None:
        _images(root, *(f"{number}.png" for number in range(4)))
        for number in range(4):
            (root / f"{number}.mp4").touch()
            _images(root, f"v{number}/1.jpg", f"v{number}/2.jpg")
        _write(root, name, text)

    return write


def _lvis(root: Path) -> None:
    content = small_data.coco_content(root)
    for image in content["images"]:
        image |= {"neg_category_ids": [3], "not_exhaustive_category_ids": [7]}
    for category, frequency in zip(content["categories"], "rf", strict=True):
        category["frequency"] = frequency
    _write(root, "annotations.json", json.dumps(content))


def _panoptic(root: Path) -> None:
    for number in range(2):
        _images(root, f"images/{number}.png")
        values = np.zeros((10, 12, 3), np.uint8)
        values[2:6, 3:9, 0], values[6:, :, 0] = 5, 7
        (root / "maps").mkdir(exist_ok=True)
        Image.fromarray(values).save(root / "maps" / f"{number}.png")
    segments = [{"id": 5, "category_id": 1, "iscrowd": 0, "area": 24}, {"id": 7, "category_id": 2, "iscrowd": 0}]
    content = {
        "images": [{"id": number, "file_name": f"{number}.png", "height": 10, "width": 12} for number in range(2)],
        "annotations": [{"image_id": n, "file_name": f"{n}.png", "segments_info": segments} for n in range(2)],
        "categories": [
            {"id": 1, "name": "cell", "isthing": 1, "color": [220, 20, 60]},
            {"id": 2, "name": "sky", "isthing": 0, "color": [70, 130, 180]},
        ],
    }
    _write(root, "panoptic.json", json.dumps(content))


def _cvat(root: Path) -> None:
    _images(root, "a.png", "b.png")
    labels = "".join(f"<label><name>{name}</name></label>" for name in ("cat", "dog"))
    shapes = (
        '<box label="cat" xtl="1" ytl="1" xbr="5" ybr="4.5" rotation="10.0" z_order="1"/>'
        '<polygon label="dog" points="1,1;6,1;6,5" z_order="0"/><ellipse label="cat" cx="5" cy="5" rx="2" ry="1"/>'
        '<mask label="dog" rle="1, 2, 1" left="6" top="4" width="2" height="2"/>'
    )
    images = "".join(f'<image id="0" name="{name}.png" width="12" height="10">{shapes}</image>' for name in "ab")
    _write(root, "a.xml", f"<annotations><meta><task><labels>{labels}</labels></task></meta>{images}</annotations>")


def _via(root: Path) -> None:
    _images(root, "a.png", "b.png")
    shapes: list[dict[str, Any]] = [
        {"name": "polygon", "all_points_x": [1, 6, 5], "all_points_y": [1, 1.5, 6]},
        {"name": "rect", "x": 1, "y": 1, "width": 4, "height": 5},
        {"name": "ellipse", "cx": 5, "cy": 5, "rx": 2, "ry": 1, "theta": 0.5},
    ]
    kinds: list[Any] = ["cat", {"dog": True, "cat": False}, "dog"]
    regions = [
        {"shape_attributes": shape, "region_attributes": {"kind": kind}}
        for shape, kind in zip(shapes, kinds, strict=True)
    ]
    content = {f"{name}.png12": {"filename": f"{name}.png", "size": 12, "regions": regions} for name in "ab"}
    _write(root, "a.json", json.dumps(content))


def _labelme(root: Path) -> None:
    _images(root, "a.png", "b.png")
    shapes = [
        {"label": "cat", "points": [[1, 1], [6, 1.5], [5, 6]], "group_id": None, "shape_type": "polygon"},
        {"label": "dog", "points": [[2, 2], [7, 8]], "group_id": 1, "shape_type": "rectangle"},
        {"label": "cat", "points": [[5, 5], [5, 7]], "group_id": None, "shape_type": "circle"},
    ]
    for name in "ab":
        content = {"imagePath": f"{name}.png", "imageHeight": 10, "imageWidth": 12, "shapes": shapes}
        _write(root, f"{name}.json", json.dumps(content))


def _supervisely(root: Path) -> None:
    _images(root, "img/a.png", "img/b.png")
    png = io.BytesIO()
    Image.new("L", (3, 2), 255).save(png, "PNG")
    data = base64.b64encode(zlib.compress(png.getvalue())).decode()
    shapes = [
        {
            "geometryType": "polygon",
            "points": {"exterior": [[1, 1], [9, 1], [5, 8]], "interior": [[[4, 2], [6, 2], [5, 4]]]},
        },
        {"geometryType": "rectangle", "points": {"exterior": [[2, 2], [7, 8]], "interior": []}},
        {"geometryType": "bitmap", "bitmap": {"origin": [2, 3], "data": data}},
    ]
    objects = [{"classTitle": name, **shape} for name, shape in zip(("cat", "dog", "cat"), shapes, strict=True)]
    for name in "ab":
        content = {"size": {"height": 10, "width": 12}, "tags": [], "objects": objects}
        _write(root, f"ann/{name}.png.json", json.dumps(content))


def _shards(suffix: str, labels: Sequence[str]) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        _images(root, "image.png")
        content = (root / "image.png").read_bytes()
        with tarfile.open(root / "s.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, label in enumerate(labels):
                for name, raw in ((f"{number}.png", content), (f"{number}.{suffix}", label.encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(raw)
                    tar.addfile(member, io.BytesIO(raw))

    return write


def _segmentation(root: Path) -> None:
    _images(root, "images/a.png", "images/b.png")
    (root / "labels").mkdir()
    for name in "ab":
        Image.fromarray(np.arange(120, dtype=np.uint8).reshape(10, 12) % 2).save(root / "labels" / f"{name}.png")
    _write(root, "list.txt", "a\nb\n")
    _write(root, "classes.txt", "road 128 64 128\nsky 70 130 180\n")


def write_hugging_face(root: Path) -> None:
    """Write the files of ``DatasetDict.save_to_disk``."""
    import pyarrow

    _images(root, "image.png")
    folder, name = root / "set" / "train", "data-00000-of-00001.arrow"
    folder.mkdir(parents=True)
    image = {"bytes": (root / "image.png").read_bytes(), "path": None}
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema([("image", kind), ("label", pyarrow.int64())])
    table = pyarrow.table({"image": [image, image], "label": [0, 1]}, schema=schema)
    with pyarrow.ipc.new_stream(str(folder / name), schema) as stream:
        stream.write_table(table)
    features = {"image": {"_type": "Image"}, "label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    state = {"_data_files": [{"filename": name}], "_fingerprint": "1234", "_split": "train", "_format_type": None}
    state |= {"_format_columns": None, "_format_kwargs": {}, "_output_all_columns": False}
    _write(root, "set/train/state.json", json.dumps(state))
    _write(root, "set/train/dataset_info.json", json.dumps({"features": features, "citation": "", "description": ""}))
    _write(root, "set/dataset_dict.json", json.dumps({"splits": ["train"]}))


def _parquet(root: Path) -> None:
    from pyarrow import parquet, table

    _list("unused.txt", "")(root)
    parquet.write_table(
        table({"path": [f"{number}.png" for number in range(4)], "label": list("abab")}), root / "t.parquet"
    )


def _shard_source(root: Path, **options: Any) -> Source:
    with tempfile.TemporaryDirectory() as index:
        return sources.Shards(files=str(root / "s.tar"), index_dir=Path(index), **options)


CLIPS = "path,label,start,end\n0.mp4,run,0.5,2\n0.mp4,walk,2,\n1.mp4,run,,\n"
KINETICS = "label,youtube_id,time_start,time_end,split\nrun,a,0,10,train\nwalk far,b,5,15,train\n"
SOMETHING = '[{"id": "0", "template": "Moving [something] up"}, {"id": 1, "label": "Moving down"}]'


def formats() -> list[Format]:
    """Return all formats; those of optional libraries only if these are installed."""
    coco = {"file": "annotations.json"}

    def read_coco(**options: Any) -> Callable[[Path], Source]:
        return lambda root: sources.coco(root=root, file=root / coco["file"], **options)

    def video_list(name: str, text: str, **options: Any) -> Format:
        def write(root: Path) -> None:
            _list(name, text)(root)
            for video in ("a_000000_000010.mp4", "walk far/b_000005_000015.mp4"):
                _write(root, video, "")
            _write(root, "classes.json", '{"Moving something up": "0", "Moving down": 1}')

        files = [name, "classes.json"] if name.endswith(".json") else [name]
        if name.endswith(".json"):
            return Format(
                f"video_list {name}",
                write,
                lambda root: sources.VideoList(file=root / name, class_file=root / "classes.json", **options),
                files,
            )
        return Format(f"video_list {name}", write, lambda root: sources.VideoList(file=root / name, **options), files)

    def reid(name: str, *files: str, **options: Any) -> Format:
        build = getattr(sources, name)
        write = getattr(small_data, name)
        return Format(name, write, lambda root: build(root=root, **options), files)

    table = "path,label\n0.png,cat\n1.png,dog\n2.png,cat\n3.png,7\n"
    boxes = "path,label,xmin,ymin,xmax,ymax\n0.png,cat,1,1,5,5\n1.png,,,,,\n0.png,dog,2,2,6.5,7\n"
    many = "path,label\n0.png,cat|dog\n1.png,\n2.png,cat\n3.png,dog\n"
    rows = "".join(json.dumps({"path": f"{n}.png", "label": ["cat", 5][n % 2], "w": [1, {}]}) + "\n" for n in range(4))
    people = "path,identity,camera,view,split\n" + "".join(f"{n}.png,{n // 2},c{n % 2},{n},train\n" for n in range(4))
    pairs = "first,second,same\n0.png,1.png,1\n2.png,3.png,false\n"
    result = [
        Format("coco", small_data.coco, read_coco(), ["annotations.json"]),
        Format("coco masks", small_data.coco, read_coco(masks=True), ["annotations.json"]),
        Format("coco masks, clip", small_data.coco, read_coco(masks=True, broken="clip"), ["annotations.json"]),
        Format("coco keypoints", small_data.coco, read_coco(keypoints=True), ["annotations.json"]),
        Format("coco all, drop", small_data.coco, read_coco(keypoints=True, masks=True, broken="drop"), [coco["file"]]),
        Format("coco oriented", small_data.coco, read_coco(oriented=True), ["annotations.json"]),
        Format("lvis", _lvis, read_coco(), ["annotations.json"]),
        Format("roboflow", small_data.roboflow, lambda root: sources.roboflow(root=root), ["*/_annotations.coco.json"]),
        Format(
            "coco_panoptic",
            _panoptic,
            lambda root: sources.coco_panoptic(root=root / "images", maps=root / "maps", file=root / "panoptic.json"),
            ["panoptic.json"],
        ),
        Format("voc", small_data.voc, lambda root: sources.voc(root=root), ["Annotations/*.xml", "ImageSets/Main/*"]),
        Format("voc, clip", small_data.voc, lambda root: sources.voc(root=root, broken="clip"), ["Annotations/*.xml"]),
        Format("yolo", small_data.yolo, lambda root: sources.yolo(data=root / "data.yaml"), ["data.yaml"]),
        Format("yolo labels", small_data.yolo, lambda root: sources.yolo(data=root / "data.yaml"), ["labels/train/*"]),
        Format(
            "yolo labels, clip",
            small_data.yolo,
            lambda root: sources.yolo(data=root / "data.yaml", broken="clip"),
            ["labels/train/*"],
        ),
        Format("cvat", _cvat, lambda root: sources.cvat(root=root, file=root / "a.xml", masks=True), ["a.xml"]),
        Format("labelme", _labelme, lambda root: sources.labelme(root=root, masks=True), ["*.json"]),
        Format("supervisely", _supervisely, lambda root: sources.supervisely(root=root, masks=True), ["ann/*.json"]),
        Format("dota", small_data.dota, lambda root: sources.dota(root=root), ["labelTxt/*"]),
        Format("kitti", small_data.kitti, lambda root: sources.kitti(root=root), ["label_2/*"]),
        Format("visdrone", small_data.visdrone, lambda root: sources.visdrone(root=root), ["annotations/*"]),
        Format("wider_face", small_data.wider_face, _wider_face, ["*.txt"]),
        Format("via", _via, lambda root: sources.via(file=root / "a.json", attribute="kind", masks=True), ["a.json"]),
        Format("box_list", _list("t.csv", boxes), lambda root: sources.box_list(file=root / "t.csv"), ["t.csv"]),
        Format("table", _list("t.csv", table), lambda root: sources.Table(file=root / "t.csv"), ["t.csv"]),
        Format("table jsonl", _list("t.jsonl", rows), lambda root: sources.Table(file=root / "t.jsonl"), ["t.jsonl"]),
        Format(
            "table multi-label",
            _list("t.csv", many),
            lambda root: sources.Table(file=root / "t.csv", multi_label=True),
            ["t.csv"],
        ),
        Format(
            "identities",
            _list("t.csv", people),
            lambda root: sources.identity_table(file=root / "t.csv", view="view"),
            ["t.csv"],
        ),
        Format("image_pairs", _list("t.csv", pairs), lambda root: sources.ImagePairs(file=root / "t.csv"), ["t.csv"]),
        video_list("lines.txt", "0.mp4 0\n1.mp4 2\n2.mp4 1\n"),
        video_list("many.txt", "0.mp4 0,1\n1.mp4 2\n2.mp4\n", multi_label=True),
        video_list("clips.csv", CLIPS),
        video_list("kinetics.csv", KINETICS),
        video_list("something.json", SOMETHING),
        Format(
            "frame_folders",
            _list("t.txt", "v0 2 0\nv1 1 1\nv2 2\n"),
            lambda root: sources.FrameFolders(file=root / "t.txt"),
            ["t.txt"],
        ),
        Format("shards", _shards("cls", ["0", "2", "1"]), _shard_source, ["s.tar"]),
        Format(
            "shards json",
            _shards("json", ['{"kind": "cat"}', '{"kind": "dog", "x": [1, 2]}']),
            lambda root: _shard_source(root, json_label="kind"),
            ["s.tar"],
        ),
        Format(
            "segmentation_folder",
            _segmentation,
            lambda root: sources.segmentation_folder(root=root, class_file=root / "classes.txt", list_file="list.txt"),
            ["list.txt", "classes.txt"],
        ),
        reid("cuhk03", "splits_new_labeled.json"),
        reid("online_products", "Ebay_train.txt"),
        reid("vehicleid", "train_test_split/*", split="test"),
        reid("veri_wild", "train_test_split/*", split="test"),
        reid("in_shop", "list_eval_partition.txt"),
        reid("msmt17", "list_train.txt"),
    ]
    if find_spec("pyarrow"):
        result.append(Format("table parquet", _parquet, lambda r: sources.Table(file=r / "t.parquet"), ["t.parquet"]))
    if find_spec("datasets"):
        result.append(
            Format(
                "hugging_face",
                write_hugging_face,
                lambda r: sources.HuggingFace(dataset=str(r / "set")),
                ["set/*.json", "set/*/*.json"],
            )
        )
    return result


# --- mutations --------------------------------------------------------------------------------------------------------

WORDS = (
    *(
        "1e308",
        "-1e308",
        "1e9",
        "1180591620717411303424",
        "99999999999999999999999",
        "-1",
        "0",
        "1",
        "2.7",
        "nan",
        "NaN",
    ),
    *("inf", "-Infinity", "Infinity", "true", "null", "0x10", "20000000", "1000000000", "9" * 5000, "", "x", " ", ",,"),
    *("/etc/passwd", "../../x.png", "~nosuchuser", "a" * 5000, "\u202e\u00e9\U0001f600", "\u00b2", "\u0663", "\\ud800"),
    *(
        "\0",
        "\x1b[31m",
        '"',
        "'",
        "<",
        "&",
        "[[[[",
        "{",
        "*a8",
        "&a",
        "!!python/object:os.system",
        "2020-13-45",
        "\t",
        "|",
    ),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "x",
        "nan",
        "0",
        "5",
        "/etc/passwd",
        "../x",
        "\udcff",
        "a\0b",
        "9" * 4200,
        [],
        [[]],
        ["x"],
    ),
    *({}, {"x": 1}, 0, -1, 1, 7, 2**31, 2**40, 2**63, 2**70, 10**400, 0.5, 1e9, -1e9, 1e300, -1e308, [5], [1] * 7),
    *(float("nan"), float("inf"), float("-inf")),
)
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)


def mutate(raw: bytes, suffix: str, random: Random) -> bytes:
    """Return damaged content of a file."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        kinds: list[Callable[[bytes, Random], bytes]] = [_bytes, _text, _text]
        if suffix in (".json", ".jsonl"):
            kinds += [_structure] * 5
        if suffix == ".tar":
            kinds = [_bytes, _member, _member, _member]
        with suppress(
            ValueError, IndexError, RecursionError, tarfile.TarError
        ):  # no longer JSON or a tar file, or empty
            raw = random.choice(kinds)(raw, random)
    return raw


def _bytes(raw: bytes, random: Random) -> bytes:
    place, end = random.randrange(len(raw)), random.randrange(len(raw) + 1)
    match random.randrange(7):
        case 0:
            return raw[:place] + bytes([raw[place] ^ 1 << random.randrange(8)]) + raw[place + 1 :]
        case 1:
            return raw[:place] + bytes([random.randrange(256)]) + raw[place + 1 :]
        case 2:
            return raw[:place] + raw[place + random.choice((1, 2, 20)) :]
        case 3:
            return raw[:end]
        case 4:
            return raw[:place] + raw[place:end] + raw[place:]
        case 5:
            return (
                random.choice((b"", b"\xff\xfe", b"\xef\xbb\xbf", b"\0" * 512, b"[" * 100_000, b"<a>" * 20_000)) + raw
            )
        case _:
            return random.choice(
                (b"", b"null", b"[]", b"{}", b"[" * 100_000, b'{"a":' * 50_000, b"- " * 3000, BOMB.encode())
            )


def _text(raw: bytes, random: Random) -> bytes:
    """Replace, delete or repeat a word or a line."""
    text = raw.decode("utf-8", "surrogateescape")
    if random.random() < 0.3:
        lines = text.splitlines(keepends=True)
        place = random.randrange(len(lines))
        lines[place : place + 1] = random.choice(([], [lines[place]] * 2, [BOMB], [random.choice(WORDS) + "\n"]))
        text = "".join(lines)
    else:
        words = [match.span() for match in re.finditer(r"[^\s,;:<>\[\]{}\"'=|/]+", text)]
        start, end = random.choice(words)
        text = text[:start] + random.choice(WORDS) + text[end:]
    return text.encode("utf-8", "surrogateescape")


def _structure(raw: bytes, random: Random) -> bytes:
    """Replace, remove, repeat or nest a value of JSON; in a file with an object per line, of a line."""
    lines = raw.splitlines() or [raw]
    place = random.randrange(len(lines))
    lines[place] = json.dumps(_changed(json.loads(lines[place]), random)).encode()
    if random.random() < 0.1:  # a repeated key
        lines[place] = lines[place].replace(b'"id": ', b'"id": [], "id": ', 1)
    return b"\n".join(lines)


def _changed(value: Any, random: Random) -> Any:
    if isinstance(value, dict | list) and value and random.random() < 0.85:
        key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        match random.randrange(12):
            case 0:
                del copy[key]
            case 1 if isinstance(value, list):
                copy.append(random.choice((copy[key], random.choice(VALUES))))
            case _:
                copy[key] = _changed(value[key], random)
        return copy
    if random.random() < 0.05:
        for _ in range(200):
            value = [value]
        return value
    if random.random() < 0.15:
        return (
            value
            if isinstance(value, dict | list)
            else random.choice(([value], {"x": value}, str(value), f"./{value}"))
        )
    return random.choice(VALUES)


def _member(raw: bytes, random: Random) -> bytes:
    """Replace the content of a label in a tar file."""
    result = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(raw)) as old, tarfile.open(fileobj=result, mode="w") as new:
        members = old.getmembers()
        chosen = random.choice([member for member in members if not member.name.endswith(".png")])
        for member in members:
            content = b"".join(old.extractfile(member) or ())
            if member is chosen:
                content = random.choice((_text, _structure) if member.name.endswith("json") else (_text,))(
                    content, random
                )
                member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return result.getvalue()


# --- outcomes ---------------------------------------------------------------------------------------------------------


class Hang(BaseException):
    """A case takes too long."""


@contextmanager
def limits() -> Iterator[None]:
    """Limit the time (of the block) and the memory (of the process, from now on)."""

    def stop(*arguments: object) -> None:
        raise Hang(f"longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    memory = resource.getrlimit(resource.RLIMIT_DATA)
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limit = int(lines["VmData"].split()[0]) * 1024 + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, memory[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_DATA, memory)


def problem(root: Path, chosen: Format) -> str:
    """Return what is wrong with the outcome of reading a dataset; "" for samples, and for an error that is clear."""
    try:
        with limits(), errors_at("source", source=chosen.name):
            source = chosen.build(root)
    except ConfigError as error:
        return _unclear(root, str(error), error.__cause__)
    except Hang as error:
        return str(error)
    try:
        with limits():
            source.fingerprint()  # type: ignore[attr-defined]
            if len(source.classes) > 10**6:
                return f"{len(source.classes)} classes"
            for index in sorted({*range(min(4, len(source))), len(source) - 1}):
                if place := not_finite(source[index]):
                    return f"sample {index}: {place}"
    except (Hang, MemoryError) as error:
        return f"reading a sample: {type(error).__name__} {error}"
    except Exception as error:
        return _unclear(root, f"sample: {error}", error)
    return ""


def _unclear(root: Path, message: str, error: BaseException | None) -> str:
    if not isinstance(error, ValueError | OSError):
        return f"{type(error).__name__}: {message}"
    if "\n" in message:
        return f"several lines: {message!r}"
    if len(message) > 20_000:
        return f"{len(message)} characters: {message[:100]!r}"
    if (
        "/etc/passwd" not in message
        and str(root) not in message
        and not any(str(file.relative_to(root)) in message for file in root.rglob("*.*"))
    ):
        return f"names no file: {message}"
    return ""


def not_finite(value: Any, place: str = "") -> str:
    """Return the place of a number that is not finite or huge in a sample."""
    if isinstance(value, dict):
        return next(filter(None, (not_finite(item, f"{place}.{key}") for key, item in value.items())), "")
    if is_dataclass(value) and not isinstance(value, type):
        return next(filter(None, (not_finite(getattr(value, f.name), f"{place}.{f.name}") for f in fields(value))), "")
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fi" and value.size:
        if not (np.isfinite(value).all() and (np.abs(value.astype(np.float64)) < 2.0**63).all()):
            return f"{place}: {value.ravel()[:8].tolist()}"
        if value.dtype.kind == "f" and np.abs(value).max() > HUGE:
            return f"{place}: {value.ravel()[:8].tolist()}"
    return ""


# --- cases ------------------------------------------------------------------------------------------------------------


class Fuzzer:
    """Runs cases in a folder, which holds a valid dataset of each format.

    Args:
        folder: an empty folder.
        seed: of all cases.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.formats = formats()

    def run(self, case: int) -> str:
        """Return what went wrong, and the command that shows it again; "" if nothing did."""
        random = Random(f"{self.seed}:{case}")
        chosen = self.formats[case % len(self.formats)]
        root = self.folder / chosen.name.replace(" ", "_").replace(",", "")
        if not root.exists():
            root.mkdir()
            chosen.write(root)
            with errors_at("source", source=chosen.name):
                chosen.build(root)  # the unchanged dataset is valid
        file = random.choice(sorted(path for pattern in chosen.files for path in root.glob(pattern)))
        raw = file.read_bytes()
        try:
            file.write_bytes(mutate(raw, file.suffix, random))
            if random.random() < 0.02:
                file.unlink()
                random.choice((file.mkdir, lambda: file.symlink_to(file.name), lambda: None))()
            text = problem(root, chosen)
        finally:
            _remove(file)
            file.write_bytes(raw)
        command = f"python -m tests.faults.fuzz_annotations --seed {self.seed} --case {case}"
        return f"{chosen.name}, {file.relative_to(root)}: {text[:600]}\n    {command}" if text else ""


def _remove(file: Path) -> None:
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--case", type=int, help="run this one only")
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    log.disabled = True
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder), arguments.seed)
        for case in range(arguments.cases) if arguments.case is None else [arguments.case]:
            if text := fuzzer.run(case):
                failed += 1
                print(text, flush=True)
    print(f"{failed} failed")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
