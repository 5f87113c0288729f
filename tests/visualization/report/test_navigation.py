"""The navigation of the page."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from opabinia.visualization.report.page import page_of

Make = Callable[..., Path]


@pytest.mark.parametrize("names", [["one"], ["one", "two"]])
def test_every_section_is_listed(make: Make, names: list[str]) -> None:
    state = {"format": 1, "total_steps": 20, "dataset_info": {"samples": 80, "classes": ["cat", "dog"]}}
    page = page_of([make(name, state=state) for name in names])
    (navigation,) = re.findall("<nav.*?</nav>", page, re.S)
    links = re.findall(r'<a [^>]*href="#([^"]+)">', navigation)
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(links) == len(set(links)) and set(links) <= set(ids), "every link has a target"
    # The nearest id before or in a heading belongs to it.
    for match in re.finditer(r"<h[23][^>]*>(.*?)</h[23]>", page):
        id_ = re.findall(r' id="([^"]+)"', page[: match.end()])[-1]
        assert id_ in links, match[1]
    texts = re.sub("<[^>]*>", "", navigation)
    for text in ("Scores", "Curves", "Evaluation on val", "Warnings", "Environment", "Config"):
        assert text in texts


def test_the_best_checkpoint_is_named(make: Make) -> None:
    folder = make()
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / "best").write_text("step-00000010\n")
    for name, step in (("val", 10), ("test", 20)):
        (folder / "eval" / name).mkdir(parents=True, exist_ok=True)
        scores = {"checkpoint": f"step-{step:08d}", f"{name}/top1": 0.5}
        (folder / "eval" / name / "scores.json").write_text(json.dumps(scores))
    headings = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', page_of([folder]))
    assert headings[:4] == ["score", "after the last step", "step 20", "best (step 10)"]
