"""HTML page of a data report: statistics of the datasets, and the images of the findings, in one file."""

from __future__ import annotations

import base64
import os
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from opabinia.contracts import Video
from opabinia.data.check.checks import DataReport
from opabinia.data.check.datasets import image_file, lazy_image
from opabinia.data.check.findings import Finding, SampleRef
from opabinia.data.check.statistics import DatasetStatistics
from opabinia.data.check.terminal import summary_rows, with_shares
from opabinia.data.sources.detection_base import AnnotatedImages
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.version import __version__
from opabinia.visualization.drawing import to_pil
from opabinia.visualization.report.blocks import Block, Gallery, ImageRow, ReportImage, Section, Table
from opabinia.visualization.report.images import ByteBudget
from opabinia.visualization.report.templating import template, text_of

MAX_CASES, MAX_SAMPLES = 24, 6
"""Cases of a finding that are shown with images, and samples of a case."""

MAX_LINES = 200
"""Cases of a finding that are listed."""

MAX_ROWS = 2000
"""Classes or identities in a table; JSON has all."""

SMALL, WIDE = 192, 480
"""Pixels of the longer side of an image, and of one with a box."""

_MAX_MARGIN = 0.25
"""Share of a side of the image: shown beside it if a box extends beyond it."""

_PADDING = [128, 128, 128]
_BOX_COLOR, _LINE = (230, 0, 60), 4


def write_page(report: DataReport, out: Path, title: str) -> None:
    """Write the page.

    Images are read again, at most :data:`MAX_CASES` x :data:`MAX_SAMPLES` of a finding, within the page's byte budget.

    Raises:
        DiskError: the file cannot be written.
    """
    content = render_page(report, title)
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, content)


def render_page(report: DataReport, title: str) -> str:
    """Return the page as text."""
    budget = ByteBudget()
    rows = [(finding.title, clean(", ".join(finding.datasets)), finding.count) for finding in report.findings]
    text: str = template("page.html", "opabinia.data.check").render(
        title=f"Data of {clean(title)}",
        heading=f"Data of {clean(title)}",
        version=__version__,
        stopped=report.stopped,
        error_count=report.error_count,
        summary=Table("", ("finding", "dataset", "count"), rows),
        findings=[Section(finding.title, _finding_blocks(finding, report, budget)) for finding in report.findings],
        datasets=[Section(clean(name), _dataset_blocks(dataset)) for name, dataset in report.datasets.items()],
        number_of_chart=None,
        style=text_of("style.css"),
        shell=text_of("page.js"),
    )
    return text


def clean(text: str) -> str:
    """Return text that can be encoded as UTF-8, whatever a file is called."""
    return text.encode("utf-8", "backslashreplace").decode()


# --- datasets ---------------------------------------------------------------------------------------------------------


def _dataset_blocks(dataset: DatasetStatistics) -> list[Block]:
    noun = "videos" if dataset.is_video else "images"
    rows = [(name, str(value)) for name, value in summary_rows(dataset).items()]
    blocks = [Table("Summary", ("statistic", "value"), rows)]

    def add(title: str, name: str, counts: dict[str, int], counted: str = noun) -> None:
        shares = [(clean(key), count, share) for key, count, share in with_shares(counts)]
        note = f"the first {MAX_ROWS:,} of {len(shares):,}" if len(shares) > MAX_ROWS else ""
        blocks.append(Table(title, (name, counted, "share"), shares[:MAX_ROWS], frozenset({2}), note))

    if dataset.sizes is not None:
        add("Shorter side in pixels", "pixels", dataset.sizes.sides)
        add("Aspect ratio (width to height)", "ratio", dataset.sizes.aspects)
    name = "identity" if dataset.identities else "class"
    add(f"{noun} per {name}".capitalize(), name, dataset.per_class)
    if dataset.boxes is not None:
        add("Objects per class", "class", dataset.boxes.per_class, "objects")
        add("Objects by square root of their area in pixels", "pixels", dataset.boxes.sides, "objects")
    if dataset.identities is not None:
        add("Images per camera", "camera", dataset.identities.per_camera)
        add("Images per view", "view", dataset.identities.per_view)
    return [block for block in blocks if block.rows]


# --- findings ---------------------------------------------------------------------------------------------------------


