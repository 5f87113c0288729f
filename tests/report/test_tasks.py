"""Pictures and a page of each task, from runs of a few steps on the embedded data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opabinia import launch
from opabinia.evidence import gather
from opabinia.report import write_report

SHORT = ["train.length=2it", "data.workers=0", "data.batch_size=32", "writers=[]", "schedule.warmup=1it"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "overrides", "titles"),
    [
        ("detection/digits", ["data.batch_size=4"], {"What is there, and what was found"}),
        ("reid/digits", [], {"The worst queries, and what is nearest to them", "Nearest neighbours"}),
        ("selfsup/digits_simsiam", [], {"Map of embeddings", "Nearest neighbours"}),
        ("video/digits", [], {"Films as the model sees them"}),
    ],
)
def test_pictures_of_each_task(recipe: str, overrides: list[str], titles: set[str], tmp_path: Path) -> None:
    run, _ = launch.train(recipe, [*SHORT, *overrides], out=tmp_path)
    gather(run)
    index = json.loads((run / "pictures" / "index.json").read_text())
    assert not index["missing"]
    assert {group["title"] for group in index["groups"]} == {"Some of the training data", *titles} | (
        {"Map of embeddings"} if "Nearest neighbours" in titles else set()
    )
    page = write_report([run]).read_text()
    assert all(title in page for title in titles)
    assert len(page) < 10_000_000
