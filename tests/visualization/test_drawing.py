"""Names of any form in drawings, and texts of many objects."""

import time

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from opabinia.runtime.text import one_line
from opabinia.visualization import drawing
from opabinia.visualization.drawing import (
    ChartPanel,
    DrawnObject,
    add_legend,
    contact_sheet,
    draw_objects,
    line_chart,
    scatter_plot,
    side_by_side,
    stack_vertically,
)

NAMES = ["a\nb", "\n", "x" * 9000, "\udcff\x1b[31m\r\n\t", "", "\u202egnp.\u202c", "a\n" * 500]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_of_any_form_are_drawn_on_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    texts: list[str] = []
    draw_text = ImageDraw.ImageDraw.text

    def record(self: ImageDraw.ImageDraw, xy: tuple[float, float], text: str, *arguments: object, **options: object):  # type: ignore[no-untyped-def]
        texts.append(text)
        return draw_text(self, xy, text, *arguments, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", record)
    start = time.monotonic()
    image = Image.new("RGB", (300, 80))
    points = np.arange(6.0).reshape(3, 2)
    drawn = [
        scatter_plot(points, [0, 0, -1], [name], title=name),
        contact_sheet([image], [[name, name]]),
        add_legend(image, [(name, (1, 2, 3))]),
        side_by_side([image, image], [name, name]),
        stack_vertically([image], [name]),
        draw_objects(torch.zeros(3, 40, 50, dtype=torch.uint8), [DrawnObject(0, name, (1, 2, 30, 30))]),
        line_chart([ChartPanel("y", [[(0, 1), (1, 2)]])], title="t", across="x", end=1),
    ]
    assert texts and all(text.isprintable() for text in texts)
    assert max(result.width for result in drawn) <= 1080 and max(result.height for result in drawn) <= 1080
    assert time.monotonic() - start < 5


def test_a_name_on_one_line() -> None:
    assert [one_line(name, 5) for name in ("12345", "123456", "1\n3", "")] == ["12345", "1234…", "1\\n3", ""]


def labels_of(monkeypatch: pytest.MonkeyPatch, objects: list[DrawnObject], size: int = 100) -> list[str]:
    """Return the texts that are drawn on an image, in pixels as they are."""
    texts: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(ImageDraw.ImageDraw, "text", lambda _, __, text, **___: texts.append(text))
        draw_objects(torch.zeros(3, size, size, dtype=torch.uint8), objects, side=size)
    return texts


def test_texts_of_many_objects_do_not_hide_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first objects, which have the best scores, keep theirs."""
    apart = [DrawnObject(0, f"{number}", (5, 20 * number + 15, 90, 20 * number + 30)) for number in range(4)]
    assert labels_of(monkeypatch, apart) == ["0", "1", "2", "3"]
    same = [DrawnObject(0, f"dog {number}", (10, 40 + number, 60, 80)) for number in range(5)]
    assert labels_of(monkeypatch, same) == ["dog 0"]
    random = np.random.default_rng(0)
    corners = random.uniform(0, 900, (500, 2))
    crowd = [DrawnObject(0, f"person: 0.{n}", (x, y, x + 60, y + 90)) for n, (x, y) in enumerate(corners)]
    texts = labels_of(monkeypatch, crowd, 1000)
    assert texts[0] == "person: 0.0" and 10 < len(texts) < 250
    whole = draw_objects(torch.zeros(3, 1000, 1000, dtype=torch.uint8), crowd)
    assert (np.array(whole) == 0).all(2).mean() > 0.5, "most of the image is visible"
    assert drawing.COLORS[0] in {color for _, color in whole.getcolors(1 << 20) or ()}
