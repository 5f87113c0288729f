"""Pictures that :mod:`opabinia.inference.report_images` has put into a run folder, as galleries of a page."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opabinia.visualization.report.blocks import Gallery, Picture, PictureRow
from opabinia.visualization.report.untrusted_json import dict_of, dicts_of, read_json

FOLDER, INDEX = "pictures", "index.json"

MOST_OF_ALL, MOST_OF_ONE = 6_000_000, 1_500_000
"""Bytes of all pictures on a page, and of one."""

VERDICTS = ("right", "wrong", "junk")


class Room:
    """How many bytes of pictures a page still has room for.

    Args:
        left: bytes.
    """

    def __init__(self, left: int = MOST_OF_ALL) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        """Whether a picture of so many bytes goes onto the page."""
        if size > min(self.left, MOST_OF_ONE):
            return False
        self.left -= size
        return True


def read_index(folder: Path, notes: list[str]) -> dict[str, Any]:
    """What ``pictures/index.json`` in a run folder says; nothing where there is none."""
    return dict_of(read_json(folder / FOLDER / INDEX, notes))


def galleries_of(folder: Path, index: Mapping[str, Any], room: Room, notes: list[str]) -> list[Gallery]:
    """The galleries of a run, as far as there is room."""
    left_out: list[str] = []
    galleries = []
    for group in dicts_of(index.get("groups")):
        rows = []
        for row in dicts_of(group.get("rows")):
            pictures = [_picture(folder / FOLDER, one, room, left_out) for one in dicts_of(row.get("pictures"))]
            if there := [one for one in pictures if one is not None]:
                rows.append(PictureRow(str(row.get("title") or ""), there))
        if rows:
            title, note = str(group.get("title") or ""), str(group.get("note") or "")
            galleries.append(Gallery(title, note, rows, group.get("of_data") is True))
    if left_out:
        notes.append(f"{len(left_out)} pictures are left out: no room on the page, or no pictures ({left_out[0]} ...)")
    return galleries


def _picture(folder: Path, said: Mapping[str, Any], room: Room, left_out: list[str]) -> Picture | None:
    name = str(said.get("file") or "")
    content = _bytes(folder, name)
    size = _size(content)
    if size is None or not room.take(len(content)):
        left_out.append(name)
        return None
    verdict = said.get("verdict")
    uri = "data:image/webp;base64," + base64.b64encode(content).decode("ascii")
    return Picture(uri, str(said.get("text") or ""), size, verdict if verdict in VERDICTS else "")


def _bytes(folder: Path, name: str) -> bytes:
    """The content of a file that lies in the folder itself; nothing of any other."""
    if not name or Path(name).name != name:
        return b""
    path = folder / name
    try:
        if path.is_symlink() or path.stat().st_size > MOST_OF_ONE:
            return b""
        return path.read_bytes()
    except OSError:
        return b""


def _size(content: bytes) -> tuple[int, int] | None:
    """Width and height as a WebP file's header tells them (RFC 9649, section 2); None of anything else."""
    if len(content) < 30 or content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        return None
    kind = content[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8X":
        return 1 + int.from_bytes(content[24:27], "little"), 1 + int.from_bytes(content[27:30], "little")
    return None
