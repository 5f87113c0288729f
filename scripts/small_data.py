"""Small generated datasets in the layouts of published ones, for tests and golden losses; the same on every machine.

Identity datasets have 8 identities to train on and 4 others to test, with 4 images each, from two cameras in turn. If
there is a query set, the first image of an identity is in it. An identity is a color in noise.

Detection datasets have four images of 64 x 48 pixels with 0 to 3 colored rectangles of two classes; those in COCO's
folders 24 for training and 8 for validation, wide and tall, with 0 to 3 rectangles.

Videos have 24 frames of 48 x 64 pixels, lossless; the class is whether a bar in noise moves to the left or right.

Example: ``market1501(Path("data"))`` writes ``data/bounding_box_train/0001_c1s1_000000_00.png`` and 49 others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

TRAINED = range(1, 9)
SEARCHED = range(9, 13)


class Shot(NamedTuple):
    """A generated image.

    Attributes:
        identity: 1 to 12.
        camera: 1 or 2.
        number: of the image among those of its identity, from 0.
        pixels: uint8, 32 x 16 x 3.
    """

    identity: int
    camera: int
    number: int
    pixels: NDArray[np.uint8]


def shots(identities: Iterable[int]) -> Iterator[Shot]:
    """Yield four images of each identity."""
    for identity in identities:
        generator = np.random.default_rng(identity)
        color = generator.integers(0, 160, 3, dtype=np.uint8)
        for number in range(4):
            noise = generator.integers(0, 96, (32, 16, 3), dtype=np.uint8)
            yield Shot(identity, number % 2 + 1, number, noise + color)


def save(path: Path, shot: Shot) -> None:
    """Write an image as PNG, which is lossless."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(shot.pixels).save(path, "PNG")


def market1501(root: Path) -> None:
    """Market-1501, with a distractor (identity 0) and a junk image (-1) in the gallery: 50 images."""

    def save_to(folder: str, shot: Shot, name: str) -> None:
        save(root / folder / f"{name}_c{shot.camera}s1_{shot.number:06d}_00.png", shot)

    for shot in shots(TRAINED):
        save_to("bounding_box_train", shot, f"{shot.identity:04d}")
    for shot in shots(SEARCHED):
        save_to("bounding_box_test" if shot.number else "query", shot, f"{shot.identity:04d}")
    for shot, name in zip(shots((13,)), ("0000", "-1"), strict=False):
        save_to("bounding_box_test", shot, name)


def msmt17(root: Path) -> None:
    """MSMT17 in its first version; one image of each training identity is for validation."""
    for folder, identities, kinds in (
        ("train", TRAINED, ("train", "train", "train", "val")),
        ("test", SEARCHED, ("query", "gallery", "gallery", "gallery")),
    ):
        lines: dict[str, list[str]] = {kind: [] for kind in kinds}
        for shot in shots(identities):
            label = shot.identity - identities[0]
            path = f"{label:04d}/{label:04d}_{shot.number:03d}_{shot.camera:02d}_0303morning_{shot.number:04d}_0.png"
            save(root / folder / path, shot)
            lines[kinds[shot.number]].append(f"{path} {label}\n")
        for kind, listed in lines.items():
            (root / f"list_{kind}.txt").write_text("".join(listed), encoding="utf-8")


def veri(root: Path) -> None:
    """VeRi-776."""
    for shot in shots((*TRAINED, *SEARCHED)):
        folder = "train" if shot.identity in TRAINED else "test" if shot.number else "query"
        name = f"{shot.identity:04d}_c{shot.camera:03d}_{shot.number:08d}_0.png"
        save(root / f"image_{folder}" / name, shot)


def online_products(root: Path) -> None:
    """Stanford Online Products."""
    for split, identities in (("train", TRAINED), ("test", SEARCHED)):
        lines = ["image_id class_id super_class_id path\n"]
        for number, shot in enumerate(shots(identities), 1):
            path = f"chair_final/{shot.identity}_{shot.number}.png"
            save(root / path, shot)
            lines.append(f"{number} {shot.identity} 1 {path}\n")
        (root / f"Ebay_{split}.txt").write_text("".join(lines), encoding="utf-8")


