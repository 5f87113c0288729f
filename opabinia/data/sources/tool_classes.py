"""Classes of whole images in files of annotation tools: tags of CVAT, choices of Label Studio, flags of LabelMe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from opabinia.data.file_search import find_files
from opabinia.data.sources.annotation_values import errors_in, parse_json, text
from opabinia.data.sources.label_studio import image_path, submitted_tasks
from opabinia.data.sources.voc import parse_xml

IMAGES = "images/"
"""The folder that holds the images of `opabinia data labels --export`, in the addresses of Label Studio."""


def read_image_classes(file: Path) -> Iterator[tuple[str, list[str]]] | None:
    """Return the path below the folder of images, and the classes, of each image: of an .xml file of CVAT, a .json file
    of Label Studio, or a folder of LabelMe's .json files; None for any other file.

    Raises:
        ValueError: it cannot be read.
    """
    if file.is_dir():
        return _read_labelme(file)
    readers = {".xml": _read_cvat, ".json": _read_label_studio}
    reader = readers.get(file.suffix.lower())
    return None if reader is None else reader(file)


def _read_cvat(file: Path) -> Iterator[tuple[str, list[str]]]:
    with errors_in(f"{file} is not an XML file of CVAT for images 1.1: ", OSError, ValueError):
        top = parse_xml(file.read_bytes())
    for image in top.findall("image"):
        yield image.get("name", ""), [tag.get("label", "") for tag in image.findall("tag")]


def _read_label_studio(file: Path) -> Iterator[tuple[str, list[str]]]:
    for address, results in submitted_tasks(file):
        with errors_in(f"{file}: {address}: ", LookupError, TypeError, AttributeError):
            choices = [choice for result in results for choice in result["value"].get("choices", ())]
        yield image_path(address).removeprefix(IMAGES), [text(choice) for choice in choices]


def _read_labelme(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for file in (folder / os.fsdecode(name) for name in find_files(folder, suffixes=[".json"])):
        with errors_in(
            f"{file} is not a file of LabelMe: ", OSError, ValueError, LookupError, TypeError, AttributeError
        ):
            content = parse_json(file.read_bytes(), "it")
            name, flags = text(content["imagePath"]).replace("\\", "/"), dict(content.get("flags") or {})
        image = (file.parent / name).relative_to(folder)
        yield image.as_posix(), [text(flag) for flag, chosen in flags.items() if chosen is True]
