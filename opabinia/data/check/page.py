"""The page of the data doctor: what data sets hold, and the pictures of what was found; one HTML file."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from opabinia.contracts import Video
from opabinia.data.check.checks import DataReport
from opabinia.data.check.counts import Holding
from opabinia.data.check.datasets import file_of, picture_file
from opabinia.data.check.findings import Finding, Member
from opabinia.data.check.terminal import bars, counts_of
from opabinia.data.sources.detection_base import Annotated
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.version import __version__
from opabinia.visualization.drawing import to_pil
from opabinia.visualization.report.blocks import Block, Gallery, Picture, PictureRow, Section, Table
from opabinia.visualization.report.images import Room
from opabinia.visualization.report.templating import template, text_of

CASES, BESIDE = 24, 6
"""Cases of a finding that are shown, and samples of a case."""

LINES = 200
"""Cases of a finding that are listed."""

ROWS = 2000
"""Classes or identities in a table; JSON has all."""

SMALL, WIDE = 192, 480
"""Pixels of the longer side of a picture, and of one with a box."""

_AROUND = 0.25
"""Of the side of a picture: so much is shown beside it where a box reaches out of it."""

_NOTHING = [128, 128, 128]
_MARK, _LINE = (230, 0, 60), 4


def write_page(found: DataReport, out: Path, title: str) -> None:
    """Write the page.

    Pictures are read again, at most :data:`CASES` x :data:`BESIDE` of a finding, and no more than there is room for.

    Raises:
        DiskError: the file cannot be written.
    """
    content = page_of(found, title)
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, content)


def page_of(found: DataReport, title: str) -> str:
    """The page as text."""
    room = Room()
    text: str = template("page.html", "opabinia.data.check").render(
        title=f"Data of {clean(title)}",
        heading=f"Data of {clean(title)}",
        version=__version__,
        stopped=found.stopped,
        wrong=found.wrong,
        summary=Table(
            "",
            ("found", "in", "count"),
            [(_named(one), clean(", ".join(one.sets)), one.count) for one in found.findings],
        ),
        findings=[Section(_named(one), _shown(one, found, room)) for one in found.findings],
        sets=[Section(clean(name), _blocks(holding)) for name, holding in found.sets.items()],
        number_of_chart=None,
        style=text_of("style.css"),
        shell=text_of("page.js"),
    )
    return text


def clean(text: str) -> str:
    """Text that can be written as UTF-8, whatever a file is called."""
    return text.encode("utf-8", "backslashreplace").decode()


def _named(one: Finding) -> str:
    return f"wrong: {one.kind}" if one.wrong else one.kind


# --- what there is ----------------------------------------------------------------------------------------------------


def _blocks(holding: Holding) -> list[Block]:
    what = "films" if holding.films else "pictures"
    blocks = [Table("Counts", ("what", "value"), [(name, str(value)) for name, value in counts_of(holding).items()])]
    if holding.sizes is not None:
        blocks.append(_bars("Shorter side in pixels", ("pixels", what, "share"), holding.sizes.sides))
        blocks.append(_bars("Width to height", ("ratio", what, "share"), holding.sizes.aspects))
    if holding.of_class:
        name = "identity" if holding.people else "class"
        blocks.append(_bars(f"{what} by {name}".capitalize(), (name, what, "share"), holding.of_class))
    if holding.boxes is not None:
        blocks.append(_bars("Things by class", ("class", "things", "share"), holding.boxes.of_class))
        blocks.append(
            _bars("Things by the root of their area in pixels", ("pixels", "things", "share"), holding.boxes.sides)
        )
    if holding.people is not None:
        blocks.append(_bars("Pictures by camera", ("camera", what, "share"), holding.people.of_camera))
        blocks.append(_bars("Pictures by view", ("view", what, "share"), holding.people.of_view))
    return [one for one in blocks if one.rows]


def _bars(title: str, columns: Sequence[str], counts: dict[str, int]) -> Table:
    rows = [(clean(name), count, share) for name, count, share in bars(counts)]
    note = f"the first {ROWS:,} of {len(rows):,}" if len(rows) > ROWS else ""
    return Table(title, columns, rows[:ROWS], frozenset({2}), note)


# --- findings ---------------------------------------------------------------------------------------------------------


def _shown(finding: Finding, found: DataReport, room: Room) -> list[Block]:
    """The pictures of the first cases; where there are none to be seen, and of what is left, a list."""
    rows = [row for case in finding.cases[:CASES] if (row := _row(case, finding, found, room)).pictures]
    blocks: list[Block] = []
    if rows:
        of = f"the first {len(rows)} of {finding.count:,}" if len(rows) < finding.count else ""
        single = all(len(case) == 1 for case in finding.cases)
        beside = [PictureRow("", [one for row in rows for one in row.pictures])]
        blocks.append(Gallery("", of, beside if single else rows))
    if len(rows) < min(len(finding.cases), CASES) or finding.count > CASES:
        blocks.append(_list(finding))
    return blocks


def _row(case: Sequence[Member], finding: Finding, found: DataReport, room: Room) -> PictureRow:
    pictures = [one for member in case[:BESIDE] if (one := _picture(member, finding, found, room)) is not None]
    return PictureRow(f"and {len(case) - BESIDE} more" if len(case) > BESIDE else "", pictures)


def _list(finding: Finding) -> Table:
    """Cases as lines."""
    cases = finding.cases[:LINES]
    lines = [(clean(", ".join({one.set: 0 for one in case})), clean(" = ".join(map(str, case)))) for case in cases]
    note = f"the first {len(lines)} of {finding.count:,}" if len(lines) < finding.count else ""
    return Table("", ("in", "what"), lines, note=note)


def _picture(member: Member, finding: Finding, found: DataReport, room: Room) -> Picture | None:
    """The picture of a sample, with the box that is meant; None where there is none, or no room for it."""
    try:
        image = _image(member, found)
    except (ValueError, OSError):
        return None
    if image is None:
        return None
    picture = _small(image, SMALL) if member.box is None else _boxed(image, member.box)
    content = BytesIO()
    picture.save(content, "WEBP", lossless=max(picture.size) < 90, quality=80)
    if not room.take(len(content.getvalue())):
        return None
    uri = "data:image/webp;base64," + base64.b64encode(content.getvalue()).decode("ascii")
    words = f"{member.set}: {member}" if len(finding.sets) > 1 else str(member)
    return Picture(uri, clean(words), picture.size)


def _image(member: Member, found: DataReport) -> Tensor | None:
    """Of a picture all, of a film its middle frame."""
    if member.part is None:
        return None
    source = found.parts[member.part]
    if member.index is None:
        return file_of(source, os.fsencode(member.id)).pixels() if isinstance(source, Annotated) else None
    picture = picture_file(source, member.index)
    if picture is not None:
        return picture.pixels()
    sample = source[member.index]
    film: Video | None = sample.get("video")
    image: Tensor | None = sample.get("image") if film is None else film.read([film.frames // 2])[0]
    return image


def _small(image: Tensor, side: int) -> Image.Image:
    """A picture, no larger than ``side`` pixels."""
    picture = to_pil(image)
    picture.thumbnail((side, side), reducing_gap=2.0)
    return picture


def _boxed(image: Tensor, box: tuple[float, float, float, float]) -> Image.Image:
    """A picture with a box, and as much beside it as the box reaches out of it, up to :data:`_AROUND`."""
    height, width = image.shape[-2:]
    (left, right), (top, bottom) = sorted(box[0::2]), sorted(box[1::2])
    beyond = [(-left, width), (-top, height), (right - width, width), (bottom - height, height)]
    margins = [round(min(max(reach, 0), _AROUND * side)) for reach, side in beyond]
    picture = to_pil(F.pad(image, margins, fill=_NOTHING[: image.shape[0]]))
    scale = WIDE / max(picture.size)
    sides = [max(1, round(side * scale)) for side in picture.size]
    picture = picture.resize((sides[0], sides[1]), reducing_gap=2.0)
    # A line outside of the box, so that a tiny one is seen; at the edge where the box goes on beyond it.
    corners = [(left + margins[0]) * scale, (top + margins[1]) * scale]
    corners += [(right + margins[0]) * scale, (bottom + margins[1]) * scale]
    first = [min(max(value, _LINE), side) - _LINE for value, side in zip(corners[:2], sides, strict=True)]
    last = [max(min(value, side - _LINE), 0) + _LINE for value, side in zip(corners[2:], sides, strict=True)]
    draw = ImageDraw.Draw(picture)
    draw.rectangle(
        (*first, *(max(a + 2 * _LINE, b) for a, b in zip(first, last, strict=True))), outline=_MARK, width=_LINE
    )
    return picture
