"""The layout of a folder of data: the readings that fit, the choice between them, and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from opabinia.config import ConfigError, Problem
from opabinia.data.decoding.images import EXTENSIONS as IMAGES
from opabinia.data.decoding.video import EXTENSIONS as VIDEOS
from opabinia.data.layouts.annotation_tools import read_cvat, read_labelme, read_voc
from opabinia.data.layouts.box_lists import read_box_lists
from opabinia.data.layouts.class_folders import read_class_folders, read_video_folders
from opabinia.data.layouts.coco_files import read_coco
from opabinia.data.layouts.folder import DoubtfulLayout, Folder, UnreadableLayout, listed, split_of
from opabinia.data.layouts.identities import read_named_identities
from opabinia.data.layouts.images import like_maps, read_images, read_named_classes, unread_annotations
from opabinia.data.layouts.layout import TASK_NAMES, Layout, TaskName
from opabinia.data.layouts.lists import read_lists
from opabinia.data.layouts.maps import read_map_list, read_maps
from opabinia.data.layouts.mask_files import read_mask_files
from opabinia.data.layouts.packed import read_hugging_face, read_idx, read_parquet, read_shards
from opabinia.data.layouts.readings import convert
from opabinia.data.layouts.sketches import describe_unrecognized, nearest_layouts
from opabinia.data.layouts.supervisely import read_supervisely
from opabinia.data.layouts.text_files import read_kitti, read_visdrone, read_wider_face
from opabinia.data.layouts.text_labels import read_dota, read_yolo
from opabinia.data.layouts.tracks import read_tracks
from opabinia.data.layouts.via import read_via_files
from opabinia.data.layouts.videos import read_packed_videos, read_video_lists
from opabinia.runtime.files import describe_missing
from opabinia.runtime.local_copies import local_copy
from opabinia.runtime.storage import is_url, normalize_url, shown_path

Reader = Callable[[Folder], Iterator[Layout]]
"""Yields the readings of a folder: the first with a name is the usual one, others with it are for other tasks."""

_READERS: Sequence[Sequence[Reader]] = (
    (
        *(
            read_tracks,
            read_coco,
            read_yolo,
            read_voc,
            read_labelme,
            read_cvat,
            read_supervisely,
            read_via_files,
            read_dota,
            read_kitti,
            read_visdrone,
            read_wider_face,
        ),
        *(read_mask_files, read_maps, read_map_list, read_named_identities),
        *(read_hugging_face, read_parquet, read_idx, read_packed_videos, read_video_lists),
    ),
    (read_shards,),
    (read_box_lists, read_lists, read_class_folders, read_video_folders, read_named_classes),
)
"""Readers by how unmistakable their files are. Those of a group are asked if the groups before recognize nothing, and
that of unlabeled images at last."""

_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar", ".gz")
_FILES = (".yaml", ".yml", ".json", ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".xml", ".txt")
_MAX_DEPTH = 3
_COUNTED = 10_000
"""Files that are counted to see whether images are most of them."""


def recognize(root: str | Path, *, task: TaskName | None = None, layout: str | None = None) -> Layout:
    """Return the reading of a folder of data, or of a single file such as a ``data.yaml``.

    Names and headers of files are looked at, of images only a few segmentation maps.

    Args:
        root: a folder or file, or a URL of remote storage.
        task: the task to read it for, if several are possible.
        layout: the name of the layout, if several are possible.

    Raises:
        ConfigError: there is no such folder, nothing is recognized, several readings are possible (with the command for
            each), or files are missing or broken.
    """
    folder = _open(root)
    if task is not None and task not in TASK_NAMES:
        raise _error(folder, f"task: {task!r} is none of {', '.join(TASK_NAMES)}")
    try:
        _check_content(folder)
        folder = _unwrapped(folder)
        readings, broken = _read(folder, task, layout)
        inner = folder
        for _ in range(_MAX_DEPTH):
            with_data = [name for name in inner.folders if inner.sub(name).holds((*IMAGES, *VIDEOS))]
            if readings or broken or len(with_data) != 1:
                break
            inner = inner.sub(with_data[0])
            readings, broken = _read(inner, task, layout)
        if not _fitting(readings, task, layout) and (not broken or task or layout):
            readings += read_images(folder)
            if readings and task is None and layout is None:
                _check_unlabeled(folder, readings[0])
        return _choose(folder, readings, broken, task, layout)
    except UnreadableLayout as error:
        raise _error(folder, str(error)) from error
    except OSError as error:
        raise _error(folder, _reason(error)) from error


def _unwrapped(folder: Folder) -> Folder:
    """Return the folder that holds the data, if all above hold nothing but the next one."""
    for _ in range(_MAX_DEPTH):
        name = folder.folders[0] if len(folder.folders) == 1 and not folder.named(*_FILES, *IMAGES, *VIDEOS) else ""
        inner = folder.sub(name)
        if not name or split_of(name) or not inner.folders or inner.named(*IMAGES, *VIDEOS) or inner.is_loop:
            break
        folder = inner
    return folder


def _check_content(folder: Folder) -> None:
    """Raise UnreadableLayout if the first image is a pointer of Git LFS."""
    for name in folder.tree(IMAGES, 1) if folder.only is None else ():
        if folder.head(name, 64).startswith("version https://git-lfs"):
            raise UnreadableLayout(
                f"{folder.at(name)} is a pointer of Git LFS, not an image; get the files: git lfs pull"
            )


def _check_unlabeled(folder: Folder, reading: Layout) -> None:
    """Raise ConfigError if there may be labels of images that were recognized without."""
    without = f"without labels: {folder.command('--task', 'selfsup')}"
    unread = unread_annotations(folder)
    files = folder.tree(("",), _COUNTED)
    count = sum(name.lower().endswith(IMAGES) for name in files)
    if count < len(files) / 2 and not unread:
        found = f"{reading.description} among {len(files)} files, in no layout that is recognized"
        raise _error(folder, found, *nearest_layouts(files), without)
    if unread:
        found = f"{reading.description}, and the layout of {listed(unread, 3)} is not recognized"
        raise _error(folder, found, *nearest_layouts([*unread, *folder.tree(limit=1000)]), without)
    maps = like_maps(folder)
    if maps:
        found = f"{reading.description}, of which many have few values, as segmentation maps have: {listed(maps, 3)}"
        pairs = "maps are read if they are in a second folder, or have names that begin as those of images"
        raise _error(folder, found, f"{pairs}: images/1.jpg and masks/1.png, or 1.jpg and 1_mask.png", without)


def _reason(error: OSError) -> str:
    """Return the text of an error of the file system, with the URL of a local copy in place of its path."""
    place = f"{shown_path(os.fsdecode(error.filename))} " if error.filename else ""
    return f"{place}cannot be read: {error.strerror or error}"


def _error(folder: Folder, *lines: str) -> ConfigError:
    """Return an error with a line for each problem; the first begins with the folder, unless it names a place in it."""
    place = folder.at(folder.only or "")
    first, *others = lines
    where = "" if first.startswith(place) else place
    return ConfigError([Problem(where, "", first), *(Problem("", "", line) for line in others)])


def _open(root: str | Path) -> Folder:
    """Return the folder, or the folder of a single file.

    Raises:
        ConfigError: there is none, or it is a file that cannot hold data.
    """
    text = normalize_url(root) if is_url(root) else os.path.normpath(os.path.expanduser(root))
    path = _local_path(text) if is_url(root) else Path(text)
    if path.is_dir():
        return Folder(path, text)
    if not path.exists():
        message = f"there is no such folder; {describe_missing(path)}"
        raise ConfigError(Problem(text, "", message))
    parent, _, name = text.rpartition("/")
    folder = Folder(path.parent, parent or ("/" if text.startswith("/") else "."), only=name)
    lower = name.lower()
    if lower.endswith(_ARCHIVES) and "-ubyte" not in lower:
        raise _error(folder, "is an archive; unpack it, and give the folder")
    if lower.endswith((*IMAGES, *VIDEOS)):
        kind = "an image" if lower.endswith(IMAGES) else "a video"
        raise _error(folder, f"is {kind}; give the folder that holds all of them")
    return folder


def _local_path(url: str) -> Path:
    """Return the local copy of a folder or file in remote storage; of a list or annotations with all that is beside it.

    Raises:
        StorageError: there is no such object or folder.
    """
    parent, _, name = url.rpartition("/")
    if name.lower().endswith(_FILES):
        return Path(local_copy(parent)) / name
    return Path(local_copy(url))


def _read(folder: Folder, task: TaskName | None, layout: str | None) -> tuple[list[Layout], list[str]]:
    """Return all readings, of a group of readers only if those before have none of the task and name, and all that is
    broken."""
    readings: list[Layout] = []
    broken: list[str] = []
    doubtful: list[str] = []
    for group in _READERS:
        for reader in group:
            try:
                for reading in reader(folder):
                    readings.append(reading)
            except DoubtfulLayout as error:
                doubtful.append(str(error))
            except OSError as error:
                broken.append(_reason(error))
            except ValueError as error:  # UnreadableLayout, or of a source that has read a file
                broken.append(str(error))
        if _fitting(readings, task, layout) or (broken and task is None and layout is None):
            break
    return readings, broken or ([] if readings else doubtful)


def _fitting(readings: Iterable[Layout], task: TaskName | None, layout: str | None) -> list[Layout]:
    """Return the readings for a task and with a name; those of images fit self-supervised learning."""
    named = [reading for reading in readings if layout in (None, reading.name)]
    if task == "selfsup":
        return [reading for reading in named if reading.task != "video"]
    return [reading for reading in named if task in (None, reading.task)]


def _choose(
    folder: Folder, readings: Sequence[Layout], broken: Sequence[str], task: TaskName | None, layout: str | None
) -> Layout:
    """Return the only reading that fits.

    Raises:
        ConfigError: there is none, or there are several.
    """
    fitting = _fitting(readings, task, layout)
    if broken and not (fitting and (task or layout)):
        raise _error(folder, *broken, *_commands(folder, readings, task, "otherwise:"))
    if not readings:
        archives = [name for name in folder.files if name.lower().endswith(_ARCHIVES)]
        if archives and not folder.holds():
            raise _error(folder, f"holds {listed(archives)}: unpack it")
        raise _error(folder, *describe_unrecognized(folder))
    if not fitting:
        asked = " and ".join([*([f"--task {task}"] if task else []), *([f"--layout {layout}"] if layout else [])])
        found = "; ".join(dict.fromkeys(f"{reading.description} ({reading.task})" for reading in readings))
        lines = _commands(folder, readings, None, "possible:")
        raise _error(folder, f"{asked} does not fit what is there: {found}", *lines)
    if task == "selfsup":
        return fitting[0] if fitting[0].task == "selfsup" else _without_labels(fitting[0])
    usual = list({reading.name: reading for reading in reversed(fitting)}.values())[::-1]
    if len(usual) > 1:
        raise _error(
            folder, "can be read in several ways; which one is meant?", *_commands(folder, usual, task, "", fitting)
        )
    return usual[0]


def _without_labels(layout: Layout) -> Layout:
    """Return the reading of the images alone."""
    unlabeled = convert(layout, "selfsup", lambda section: {"name": "unlabeled", "source": section})
    return replace(unlabeled, description=f"{layout.description}, without labels", notes=(), classes=())


def _commands(
    folder: Folder, readings: Sequence[Layout], task: TaskName | None, before: str, possible: Sequence[Layout] = ()
) -> list[str]:
    """Return a line with the command for each reading, after the line ``before``; ``possible``: all that the commands
    choose from, if they are more."""
    lines = []
    for reading in readings:
        names = {other.name for other in possible or readings if other.task == reading.task}
        options = ["--task", reading.task] if len(names) == 1 or task else []
        options += ["--layout", reading.name] if len(names) > 1 else []
        lines.append(f"  {folder.command(*options)}    # {reading.description}")
    return [before, *lines] if lines and before else lines
