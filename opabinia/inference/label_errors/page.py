"""HTML page of suspicious labels: images with annotation, prediction and reason, in one self-contained file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PIL import Image
from torch import Tensor

from opabinia.contracts import Sample
from opabinia.evaluation.label_errors.suspects import Suspect
from opabinia.inference.label_errors.collect import CollectedRun, find_samples
from opabinia.inference.sample_page import MAX_IMAGES, MAX_ROWS, render_sample_page
from opabinia.visualization.drawing import DrawnObject, draw_around, to_pil
from opabinia.visualization.report.blocks import Gallery, ImageRow, ReportImage, Section, Table
from opabinia.visualization.report.images import ByteBudget, clean, encode_image
from opabinia.visualization.video_strips import representative_image

SMALL, CROP = 160, 260
"""Longer side in pixels of the image of a sample, and of the surroundings of a box."""

_MARGIN = 0.6
"""Width of the surroundings on each side of a box, relative to its longer side."""

Located = tuple[Suspect, CollectedRun]
"""A suspect, and the run whose dataset has its sample."""


def render_page(suspects: Sequence[Located], summary: Mapping[str, str], notes: Sequence[str], title: str) -> str:
    """Return the page as text. Images are read again, within the page's byte budget.

    Args:
        suspects: from the most suspicious to the least.
        summary: facts by name.
        notes: warnings.
        title: title of the page.
    """
    shown = suspects[:MAX_IMAGES]
    images, budget = _images(shown), ByteBudget()
    galleries: dict[str, list[ReportImage]] = {}
    for number, ((suspect, _), image) in enumerate(zip(shown, images, strict=True), 1):
        caption = f"{number}. {suspect.id}: {describe(suspect)}"
        encoded = None if image is None else encode_image(image, caption, budget)
        if encoded is not None:
            galleries.setdefault(suspect.issue, []).append(encoded)
    counts = {issue: sum(suspect.issue == issue for suspect, _ in suspects) for issue in galleries}
    sections = [
        Section(f"Issue: {issue}", [Gallery("", _first_of(len(row), counts[issue]), [ImageRow("", row)])])
        for issue, row in galleries.items()
    ]
    columns = ("", "sample", "issue", "label", "predicted", "suspicion", "reason")
    rows = []
    for number, (suspect, _) in enumerate(suspects[:MAX_ROWS], 1):
        names = map(clean, (suspect.id, suspect.issue, suspect.label, suspect.predicted))
        rows.append((number, *names, suspect.score, clean(suspect.reason)))
    table = Table("", columns, rows, frozenset({5}), _first_of(len(rows), len(suspects)), max_rows=25)
    return render_sample_page(title, summary, notes, sections, table)


def describe(suspect: Suspect) -> str:
    """Return annotation, prediction and reason in one line."""
    annotated = f"label {suspect.label}" if suspect.label else "not annotated"
    predicted = f"predicted {suspect.predicted}" if suspect.predicted else "nothing predicted"
    return f"{annotated}, {predicted}; suspicion {suspect.score:.2f}: {suspect.reason}"


def _first_of(shown: int, total: int) -> str:
    return f"{shown:,} of {total:,}, the most suspicious first" if shown < total else ""


def _images(suspects: Sequence[Located]) -> list[Image.Image | None]:
    """Return the image of each suspect; None if it can no longer be read."""
    indices = find_samples((suspect.id, run) for suspect, run in suspects)
    images: list[Image.Image | None] = []
    for suspect, run in suspects:
        try:
            images.append(_draw(suspect, run.source[indices[suspect.id]]))
        except (OSError, ValueError, KeyError):
            images.append(None)
    return images


def _draw(suspect: Suspect, sample: Sample) -> Image.Image:
    """Draw a sample: the whole image, or the surroundings of the boxes, annotated in blue, predicted in orange."""
    pixels = representative_image(sample)
    if suspect.place is not None:
        return _draw_boxes(pixels, suspect)
    image = to_pil(pixels)
    image.thumbnail((SMALL, SMALL), reducing_gap=2.0)
    return image


def _draw_boxes(pixels: Tensor, suspect: Suspect) -> Image.Image:
    pairs = (suspect.box, f"label {suspect.label}"), (suspect.predicted_box, f"predicted {suspect.predicted}")
    objects = [DrawnObject(number, name, box) for number, (box, name) in enumerate(pairs) if box]
    boxes = [item.box for item in objects]
    return draw_around(pixels, objects, boxes, side=CROP, margin=_MARGIN, min_margin=8, text=13)
