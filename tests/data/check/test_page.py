"""The HTML page and the terminal report of the data check."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from opabinia.contracts import DrawOptions, label_names
from opabinia.data.check import DataReport, run_checks
from opabinia.data.check.checks import EXAMPLES
from opabinia.data.check.page import render_page, write_page
from opabinia.data.check.terminal import class_rows, print_report
from opabinia.data.sources import ImageFolder, Videos, coco
from opabinia.visualization.drawing import draw_objects
from opabinia.visualization.presenters.by_keys import draw_sample
from opabinia.visualization.presenters.detections import annotated_objects
from scripts import small_data
from tests.data.check.images import save
from tests.data.videos import write

UNUSUAL_NAME = "a \"quoted\" 'name' <b>bold<b> <script>alert(1) [red]ünï\x1b[2J.png"


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.values: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.values += [(tag, name, value) for name, value in attrs]


def elements(page: str) -> _Elements:
    parser = _Elements()
    parser.feed(page)
    return parser


def printed(report: DataReport) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    print_report(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def report_of_unusual_names(tmp_path: Path) -> DataReport:
    """Duplicate training images with unusual names, a copy in validation, and a text file."""
    save(tmp_path / "train" / "<i>a<i>" / UNUSUAL_NAME, 1)
    save(tmp_path / "train" / "<i>a<i>" / "two words.png", 1)
    save(tmp_path / "train" / "b" / "text.png", 2).write_text("no image")
    save(tmp_path / "val" / "b" / "1.png", 1)
    return run_checks({name: ImageFolder(root=tmp_path / name) for name in ("train", "val")})


def test_the_page_is_self_contained_and_escapes_names(report_of_unusual_names: DataReport, tmp_path: Path) -> None:
    text = printed(report_of_unusual_names)
    assert "\x1b" not in text and r"[red]ünï\x1b[2J.png" in text
    assert "error: in training and validation: identical file" in text
    assert "\n  b/text.png: " in text and " = val: b/1.png: b" in text, "the dataset is named where there are several"
    write_page(report_of_unusual_names, tmp_path / "new" / "page.html", "a <recipe>")
    page = (tmp_path / "new" / "page.html").read_text()
    parsed = elements(page)
    assert not {"b", "i", "iframe", "link", "object"} & set(parsed.names) and parsed.names.count("script") == 1
    loaded = [value for _, name, value in parsed.values if name in ("src", "href", "action", "data")]
    assert loaded and all(url is not None and url.startswith(("data:image/webp;base64,", "#")) for url in loaded)
    assert "<title>Data of a &lt;recipe&gt;</title>" in page and "Content-Security-Policy" in page
    texts = [value or "" for tag, name, value in parsed.values if (tag, name) == ("img", "alt")]
    assert [text for text in texts if text == f"train: <i>a<i>/{UNUSUAL_NAME}: <i>a<i>"] and "val: b/1.png: b" in texts
    assert "1 error." not in page and "2 errors." in page
    assert "images that cannot be read" in page and "text.png cannot be decoded" in page
    for path in tmp_path.rglob("*.png"):
        path.unlink()
    page = render_page(report_of_unusual_names, "gone")
    assert "<figure" not in page and "two words.png" in page, "deleted images are listed"


def test_boxes_outside_the_image_are_drawn(tmp_path: Path) -> None:
    small_data.coco(tmp_path)
    content = json.loads((tmp_path / "annotations.json").read_text())
    content["annotations"][0]["bbox"] = [40, 10, 1e6, 5]
    content["annotations"][1]["bbox"] = [3, 3, 0, -7]
    content["annotations"][2]["bbox"] = [20, 20, 1, 9]
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    report = run_checks({"train": coco(root=tmp_path, file=tmp_path / "annotations.json", broken="drop")})
    page = render_page(report, "objects")
    for kind in (
        "boxes that extend beyond the image",
        "boxes without area",
        "boxes with a side of less than 2 pixels",
    ):
        assert f"{kind}</h3>" in page
    sizes = re.findall(r'width="(\d+)" height="(\d+)" loading', page)
    assert ("480", "288") in sizes, "a quarter of the width is added to the right"


def test_videos_show_their_middle_frame_and_samples_are_strips(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a" / "1.mp4", 9, size=(64, 96))
    shutil.copytree(tmp_path / "train", tmp_path / "val")  # one in a thousand encodings of the same frames differs
    report = run_checks({name: Videos(root=tmp_path / name) for name in ("train", "val")})
    page = render_page(report, "videos")
    data = re.findall(r'src="(data:[^"]*)"', page)
    assert len(data) == 4 and data[0] == data[1] and data[2] == data[3]
    sizes = [(int(width), int(height)) for width, height in re.findall(r'width="(\d+)" height="(\d+)" loading', page)]
    assert sizes[0] == (96, 64) and sizes[2][0] == 1120, "a single frame, and a strip of eight"


def test_many_findings_are_bounded(tmp_path: Path) -> None:
    for number in range(60):
        save(tmp_path / "a" / f"{number}.png", number // 2, size=(40, 30))
    report = run_checks({"train": ImageFolder(root=tmp_path)})
    page = render_page(report, "many")
    assert page.count("<figure") == 48 + EXAMPLES and "the first 24 of 30" in page and "58.png: a = a/59.png: a" in page


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    for name in (b"\xff1.png", b"\xff2.png"):
        path = tmp_path / "a" / "x.png"
        save(path, 1)
        path.rename(Path(str(tmp_path / "a") + "/" + name.decode("utf-8", "surrogateescape")))
    (tmp_path / "a" / b"\xff3.png".decode("utf-8", "surrogateescape")).write_bytes(b"no image")
    report = run_checks({"train": ImageFolder(root=tmp_path)})
    write_page(report, tmp_path / "page.html", "names")
    assert r"\xff1.png" in (tmp_path / "page.html").read_text() and json.dumps(report.to_json())
    print_report(report, Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8")))


def test_shares_name_their_denominator(tmp_path: Path) -> None:
    """Two of four images hold a bar: half of the images, whatever number of objects they hold."""
    small_data.coco(tmp_path)
    report = run_checks({"train": coco(root=tmp_path, file=tmp_path / "annotations.json")})
    columns, rows = class_rows(report.datasets["train"])
    assert columns == ["class", "images", "share of 4 images", "objects", "share of 5 objects"]
    assert rows == [("block", 3, 0.75, 3, 0.6), ("bar", 2, 0.5, 2, 0.4)]
    page = render_page(report, "objects")
    assert all(f">{column}</th>" in page for column in columns)
    text = printed(report)
    assert "share of 4 images" in text and re.search(r"bar +│ 2 +│ 0.500 +│ 2 +│ 0.400", text)


def test_samples_are_drawn_with_their_boxes_and_masks(tmp_path: Path) -> None:
    small_data.coco(tmp_path)
    source = coco(root=tmp_path, file=tmp_path / "annotations.json")
    report = run_checks({"train": source})
    page = render_page(report, "objects")
    assert "Samples with their ground truth</h4>" in page and page == render_page(report, "objects")
    assert [sample.id for sample in report.examples["train"]] == [source.id(index) for index in range(4)]
    sample = next(sample for sample in map(source.__getitem__, range(4)) if len(sample["ground_truth"].labels))
    annotated = annotated_objects(sample["ground_truth"], source.classes)
    drawn = draw_sample(sample, source.info, DrawOptions())
    assert annotated and drawn.tobytes() == draw_objects(sample["image"], annotated).tobytes()


def test_labels_of_samples() -> None:
    samples: list[Any] = [{"label": 1}, {}, {"label": torch.tensor([1.0, 0, 1])}, {"label": torch.zeros(3)}]
    names = [label_names(sample, ["cat", "dog", "cow"]) for sample in samples]
    assert names == [["dog"], [], ["cat", "cow"], ["no class"]]


def test_samples_are_of_all_classes(tmp_path: Path) -> None:
    for number in range(40):
        save(tmp_path / ("rare" if number in (3, 17) else "a" if number % 2 else "b") / f"{number}.png", number, (9, 9))
    examples = run_checks({"train": ImageFolder(root=tmp_path)}).examples["train"]
    assert Counter(sample.value for sample in examples) == {"a": 5, "b": 5, "rare": 2}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(
    report_of_unusual_names: DataReport, browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    write_page(report_of_unusual_names, tmp_path / "page.html", "a <recipe>")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or problems.append(request.url))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.locator(".enlarge").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog[open] p").text_content() == page.locator("dialog[open] img").get_attribute("alt")
    page.keyboard.press("Escape")
    page.close()
    assert problems == []
