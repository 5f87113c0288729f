"""Self-contained pages of samples with their images: a summary, galleries, and a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opabinia.visualization.report.blocks import Section, Table
from opabinia.visualization.report.images import clean
from opabinia.visualization.report.templating import template

MAX_IMAGES, MAX_ROWS = 120, 2000
"""Samples with an image, and in the list of a page; a file has all."""


def render_sample_page(
    title: str, summary: Mapping[str, str], notes: Sequence[str], sections: Sequence[Section], rows: Table
) -> str:
    """Return a page as text.

    Args:
        title: title of the page.
        summary: facts by name.
        notes: warnings.
        sections: galleries.
        rows: the list.
    """
    return template("sample_page.html", "opabinia.inference").render(
        title=clean(title),
        heading=clean(title),
        notes=[clean(note) for note in notes],
        summary=Table("", ("", ""), [(name, clean(value)) for name, value in summary.items()]),
        sections=sections,
        rows=rows,
        number_of_chart=None,
    )