def cuhk03(root: Path) -> None:
    """CUHK03 by the new protocol, with labeled boxes."""
    subsets: dict[str, list[tuple[str, int, int]]] = {"train": [], "query": [], "gallery": []}
    for shot in shots((*TRAINED, *SEARCHED)):
        subset = "train" if shot.identity in TRAINED else "gallery" if shot.number else "query"
        path = f"images_labeled/1_{shot.identity:03d}_{shot.camera}_{shot.number + 1:02d}.png"
        save(root / path, shot)
        subsets[subset].append((f"somewhere/else/{path}", shot.identity, shot.camera - 1))
    (root / "splits_new_labeled.json").write_text(json.dumps([subsets]), encoding="utf-8")


def vehicleid(root: Path) -> None:
    """VehicleID with its smallest test set."""
    (root / "train_test_split").mkdir(parents=True)
    for name, identities in (("train_list", TRAINED), ("test_list_800", SEARCHED)):
        lines = []
        for shot in shots(identities):
            image_name = f"{shot.identity:05d}{shot.number:02d}"
            save(root / "image" / f"{image_name}.jpg", shot)
            lines.append(f"{image_name} {shot.identity}\n")
        (root / "train_test_split" / f"{name}.txt").write_text("".join(lines), encoding="utf-8")


def veri_wild(root: Path) -> None:
    """VeRi-Wild with its smallest test set."""
    cameras = ["id/image;Camera ID;Time;Model;Type;Color\n"]
    lists: dict[str, list[str]] = {"train_list": [], "test_3000_query": [], "test_3000": []}
    for shot in shots((*TRAINED, *SEARCHED)):
        name = f"{shot.identity:05d}/{shot.identity:05d}{shot.number}"
        save(root / "images" / f"{name}.jpg", shot)
        cameras.append(f"{name};{shot.camera};2018-03-11 11:05:00;Audi;SUV;white\n")
        test = "test_3000" if shot.number else "test_3000_query"
        lists["train_list" if shot.identity in TRAINED else test].append(f"{name}\n")
    (root / "train_test_split").mkdir(parents=True)
    for list_name, lines in {"vehicle_info": cameras, **lists}.items():
        (root / "train_test_split" / f"{list_name}.txt").write_text("".join(lines), encoding="utf-8")


def in_shop(root: Path) -> None:
    """In-shop Clothes Retrieval."""
    lines = ["48\n", "image_name item_id evaluation_status\n"]
    for shot in shots((*TRAINED, *SEARCHED)):
        split = "train" if shot.identity in TRAINED else "gallery" if shot.number else "query"
        item = f"id_{shot.identity:08d}"
        path = f"img/WOMEN/Dresses/{item}/{shot.number:02d}_1_front.jpg"
        save(root / path, shot)
        lines.append(f"{path} {item} {split}\n")
    (root / "list_eval_partition.txt").write_text("".join(lines), encoding="utf-8")


def class_folders(root: Path) -> None:
    """A folder for each identity, as in CUB-200-2011."""
    for shot in shots((*TRAINED, *SEARCHED)):
        save(root / f"{shot.identity:03d}.Bird" / f"{shot.number}.png", shot)


def identities(root: Path) -> None:
    """A list of path, identity, camera and split, ``list.csv``."""
    lines = ["path,identity,camera,split\n"]
    for shot in shots((*TRAINED, *SEARCHED)):
        split = "train" if shot.identity in TRAINED else "gallery" if shot.number else "query"
        path = f"{split}/{shot.identity}_{shot.number}.png"
        save(root / path, shot)
        lines.append(f"{path},{shot.identity},c{shot.camera},{split}\n")
    (root / "list.csv").write_text("".join(lines), encoding="utf-8")


# --- detection --------------------------------------------------------------------------------------------------------

KINDS = ("block", "bar")


class Scene(NamedTuple):
    """A generated image with objects.

    Attributes:
        name: ``0`` to ``3``.
        objects: label, left, top, width, height of each, in pixels.
        pixels: uint8, 48 x 64 x 3.
    """

    name: str
    objects: list[tuple[int, int, int, int, int]]
    pixels: NDArray[np.uint8]


