"""Videos with tracks in the formats of CVAT, KITTI and CocoVID; :mod:`.mot_files` has that of MOTChallenge."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from opabinia.data.sources.annotation_values import (
    errors_in,
    flag,
    leaves_root,
    numbers,
    parse_flag,
    parse_json,
    parse_number,
    parse_whole,
    shortened,
    text,
    whole_number,
)
from opabinia.data.sources.list_files import existing_file, read_text
from opabinia.data.sources.track_rows import (
    REGION,
    BoxTable,
    TrackFiles,
    Videos,
    VideoTracks,
    list_frames,
)
from opabinia.data.sources.voc import parse_xml

Values = list[float]
"""The nine columns of :class:`BoxTable`."""


# --- CVAT -------------------------------------------------------------------------------------------------------------


def cvat_videos(files: TrackFiles) -> Videos:
    """Return the subfolders with an ``annotations.xml``, "CVAT for video 1.1".

    Raises:
        ValueError: there are none; a function raises it for damaged files.
    """
    names = sorted(folder.name for folder in files.root.iterdir() if (folder / "annotations.xml").is_file())
    if not names:
        raise ValueError(f"{files.root}: none of its folders has an annotations.xml")
    return {name: partial(_read_cvat, files, name) for name in names}


def _read_cvat(files: TrackFiles, name: str) -> VideoTracks:
    file = files.root / name / "annotations.xml"
    with errors_in(f"{file} is not an XML file of CVAT for video 1.1: ", OSError, ValueError):
        top = parse_xml(file.read_bytes())
    with errors_in(f"{file}: the name of a label: "):
        names = [text(element.text or "") for element in top.findall("meta/*/labels/label/name")]
    tracks = top.findall("track")
    if not tracks:
        raise ValueError(f"{file} has no tracks: export the task as CVAT for video 1.1")
    lines, texts, rows = [], [], []
    count = 0
    for element in tracks:
        with errors_in(f"{file}, track {element.get('id')}: "):
            track, label = parse_whole(element.get("id", "")), element.get("label", "")
            if label not in names:
                raise ValueError(f"label {shortened(label)} is none of the task's: {', '.join(names[:15])}")
            for number, values in _interpolated(element, track, names.index(label) + 1):
                lines.append(count + number)
                texts.append(f"frame {values[0]:g} of track {track}")
                rows.append(values)
        count += len(element)
    table = BoxTable(file, "box", lines, texts, np.array(rows).reshape(-1, 9))
    images = list_frames(files.root, f"{name}/images")
    return VideoTracks(name, images, tuple(names), table.check(files, images, len(names)), "box")


def _interpolated(element: Element, track: int, label: int) -> list[tuple[int, Values]]:
    """Return the number of the box and the row of each frame in which a track is visible: boxes between two in the file
    lie on a line between them; ``outside`` ends the visibility."""
    boxes = []
    for number, box in enumerate(element, 1):
        if box.tag != "box":
            raise ValueError(f"a {box.tag} at frame {box.get('frame')}: only boxes are read")
        with errors_in(f"box {number}: "):
            corners = [parse_number(box.get(side, "")) for side in ("xtl", "ytl", "xbr", "ybr")]
            boxes.append((parse_whole(box.get("frame", "")), number, parse_flag(box.get("outside", "0")), corners))
    boxes.sort(key=lambda box: box[0])
    rows: list[tuple[int, Values]] = []
    for place, (frame, number, outside, corners) in enumerate(boxes, 1):
        end, _, _, target = boxes[place] if place < len(boxes) else (frame + 1, number, outside, corners)
        for step in range(0 if outside else max(end - frame, 1)):
            share = step / (end - frame) if step else 0
            places = (1 - share) * np.array(corners) + share * np.array(target)
            left, top, right, bottom = places.tolist()
            rows.append((number, [frame + step, track, left, top, right - left, bottom - top, 1, label, -1]))
    return rows


# --- KITTI ------------------------------------------------------------------------------------------------------------


def kitti_videos(files: TrackFiles) -> Videos:
    """Return the videos with a file ``label_02/<name>.txt``, KITTI tracking.

    Raises:
        ValueError: there are none, or a file is damaged.
    """
    label_files = sorted((files.root / "label_02").glob("[!.]*.txt"))
    if not label_files:
        raise ValueError(f"{files.root} has no label_02/*.txt, the label files of KITTI tracking")
    contents = {file: [line.split() for line in read_text(file).splitlines()] for file in label_files}
    classes = {fields[2] for lines in contents.values() for fields in lines if len(fields) > 2}
    names = sorted(classes - {"DontCare"})  # of all files, so that training and validation have the same labels
    return {file.stem: partial(_read_kitti, files, file, lines, names) for file, lines in contents.items()}


def _read_kitti(files: TrackFiles, file: Path, lines: list[list[str]], names: list[str]) -> VideoTracks:
    rows = {number: fields for number, fields in enumerate(lines, 1) if fields}
    label_of = {name: number for number, name in enumerate(names, 1)} | {"DontCare": REGION}
    values = []
    for number, fields in rows.items():
        with errors_in(f"{file}, line {number}: "):
            if len(fields) not in (17, 18):
                raise ValueError(f"{len(fields)} columns in place of 17: {shortened(' '.join(fields))}")
            left, top, right, bottom = (parse_number(field) for field in fields[6:10])
            frame, track = (parse_number(field) for field in fields[:2])
            values.append([frame, track, left, top, right - left, bottom - top, 1, label_of[fields[2]], -1])
    texts = [" ".join(fields) for fields in rows.values()]
    table = BoxTable(file, "line", list(rows), texts, np.array(values).reshape(-1, 9), regions=True)
    images = list_frames(files.root, f"image_02/{file.stem}")
    return VideoTracks(file.stem, images, tuple(names), table.check(files, images, len(names)))


# --- CocoVID ----------------------------------------------------------------------------------------------------------


def coco_videos(files: TrackFiles) -> Videos:
    """Return the videos of a JSON file in the format CocoVID of MMTracking.

    Raises:
        ValueError: there is no such file, or it is damaged.
    """
    if files.file is None:
        raise ValueError("file: coco_vid needs it: the JSON file below root")
    file = existing_file(files.root / files.file)
    content = parse_json(file.read_bytes(), file)
    records = {key: _records(file, content, key) for key in ("categories", "videos", "images", "annotations")}
    categories = sorted(records["categories"], key=lambda record: record["id"])
    names = tuple(text(record["name"]) for record in categories)
    numbers_of = {record["id"]: number for number, record in enumerate(categories, 1)}
    images: dict[int, dict[int, str]] = defaultdict(dict)
    places = {}
    for number, record in enumerate(records["images"]):
        with errors_in(f"{file}: images.{number}: "):
            frame, name = whole_number(record["frame_id"]), text(record["file_name"])
            if leaves_root(files.root, name):
                raise ValueError(f"{shortened(name)} is not below {files.root}")
            if frame in images[record["video_id"]]:
                raise ValueError(f"the video has two frames with the number {frame}")
            images[record["video_id"]][frame] = name
            places[record["id"]] = record["video_id"], frame
    rows: dict[int, dict[int, Values]] = defaultdict(dict)
    for number, record in enumerate(records["annotations"]):
        with errors_in(f"{file}: annotations.{number}: "):
            video, frame = _known(places, record, "image_id")
            rows[video][number] = _coco_row(record, frame, _known(numbers_of, record, "category_id"))
    videos: Videos = {}
    for number, record in enumerate(records["videos"]):
        with errors_in(f"{file}: videos.{number}: "):
            name = text(record["name"])
            if name in videos:
                raise ValueError(f"{shortened(name)} is the name of two videos")
            if not images[record["id"]]:
                raise ValueError(f"{shortened(name)} has no images")
            rate = parse_number(str(record.get("fps") or 0))
        of_video = images[record["id"]], rows[record["id"]]
        videos[name] = partial(_coco_video, files, file, name, names, rate, *of_video)
    return videos


def _coco_video(
    files: TrackFiles,
    file: Path,
    name: str,
    names: tuple[str, ...],
    rate: float,
    images: dict[int, str],
    rows: dict[int, Values],
) -> VideoTracks:
    texts = [f"frame {values[0]:g} of track {values[1]:g}" for values in rows.values()]
    table = BoxTable(file, "annotation", list(rows), texts, np.array([*rows.values()]).reshape(-1, 9), regions=True)
    return VideoTracks(name, images, names, table.check(files, images, len(names)), "annotation", frame_rate=rate)


def _coco_row(record: dict[str, Any], frame: int, label: int) -> Values:
    """Return the row of an annotation; crowds are regions."""
    box = numbers(record.get("bbox"), 4)
    if box is None:
        raise ValueError(f"bbox {shortened(record.get('bbox'))} is no list of four numbers")
    if flag(record.get("iscrowd")):
        return [frame, -1, *box, 1, REGION, -1]
    key = "instance_id" if "instance_id" in record else "track_id"
    visibility = numbers([record.get("visibility", -1)])
    if visibility is None:
        raise ValueError(f"visibility {shortened(record['visibility'])} is no number")
    return [frame, whole_number(record.get(key)), *box, 1, label, *visibility]


def _records(file: Path, content: Any, key: str) -> list[dict[str, Any]]:
    """Return a list of JSON objects that have the keys of all such lists.

    Raises:
        ValueError: it is missing, or one of its elements is not such an object.
    """
    needed = {
        "categories": ("id", "name"),
        "videos": ("id", "name"),
        "images": ("id", "video_id", "frame_id", "file_name"),
    }
    records = content.get(key) if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise ValueError(f"{file} has no list {key}: it is not of the format CocoVID")
    for number, record in enumerate(records):
        missing = [name for name in needed.get(key, ()) if not isinstance(record, dict) or name not in record]
        if missing or not isinstance(record, dict):
            raise ValueError(f"{file}: {key}.{number} has no {', '.join(missing) or 'keys'}: {shortened(record)}")
        for name in ("id", "video_id"):
            if name in record:
                with errors_in(f"{file}: {key}.{number}: {name}: "):
                    whole_number(record[name])
    return records


def _known(table: dict[int, Any], record: dict[str, Any], key: str) -> Any:
    value = whole_number(record.get(key))
    if value not in table:
        raise ValueError(f"{key} {value} is unknown")
    return table[value]
