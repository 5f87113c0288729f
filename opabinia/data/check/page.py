"""HTML page of a data report: statistics of the datasets, and the images of the findings, in one file."""

from __future__ import annotations

import os
from pathlib import Path

from PIL import Image, ImageDraw
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from opabinia.contracts import DrawOptions, Video, label_names
from opabinia.data.check.checks import DataReport
from opabinia.data.check.datasets import annotated_images
from opabinia.data.check.findings import Finding, SampleRef
from opabinia.data.check.scan import image_file, lazy_image
from opabinia.data.check.terminal import class_rows, summary_rows
from opabinia.data.sources.annotation_errors import Box
from opabinia.data.sources.named import NamedFiles
from opabinia.runtime.files import write_atomic
from opabinia.visualization.bands import select_bands
from opabinia.visualization.drawing import to_pil
from opabinia.visualization.presenters.by_keys import draw_sample
from opabinia.visualization.report.blocks import Block, Gallery, ImageRow, ReportImage, Section, Table
from opabinia.visualization.report.images import ByteBudget, clean, encode_image
from opabinia.visualization.report.templating import template

MAX_CASES, MAX_SAMPLES = 24, 6
"""Cases of a finding that are shown with images, and samples of a case."""

MAX_LINES = 200
"""Cases of a finding that are listed."""

MAX_ROWS = 2000
"""Classes or identities in a table; JSON has all."""

SMALL, WIDE, STRIP = 192, 480, 1120
"""Pixels of the longer side of an image, of one with boxes, and of frames of a video."""

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
    write_atomic(out, content)


def render_page(report: DataReport, title: str) -> str:
    """Return the page as text."""
    budget = ByteBudget()
    rows = [(finding.title, clean(", ".join(finding.datasets)), finding.count) for finding in report.findings]
    return template("page.html", "opabinia.data.check").render(
        title=f"Data of {clean(title)}",
        heading=f"Data of {clean(title)}",
        stopped=report.stopped,
        error_count=report.error_count,
        summary=Table("", ("finding", "dataset", "count"), rows),
        findings=[Section(finding.title, _finding_blocks(finding, report, budget)) for finding in report.findings],
        datasets=[Section(clean(name), _dataset_blocks(name, report, budget)) for name in report.datasets],
        number_of_chart=None,
    )


# --- datasets ---------------------------------------------------------------------------------------------------------


def _dataset_blocks(name: str, report: DataReport, budget: ByteBudget) -> list[Block]:
    dataset = report.datasets[name]
    noun = "videos" if dataset.is_video else "images"
    rows = [(label, str(value)) for label, value in summary_rows(dataset).items()]
    blocks = [Table("Summary", ("statistic", "value"), rows)]

    def add(title: str, label: str, counts: dict[str, int], counted: str = noun) -> None:
        total = sum(counts.values())
        shares = [(clean(key), count, count / max(1, total)) for key, count in counts.items()]
        columns = (label, counted, f"share of {total:,} {counted}")
        blocks.append(Table(title, columns, shares[:MAX_ROWS], frozenset({2}), _first_of(MAX_ROWS, len(shares))))

    if dataset.per_class:
        columns, classes = class_rows(dataset)
        note = _first_of(MAX_ROWS, len(classes))
        cells = [(clean(label), *counts) for label, *counts in classes[:MAX_ROWS]]
        blocks.append(Table("Identities" if dataset.identities else "Classes", columns, cells, frozenset({2, 4}), note))
    if dataset.sizes is not None:
        add("Shorter side in pixels", "pixels", dataset.sizes.sides)
        add("Aspect ratio (width to height)", "ratio", dataset.sizes.aspects)
    if dataset.boxes is not None:
        add("Objects by square root of their area in pixels", "pixels", dataset.boxes.sides, "objects")
    if dataset.identities is not None:
        add("Images per camera", "camera", dataset.identities.per_camera)
        add("Images per view", "view", dataset.identities.per_view)
    return [*_example_blocks(name, report, budget), *(block for block in blocks if block.rows)]


def _example_blocks(name: str, report: DataReport, budget: ByteBudget) -> list[Block]:
    """Return a gallery of samples with their ground truth, as far as they can be read and the budget allows."""
    images = [_render_example(sample, report, budget) for sample in report.examples[name]]
    shown = [image for image in images if image is not None]
    note = f"{len(shown)} of {report.datasets[name].samples:,}, drawn with a fixed seed"
    note += "; one of each class in turn" if any(sample.value for sample in report.examples[name]) else ""
    return [Gallery("Samples with their ground truth", note, [ImageRow("", shown)])] if shown else []


def _render_example(sample: SampleRef, report: DataReport, budget: ByteBudget) -> ReportImage | None:
    """Return a sample with its ground truth; None if it cannot be read or exceeds the budget."""
    assert sample.source is not None and sample.index is not None
    source = report.sources[sample.source]
    try:
        content = source[sample.index]
        image = draw_sample(content, source.info, DrawOptions(side=WIDE, text=16))
    except (ValueError, OSError):
        return None
    side = STRIP if "video" in content else WIDE if {"ground_truth", "ground_truth_map"} & content.keys() else SMALL
    image.thumbnail((side, side), reducing_gap=2.0)
    return encode_image(
        image, ": ".join(filter(None, (sample.id, ", ".join(label_names(content, source.classes))))), budget
    )


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
        note = _first_of(len(rows), finding.count)
        if all(len(case) == 1 for case in finding.cases):
            rows = [ImageRow("", [image for row in rows for image in row.images])]
        blocks.append(Gallery("", note, rows))
    if incomplete:
        lines = [
            (clean(", ".join(dict.fromkeys(sample.dataset for sample in case))), clean(" = ".join(map(str, case))))
            for case in finding.cases[:MAX_LINES]
        ]
        blocks.append(Table("", ("dataset", "sample"), lines, note=_first_of(len(lines), finding.count)))
    return blocks


def _first_of(shown: int, total: int) -> str:
    return f"the first {shown:,} of {total:,}" if shown < total else ""


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
    return encode_image(image, f"{sample.dataset}: {sample}" if len(finding.datasets) > 1 else str(sample), budget)


def _read_image(sample: SampleRef, report: DataReport) -> Tensor | None:
    """Return the image of a sample, or the middle frame of its video."""
    if sample.source is None:
        return None
    source = report.sources[sample.source]
    if sample.index is None:
        owner = annotated_images(source) or source
        return image_file(owner, os.fsencode(sample.id)).decode() if isinstance(owner, NamedFiles) else None
    lazy = lazy_image(source, sample.index)
    if lazy is not None:
        return lazy.decode()
    content = source[sample.index]
    video: Video | None = content.get("video")
    image: Tensor | None = content.get("image") if video is None else video.read([video.frames // 2])[0]
    return image


def _draw_box(image: Tensor, box: Box) -> Image.Image:
    """Draw a box on an image, which is padded where the box extends beyond it, up to :data:`_MAX_MARGIN`."""
    height, width = image.shape[-2:]
    (left, right), (top, bottom) = sorted(box[0::2]), sorted(box[1::2])
    beyond = [(-left, width), (-top, height), (right - width, width), (bottom - height, height)]
    margins = [round(min(max(pixels, 0), _MAX_MARGIN * side)) for pixels, side in beyond]
    image = image if image.shape[0] in (1, 3) else select_bands(image)
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
