"""Images of pages: encoded, within a limit of bytes, and those that :mod:`opabinia.inference.report_images` has written
into a run folder, as galleries."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from opabinia.runtime.text import plural
from opabinia.visualization.report.blocks import Gallery, ImageRow, ReportImage
from opabinia.visualization.report.untrusted_json import dict_of, dicts_of, read_json

FOLDER, INDEX = "pictures", "index.json"

MAX_BYTES, MAX_BYTES_OF_IMAGE = 6_000_000, 1_500_000
"""Limits for all images on a page, and for one."""

VERDICTS = ("right", "wrong", "junk", "drawn")


class ByteBudget:
    """The bytes of images that still fit on a page.

    Args:
        remaining: bytes.
    """

    def __init__(self, remaining: int = MAX_BYTES) -> None:
        self.remaining = remaining

    def take(self, size: int) -> bool:
        """Return whether an image of this size fits on the page, and subtract it."""
        if size > min(self.remaining, MAX_BYTES_OF_IMAGE):
            return False
        self.remaining -= size
        return True


def clean(text: str) -> str:
    """Return text that can be encoded as UTF-8, whatever a file is called."""
    return text.encode("utf-8", "backslashreplace").decode()


def encode_image(image: Image.Image, caption: str, budget: ByteBudget) -> ReportImage | None:
    """Return an image of a page, tiny ones without loss; None if it exceeds the budget."""
    content = BytesIO()
    image.save(content, "WEBP", lossless=max(image.size) < 90, quality=80)
    if not budget.take(len(content.getvalue())):
        return None
    return ReportImage(_data_uri(content.getvalue()), clean(caption), image.size)


def read_index(folder: Path, notes: list[str]) -> dict[str, Any]:
    """Return the content of ``pictures/index.json`` in a run folder; empty if there is none."""
    return dict_of(read_json(folder / FOLDER / INDEX, notes))


def checkpoint_step(index: Mapping[str, Any]) -> int | None:
    """Return the step of the checkpoint whose predictions are shown; None if it is unknown."""
    name = re.fullmatch(r"step-(\d{1,12})", str(index.get("checkpoint", "")))
    return int(name[1]) if name else None


def galleries_of(folder: Path, index: Mapping[str, Any], budget: ByteBudget, notes: list[str]) -> list[Gallery]:
    """Return the galleries of a run, as far as the budget allows."""
    omitted: list[str] = []
    galleries = []
    for group in dicts_of(index.get("groups")):
        rows = []
        for row in dicts_of(group.get("rows")):
            images = [_image(folder / FOLDER, entry, budget, omitted) for entry in dicts_of(row.get("pictures"))]
            if shown := [image for image in images if image is not None]:
                rows.append(ImageRow(str(row.get("title") or ""), shown))
        if rows:
            title, note = str(group.get("title") or ""), str(group.get("note") or "")
            galleries.append(Gallery(title, note, rows, group.get("of_data") is True))
    if omitted:
        notes.append(f"{plural(len(omitted), 'image')} omitted: no room on the page, or not images ({omitted[0]} ...)")
    return galleries


def _image(folder: Path, entry: Mapping[str, Any], budget: ByteBudget, omitted: list[str]) -> ReportImage | None:
    name = str(entry.get("file") or "")
    content, size = _read_webp(folder, name)
    if not content or not budget.take(len(content)):
        omitted.append(name)
        return None
    verdict = entry.get("verdict")
    return ReportImage(_data_uri(content), str(entry.get("text") or ""), size, verdict if verdict in VERDICTS else "")


def _data_uri(content: bytes) -> str:
    return "data:image/webp;base64," + base64.b64encode(content).decode("ascii")


def _read_webp(folder: Path, name: str) -> tuple[bytes, tuple[int, int]]:
    """Return a WebP image in the folder itself, and its width and height; empty for any other file."""
    path = folder / name
    try:
        if name and path.name == name and not path.is_symlink() and path.stat().st_size <= MAX_BYTES_OF_IMAGE:
            content = path.read_bytes()
            with Image.open(BytesIO(content), formats=["WEBP"]) as image:
                return content, image.size
    except Exception:  # PIL raises any on damaged files
        pass
    return b"", (0, 0)