def _finding_blocks(finding: Finding, report: DataReport, budget: ByteBudget) -> list[Block]:
    """Return the images of the first cases; and a list, if some cannot be shown or there are more."""
    rows: list[ImageRow] = []
    for case in finding.cases[:MAX_CASES]:
        images = [_render_sample(sample, finding, report, budget) for sample in case[:MAX_SAMPLES]]
        shown = [image for image in images if image is not None]
        if shown:
            rows.append(ImageRow(f"and {len(case) - MAX_SAMPLES} more" if len(case) > MAX_SAMPLES else "", shown))
    blocks: list[Block] = []
    incomplete = len(rows) < min(len(finding.cases), MAX_CASES) or finding.count > MAX_CASES
    if rows:
        note = f"the first {len(rows)} of {finding.count:,}" if len(rows) < finding.count else ""
        if all(len(case) == 1 for case in finding.cases):
            rows = [ImageRow("", [image for row in rows for image in row.images])]
        blocks.append(Gallery("", note, rows))
    return [*blocks, _case_list(finding)] if incomplete else blocks


def _case_list(finding: Finding) -> Table:
    cases = finding.cases[:MAX_LINES]
    lines = [
        (clean(", ".join(dict.fromkeys(sample.dataset for sample in case))), clean(" = ".join(map(str, case))))
        for case in cases
    ]
    note = f"the first {len(lines)} of {finding.count:,}" if len(lines) < finding.count else ""
    return Table("", ("dataset", "sample"), lines, note=note)


def _render_sample(sample: SampleRef, finding: Finding, report: DataReport, budget: ByteBudget) -> ReportImage | None:
    """Return the image of a sample, with its box; None if it cannot be read or exceeds the budget."""
    try:
        pixels = _read_image(sample, report)
    except (ValueError, OSError):
        return None
    if pixels is None:
        return None
    if sample.box is None:
        image = to_pil(pixels)
        image.thumbnail((SMALL, SMALL), reducing_gap=2.0)
    else:
        image = _draw_box(pixels, sample.box)
    content = BytesIO()
    image.save(content, "WEBP", lossless=max(image.size) < 90, quality=80)
    if not budget.take(len(content.getvalue())):
        return None
    uri = "data:image/webp;base64," + base64.b64encode(content.getvalue()).decode("ascii")
    caption = f"{sample.dataset}: {sample}" if len(finding.datasets) > 1 else str(sample)
    return ReportImage(uri, clean(caption), image.size)


def _read_image(sample: SampleRef, report: DataReport) -> Tensor | None:
    """Return the image of a sample, or the middle frame of its video."""
    if sample.source is None:
        return None
    source = report.sources[sample.source]
    if sample.index is None:
        return image_file(source, os.fsencode(sample.id)).decode() if isinstance(source, AnnotatedImages) else None
    lazy = lazy_image(source, sample.index)
    if lazy is not None:
        return lazy.decode()
    content = source[sample.index]
    video: Video | None = content.get("video")
    image: Tensor | None = content.get("image") if video is None else video.read([video.frames // 2])[0]
    return image


def _draw_box(image: Tensor, box: tuple[float, float, float, float]) -> Image.Image:
    """Draw a box on an image, which is padded where the box extends beyond it, up to :data:`_MAX_MARGIN`."""
    height, width = image.shape[-2:]
    (left, right), (top, bottom) = sorted(box[0::2]), sorted(box[1::2])
    beyond = [(-left, width), (-top, height), (right - width, width), (bottom - height, height)]
    margins = [round(min(max(pixels, 0), _MAX_MARGIN * side)) for pixels, side in beyond]
    canvas = to_pil(F.pad(image, margins, fill=_PADDING[: image.shape[0]]))
    scale = WIDE / max(canvas.size)
    sides = [max(1, round(side * scale)) for side in canvas.size]
    canvas = canvas.resize((sides[0], sides[1]), reducing_gap=2.0)
    # The line is outside the box, so that a tiny box stays visible; at the edge where the box extends beyond it.
    corners = [(left + margins[0]) * scale, (top + margins[1]) * scale]
    corners += [(right + margins[0]) * scale, (bottom + margins[1]) * scale]
    first = [min(max(value, _LINE), side) - _LINE for value, side in zip(corners[:2], sides, strict=True)]
    last = [max(min(value, side - _LINE), 0) + _LINE for value, side in zip(corners[2:], sides, strict=True)]
    last = [max(start + 2 * _LINE, end) for start, end in zip(first, last, strict=True)]
    ImageDraw.Draw(canvas).rectangle((*first, *last), outline=_BOX_COLOR, width=_LINE)
    return canvas