def scenes() -> Iterator[Scene]:
    """Yield four images; the first is empty, the others have one more object each."""
    for number in range(4):
        generator = np.random.default_rng(number)
        pixels = generator.integers(0, 60, (48, 64, 3), dtype=np.uint8)
        objects = []
        for index in range(number):
            label, width, height = index % 2, int(generator.integers(10, 16)), int(generator.integers(6, 40))
            left, top = 2 + index * 20, int(generator.integers(0, 48 - height))
            pixels[top : top + height, left : left + width, label] += 180
            objects.append((label, left, top, width, height))
        yield Scene(f"{number}", objects, pixels)


def save_scene(folder: Path, scene: Scene) -> str:
    """Write a scene as PNG and return its name."""
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(scene.pixels).save(folder / f"{scene.name}.png", "PNG")
    return f"{scene.name}.png"


def coco_content(folder: Path) -> dict[str, Any]:
    """Write the scenes' images to ``folder`` and return the content of a COCO file: category ids are 3 and 7,
    segmentations are polygons and (of bars) RLE, keypoints the upper corners; the last object is a crowd."""
    images, annotations = [], []
    for number, scene in enumerate(scenes()):
        name = save_scene(folder, scene)
        images.append({"id": 10 + number, "file_name": name, "width": 64, "height": 48})
        for label, left, top, width, height in scene.objects:
            right, bottom = left + width, top + height
            runs = [left * 48 + top, *[height, 48 - height] * width]
            runs[-1] += 48 * (64 - right) - top
            segmentation = (
                {"size": [48, 64], "counts": runs} if label else [[left, top, right, top, right, bottom, left, bottom]]
            )
            annotations.append(
                {
                    "id": 100 + len(annotations),
                    "image_id": 10 + number,
                    "category_id": (3, 7)[label],
                    "bbox": [left, top, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                    "segmentation": segmentation,
                    "keypoints": [left, top, 2, right - 1, top, 1],
                }
            )
    annotations[-1]["iscrowd"] = 1
    points = ["left_corner", "right_corner"]
    categories = [{"id": (7, 3)[i], "name": KINDS[1 - i], "keypoints": points} for i in (0, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def coco(root: Path) -> None:
    """COCO: ``annotations.json`` in the folder of its images."""
    content = coco_content(root)
    (root / "annotations.json").write_text(json.dumps(content), encoding="utf-8")


def coco2017(root: Path) -> None:
    """COCO's folders: ``train2017``, ``val2017`` and ``annotations`` with instances, person keypoints, panoptic maps,
    and LVIS."""
    _coco_folders(root, {"train2017": range(24), "val2017": range(24, 32)})
    for split in ("train", "val"):
        content = json.loads((root / "annotations" / f"instances_{split}2017.json").read_text("utf-8"))
        path = root / "annotations" / f"lvis_v0.5_{split}.json"
        path.write_text(json.dumps(_as_lvis(content)), encoding="utf-8")
        path = root / "annotations" / f"panoptic_{split}2017.json"
        path.write_text(json.dumps(_as_panoptic(content, path.with_suffix(""))), encoding="utf-8")


def coco_folders(root: Path) -> None:
    """COCO's folders with ``train``, ``val`` and ``test``, without LVIS."""
    _coco_folders(root, {"train": range(24), "val": range(24, 32), "test": range(32, 40)})


def _coco_folders(root: Path, splits: Mapping[str, Iterable[int]]) -> None:
    """Every fourth image is empty, every seventh object a crowd; segmentations are polygons or, of blocks, RLE."""
    (root / "annotations").mkdir(parents=True)
    for split, numbers in splits.items():
        (root / split).mkdir()
        images, annotations = [], []
        for number in numbers:
            pixels, objects = _draw_scene(number)
            name = f"{number:012d}.png"
            Image.fromarray(pixels).save(root / split / name, "PNG")
            height, width = pixels.shape[:2]
            url = f"http://images.cocodataset.org/{split}/{name}"
            images.append({"id": number, "file_name": name, "coco_url": url, "height": height, "width": width})
            annotations += objects
        for number, annotation in enumerate(annotations, 1):
            annotation |= {"id": number, "iscrowd": int(number % 7 == 0)}
        for name, content in _coco_files(images, annotations).items():
            path = root / "annotations" / f"{name}_{split}.json"
            path.write_text(json.dumps(content), encoding="utf-8")


def _draw_scene(number: int) -> tuple[NDArray[np.uint8], list[dict[str, Any]]]:
    """Return an image and its objects as COCO's annotations; a third of the images are tall."""
    height, width = (64, 48) if number % 3 == 2 else (48, 64)
    from opabinia.contracts.masks import encode_rle

    generator = np.random.default_rng(100 + number)
    pixels = generator.integers(0, 60, (height, width, 3), dtype=np.uint8)
    objects = []
    for index in range(number % 4):
        high, wide = (int(side) for side in generator.integers(10, 24, 2))
        top, left = int(generator.integers(0, height - high)), int(generator.integers(0, width - wide))
        pixels[top : top + high, left : left + wide, index % 2] += np.uint8(100)
        mask = np.zeros((height, width), dtype=bool)
        mask[top : top + high, left : left + wide] = True
        right, bottom = left + wide, top + high
        points = [(left + wide * (i % 4 + 0.5) // 4, top + high * (i + 0.5) // 17, 2) for i in range(17)]
        person = index % 2 == 0
        objects.append(
            {
                "image_id": number,
                "category_id": 1 if person else 3,
                "bbox": [left, top, wide, high],
                "area": wide * high,
                "segmentation": [[left, top, right, top, right, bottom, left, bottom]] if person else encode_rle(mask),
                "keypoints": [int(value) for point in points for value in point],
                "num_keypoints": 17,
            }
        )
    return pixels, objects


def _coco_files(images: list[dict[str, Any]], annotations: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the content of the files, by name without the split."""
    from opabinia.evaluation.detection.coco import COCO_KEYPOINTS

    instances = [{key: value for key, value in row.items() if "keypoints" not in key} for row in annotations]
    categories: list[dict[str, Any]] = [{"id": 1, "name": "person"}, {"id": 3, "name": "block"}]
    return {
        "instances": {"images": images, "annotations": instances, "categories": categories},
        "person_keypoints": {
            "images": images,
            "annotations": [row for row in annotations if row["category_id"] == 1],
            "categories": [{**categories[0], "keypoints": list(COCO_KEYPOINTS), "skeleton": []}],
        },
    }


def _as_panoptic(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the maps of instances and of sky behind them, a class without countable objects; return the annotations."""
    from opabinia.contracts.masks import decode_rle

    folder.mkdir()
    rows = []
    for image in content["images"]:
        size = image["height"], image["width"]
        segments = np.full(size, 1000, dtype=np.uint16)
        segments[:4] = 0  # belongs to nothing
        objects = [row for row in content["annotations"] if row["image_id"] == image["id"]]
        for row in objects:
            segments[decode_rle(row["segmentation"], size).astype(bool)] = row["id"]
        known = {row["id"]: row for row in objects} | {1000: {"category_id": 5, "iscrowd": 0}}
        info = [
            {"id": number, "area": int((segments == number).sum())}
            | {key: known[number][key] for key in ("category_id", "iscrowd")}
            for number in np.unique(segments[segments > 0]).tolist()
        ]
        name = Path(image["file_name"]).with_suffix(".png").name
        Image.fromarray(np.stack([segments & 255, segments >> 8, 0 * segments], -1).astype(np.uint8)).save(
            folder / name
        )
        rows.append({"image_id": image["id"], "file_name": name, "segments_info": info})
    categories = [{**category, "isthing": 1} for category in content["categories"]]
    categories.append({"id": 5, "name": "sky", "isthing": 0})
    return {"images": content["images"], "annotations": rows, "categories": categories}


def _as_lvis(content: dict[str, Any]) -> dict[str, Any]:
    """Return instances in LVIS's format: no crowds, class frequencies, and classes that are known to be absent."""
    present = {image["id"]: set[int]() for image in content["images"]}
    for annotation in content["annotations"]:
        present[annotation["image_id"]].add(annotation["category_id"])
    return {
        "images": [
            {**image, "not_exhaustive_category_ids": [], "neg_category_ids": sorted({1, 3} - present[image["id"]])}
            for image in content["images"]
        ],
        "annotations": [
            {key: value for key, value in annotation.items() if key != "iscrowd"}
            for annotation in content["annotations"]
            if not annotation["iscrowd"]
        ],
        "categories": [
            {**category, "frequency": "f" if category["id"] == 1 else "r"} for category in content["categories"]
        ],
    }


def roboflow(root: Path) -> None:
    """A COCO export of Roboflow, with its placeholder category 0."""
    for split in ("train", "valid"):
        content = coco_content(root / split)
        for category in content["categories"]:
            category["supercategory"] = "objects"
        content["categories"].append({"id": 0, "name": "objects", "supercategory": "none"})
        (root / split / "_annotations.coco.json").write_text(json.dumps(content), encoding="utf-8")


def voc(root: Path) -> None:
    """Pascal VOC; the last object is a difficult one."""
    for folder in ("Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for scene in scenes():
        name = save_scene(root / "JPEGImages", scene)
        objects = [
            f"<object><name>{KINDS[label]}</name><difficult>{int(number == 2)}</difficult><bndbox>"
            f"<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{left + width}</xmax><ymax>{top + height}</ymax>"
            "</bndbox></object>"
            for number, (label, left, top, width, height) in enumerate(scene.objects)
        ]
        size = "<size><width>64</width><height>48</height><depth>3</depth></size>"
        page = f"<annotation><filename>{name}</filename>{size}{''.join(objects)}</annotation>"
        (root / "Annotations" / f"{scene.name}.xml").write_text(page, encoding="utf-8")
    (root / "ImageSets" / "Main" / "train.txt").write_text("0\n1\n2\n3\n", encoding="utf-8")


def dota(root: Path) -> None:
    """DOTA with a text file for each image; the last object is a difficult one."""
    (root / "labelTxt").mkdir(parents=True)
    for scene in scenes():
        save_scene(root / "images", scene)
        lines = ["imagesource:GoogleEarth", "gsd:0.15"]
        for number, (label, left, top, width, height) in enumerate(scene.objects):
            right, bottom = left + width, top + height
            corners = f"{left} {top} {right} {top} {right} {bottom} {left} {bottom}"
            lines.append(f"{corners} {KINDS[label]} {int(number == 2)}")
        (root / "labelTxt" / f"{scene.name}.txt").write_text("\n".join(lines), encoding="utf-8")


def kitti(root: Path) -> None:
    """KITTI's format of objects: a text file for each image with objects."""
    _text_boxes(
        root, "image_2", "label_2", lambda name, box: f"{name} 0.0 0 -1.5 {box} 1.5 1.6 3.7 1.8 1.5 8.4 0.01", end=True
    )


def mot(root: Path) -> None:
    """Write two videos, ``a`` and ``b``, of 24 frames with two tracks each, in the layout of MOTChallenge."""
    for video in ("a", "b"):
        generator = np.random.default_rng(ord(video))
        colors = generator.integers(96, 256, (2, 3))
        lines = []
        (root / video / "img1").mkdir(parents=True)
        (root / video / "gt").mkdir()
        for frame in range(24):
            pixels = generator.integers(0, 64, (48, 64, 3), dtype=np.uint8)
            for track, color in enumerate(colors):
                left, top = frame + 16 * track, 2 + 24 * track
                pixels[top : top + 20, left : left + 20] = color
                lines.append(f"{frame + 1},{track + 1},{left + 1},{top + 1},20,20,1,1,1")
            Image.fromarray(pixels).save(root / video / "img1" / f"{frame + 1:06d}.png")
        (root / video / "gt" / "gt.txt").write_text("\n".join(lines), encoding="utf-8")


def visdrone(root: Path) -> None:
    """VisDrone's format: a text file for each image with objects."""
    _text_boxes(
        root, "images", "annotations", lambda name, box: f"{box.replace(' ', ',')},1,{KINDS.index(name) + 1},0,0"
    )


def wider_face(root: Path) -> None:
    """WIDER FACE's format: a text file with the path of each image, the number of its objects, and a line for each."""
    lines = []
    for scene in scenes():
        save_scene(root / "images", scene)
        boxes = [f"{left} {top} {width} {height} 0 0 0 0 0 0" for _, left, top, width, height in scene.objects]
        lines += [f"{scene.name}.png", str(len(boxes)), *(boxes or [" ".join("0" * 10)])]
    (root / "wider_face_train_bbx_gt.txt").write_text("\n".join(lines), encoding="utf-8")


def _text_boxes(root: Path, images: str, labels: str, line: Callable[[str, str], str], *, end: bool = False) -> None:
    """Write a text file for each image, with a line for the class and the numbers of a box; ``end``: the last two are
    right and bottom."""
    (root / labels).mkdir(parents=True)
    for scene in scenes():
        save_scene(root / images, scene)
        boxes = [
            (KINDS[label], f"{left} {top} {left * end + width} {top * end + height}")
            for label, left, top, width, height in scene.objects
        ]
        text = "\n".join(line(name, box) for name, box in boxes)
        (root / labels / f"{scene.name}.txt").write_text(text, encoding="utf-8")


def yolo(root: Path) -> None:
    """YOLO: ``data.yaml``, ``images/train`` and ``labels/train``; bars are polygons. The empty image has no labels."""
    (root / "labels" / "train").mkdir(parents=True)
    for scene in scenes():
        save_scene(root / "images" / "train", scene)
        lines = []
        for label, left, top, width, height in scene.objects:
            box = ((left + width / 2) / 64, (top + height / 2) / 48, width / 64, height / 48)
            x, y, right, bottom = left / 64, top / 48, (left + width) / 64, (top + height) / 48
            values = (x, y, right, y, right, bottom, x, bottom) if label else box
            lines.append(" ".join(map(str, (label, *values))) + "\n")
        if lines:
            (root / "labels" / "train" / f"{scene.name}.txt").write_text("".join(lines), encoding="utf-8")
    (root / "data.yaml").write_text("train: images/train\nnames: [block, bar]\n", encoding="utf-8")


# --- videos -----------------------------------------------------------------------------------------------------------

VIDEOS = {"train": range(8), "val": range(8, 12)}


def kinetics(root: Path) -> None:
    """Videos in a folder per class."""
    for split, numbers in VIDEOS.items():
        for number in numbers:
            save_video(root / split / ("left", "right")[number % 2] / f"{number}.mkv", number)


def listed_videos(root: Path) -> None:
    """Lists of videos with one label each, like Something-Something."""
    for split, numbers in VIDEOS.items():
        for number in numbers:
            save_video(root / "videos" / f"{number}.mkv", number)
        lines = [f"{number}.mkv {number % 2}\n" for number in numbers]
        (root / f"{split}.txt").write_text("".join(lines), encoding="utf-8")


def save_video(path: Path, number: int) -> None:
    """Write a video; in odd ones the bar moves to the right."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    frames = np.random.default_rng(number).integers(0, 96, (24, 48, 64, 3), dtype=np.uint8)
    for time, frame in enumerate(frames):
        left = (8 * number + (2 if number % 2 else -2) * time) % 64
        frame[:, left : left + 8] += 128
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=24)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


# --- label maps -------------------------------------------------------------------------------------------------------


def label_maps(root: Path) -> None:
    """Images with label maps in the folders of ``segmentation_folder``, ``cityscapes``, ``ade20k`` and
    ``voc_segmentation``: four for training and two for validation."""
    values = {"cityscapes": (7, 11), "ade20k": (1, 2), "voc": (0, 5), "own": (0, 1)}
    lists = {"train": "training", "val": "validation"}
    for split, numbers in {"train": range(4), "val": range(4, 6)}.items():
        for number in numbers:
            pixels, objects = _draw_scene(number)
            name, city = f"{number:03d}", f"a/{number:03d}"
            inside = np.zeros(pixels.shape[:2], dtype=np.uint8)
            for annotation in objects:
                left, top, width, height = (round(value) for value in annotation["bbox"])
                inside[top : top + height, left : left + width] = 1
            places = {
                "own": (f"{split}/images/{name}.png", f"{split}/labels/{name}.png"),
                "cityscapes": (
                    f"leftImg8bit/{split}/{city}_leftImg8bit.png",
                    f"gtFine/{split}/{city}_gtFine_labelIds.png",
                ),
                "ade20k": (f"images/{lists[split]}/{name}.png", f"annotations/{lists[split]}/{name}.png"),
                "voc": (f"JPEGImages/{name}.jpg", f"SegmentationClassAug/{name}.png"),
            }
            for layout, (image, labels) in places.items():
                for path, array in ((image, pixels), (labels, np.array(values[layout], np.uint8)[inside])):
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(array).save(root / path)
        for name in (split, f"{split}aug"):
            path = root / f"ImageSets/Segmentation/{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{number:03d}\n" for number in numbers), encoding="utf-8")
