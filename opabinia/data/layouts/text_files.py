"""Text files with boxes in pixels: the formats of KITTI and VisDrone, of an image each, and of WIDER FACE."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from opabinia.data.layouts.folder import Folder, listed, split_in
from opabinia.data.layouts.layout import Layout, Section, Sections
from opabinia.data.layouts.pairing import Place, check_alone, locate, paired_folders, several
from opabinia.data.layouts.readings import check_training
from opabinia.data.sources.text_boxes import VISDRONE_CLASSES
from opabinia.runtime.text import plural

_NUMBER = r"-?\d+(\.\d+)?(e-?\d+)?"
_KITTI = re.compile(rf"[A-Za-z]\S*(\s+{_NUMBER}){{14,15}}\s*")
_VISDRONE = re.compile(r"\s*(-?\d+,){7}-?\d+,?\s*")
_WIDER = re.compile(r"^(?P<path>\S.*\.jpe?g)\s*\n\d+\s*\n([\d.-]+[ \t]+){9}[\d.-]+\s*$", re.MULTILINE | re.IGNORECASE)
_FILES = 20
"""Files of a folder that are looked at."""


def read_kitti(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of text files of KITTI's format of objects.

    Raises:
        UnreadableLayout: there is nothing to train on, or the names of folders do not say which split each is.
    """
    places = paired_folders(folder, ".txt", _holds(_KITTI))
    if not places:
        return
    classes = sorted(
        {
            line.split()[0]
            for _, labels in places.values()
            for name in folder.sub(labels).named(".txt")
            for line in folder.sub(labels).head(name, 1 << 20).splitlines()
            if line.strip()
        }
        - {"DontCare"}
    )
    sections = {
        split: {"name": "kitti", "root": folder.text, "images": images, "labels": labels, "classes": classes}
        for split, (images, labels) in places.items()
    }
    yield _layout(
        folder, "kitti", f"boxes of {plural(len(classes), 'class', 'es')} in KITTI's format", places, sections
    )


def read_visdrone(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of text files of VisDrone's format.

    Raises:
        UnreadableLayout: there is nothing to train on, or the names of folders do not say which split each is.
    """
    places = paired_folders(folder, ".txt", _holds(_VISDRONE))
    sections = {
        split: {"name": "visdrone", "root": folder.text, "images": images, "labels": labels}
        for split, (images, labels) in places.items()
    }
    if places:
        names = listed(VISDRONE_CLASSES, 3)
        yield _layout(folder, "visdrone", f"boxes in VisDrone's format, of its classes {names}", places, sections)


def read_wider_face(folder: Folder) -> Iterator[Layout]:
    """Yield the reading of text files of WIDER FACE's format, each with the faces of all images of a split.

    Raises:
        UnreadableLayout: there is nothing to train on, or the names of files do not say which split each is.
    """
    found: dict[str, tuple[str, Place]] = {}
    for above_file in folder.places((".txt",)) if folder.only is None else ():
        for name in folder.sub(above_file).named(".txt")[:_FILES]:
            paths = [match["path"] for match in _WIDER.finditer(folder.sub(above_file).head(name))]
            place = locate(folder, paths[:_FILES], split_in(name))
            if place is None or place.prefix or place.suffix or place.folders:
                continue
            split, file = split_in(name) or "train", f"{above_file}/{name}".lstrip("/")
            if split in found:
                raise several(folder, [found[split][0], file])
            found[split] = file, place
    sections: dict[str, Section] = {
        split: {"name": "wider_face", "root": folder.at(place.root), "file": folder.at(file)}
        for split, (file, place) in found.items()
    }
    if found:
        check_training(folder, sections, "expected wider_face_train_bbx_gt.txt")
        used = [part.partition("/")[0] for file, place in found.values() for part in (file, place.root)]
        notes = folder.others(used)
        yield Layout("wider_face", "detection", "faces in WIDER FACE's format", sections, notes=notes)


def _layout(
    folder: Folder,
    name: str,
    description: str,
    places: dict[str, tuple[str, str]],
    sections: Sections,
) -> Layout:
    check_training(folder, sections, "expected a folder train")
    used = [place.partition("/")[0] for pair in places.values() for place in pair]
    check_alone(folder, used)
    return Layout(name, "detection", description, sections, notes=folder.others(used))


def _holds(line: re.Pattern[str]) -> Callable[[Folder], bool]:
    """Return a function that returns whether the first text files in a folder have such lines."""

    def holds(folder: Folder) -> bool:
        texts = [text for name in folder.named(".txt")[:_FILES] for text in folder.head(name).splitlines()]
        lines = [text for text in texts if text.strip()]
        return bool(lines) and all(map(line.fullmatch, lines))

    return holds
