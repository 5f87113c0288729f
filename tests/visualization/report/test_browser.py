"""The page in a real browser: no script errors, no requests; it fits a phone, and keys and controls work."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from opabinia.visualization.report import write_report

pytestmark = pytest.mark.slow

Make = Callable[..., Path]
Open = Callable[..., Any]

SIZES = {"wide": (1400, 900), "phone": (390, 844)}


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open a page; at the end of the test, fail on script errors, console messages and network requests."""
    problems: list[str] = []
    contexts = []

    def open_(path: Path, size: str = "wide", scheme: str = "light") -> Any:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or problems.append(request.url))
        page.goto(path.absolute().as_uri())
        page.wait_for_selector(".plot svg")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture
def two_runs(make: Make) -> Path:
    nasty = "<img src=x onerror=alert(1)>\"'"
    scores = {f"val/{nasty}": 0.5, f"val/{'y' * 5000}": 0.5}
    rows = [{"step": n, "epoch": n / 100, "samples": 4 * n, "train/loss": 1 / n, **scores, "lr": n / 1e5}
            for n in range(1, 10_001)]  # fmt: skip
    return write_report([make("long", rows=rows), make(nasty.replace("/", "_"))], make("else") / "report.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_the_page_fits_and_follows_the_color_scheme(open_page: Open, two_runs: Path, size: str, scheme: str) -> None:
    page = open_page(two_runs, size, scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    bright = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert bright == (scheme == "light")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") != scheme


def chart(page: Any, title: str) -> Any:
    """Return the chart with this title; it is drawn when it comes into view."""
    figure = page.locator(".chart", has=page.locator(f"figcaption:text-is('{title}')")).first
    figure.scroll_into_view_if_needed()
    figure.locator("svg[tabindex]").wait_for()
    return figure


def test_controls_change_the_curves(open_page: Open, two_runs: Path) -> None:
    page = open_page(two_runs)
    loss = chart(page, "loss")
    lines = loss.locator("path:not(.raw)")
    assert lines.count() == 2
    before = lines.first.get_attribute("d")
    page.select_option("#axis", "samples")
    page.wait_for_function("before => document.querySelector('#curves').innerHTML.includes('40k')", arg=before)
    page.fill("#smooth", "0.9")
    loss.locator("path.raw").first.wait_for(state="attached")
    page.check("#log")
    page.wait_for_timeout(100)
    assert lines.first.get_attribute("d") != before
    page.locator("#legend button").first.click()
    page.wait_for_timeout(100)
    assert lines.count() == 1


def test_keys_and_dragging_move_and_zoom(open_page: Open, two_runs: Path) -> None:
    page = open_page(two_runs)
    learning_rate = chart(page, "learning rate")
    learning_rate.locator("svg[tabindex]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "step" in learning_rate.locator(".readout").inner_text()
    whole = learning_rate.locator("path").first.get_attribute("d")
    page.keyboard.press("+")
    page.wait_for_timeout(100)
    assert learning_rate.locator("path").first.get_attribute("d") != whole
    page.keyboard.press("0")
    page.wait_for_timeout(100)
    assert learning_rate.locator("path").first.get_attribute("d") == whole
    assert page.evaluate("document.activeElement.tagName") == "svg"
    box = learning_rate.locator("svg[tabindex]").bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 80, steps=4)
    page.mouse.up()
    page.wait_for_timeout(100)
    assert learning_rate.locator("path").first.get_attribute("d") != whole
    learning_rate.locator("svg[tabindex]").dblclick()
    page.wait_for_timeout(100)
    assert learning_rate.locator("path").first.get_attribute("d") == whole


def test_the_table_of_a_chart_and_the_filter_of_config_keys(open_page: Open, make: Make) -> None:
    page = open_page(write_report([make()]))
    top1 = chart(page, "top1")
    top1.locator("summary").click()
    top1.locator("tbody tr").first.wait_for()
    rows = [row.locator("td, th").all_inner_texts() for row in top1.locator("tbody tr").all()]
    assert rows == [["train", "10", "0.5"], ["train", "20", "1"], ["val", "20", "0.75"]]
    page.locator(".config > summary").click()
    page.fill(".filter input", "LR")
    page.locator(".config tbody tr:visible").first.wait_for()
    assert page.locator(".config tbody tr:visible").all_inner_texts() == ["optimizer.lr\t0.01"]


def test_an_image_is_enlarged_and_closed_by_keys(open_page: Open, make: Make) -> None:
    run = make()
    (run / "pictures").mkdir()
    Image.new("RGB", (40, 20), (200, 10, 10)).save(run / "pictures" / "0.webp", "WEBP")
    pictures = [{"file": "0.webp", "text": "<b>a</b>", "verdict": "wrong"}]
    (run / "pictures" / "index.json").write_text(json.dumps({"groups": [{"rows": [{"pictures": pictures}]}]}))
    page = open_page(write_report([run]), "phone")
    page.locator(".enlarge").focus()
    page.keyboard.press("Enter")
    page.locator("dialog[open] p:text-is('<b>a</b>')").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")
    assert page.evaluate("document.activeElement.className") == "enlarge"


def test_ten_thousand_steps_are_redrawn_within_a_second(open_page: Open, make: Make) -> None:
    names = [f"train/part{number}_loss" for number in range(10)]
    rows = [
        {"step": n, "epoch": n / 100, "samples": 4 * n, **{name: math.sin(n / 99) / n for name in names}}
        for n in range(1, 10_001)
    ]
    page = open_page(write_report([make("long", rows=rows)]))
    redrawn = """() => new Promise((done) => {
        const began = performance.now();
        const box = document.querySelector("#smooth");
        box.value = 0.9;
        box.dispatchEvent(new Event("input"));
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
    })"""
    page.wait_for_timeout(300)
    assert min(page.evaluate(redrawn) for _ in range(3)) < 1000
