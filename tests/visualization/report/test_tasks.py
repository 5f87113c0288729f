"""Images and page of each task, from runs of a few steps on the embedded data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opabinia.inference.load import RunModel
from opabinia.inference.report_images import write_images
from opabinia.training import launch
from opabinia.visualization.report import write_report

SHORT = ["train.length=2it", "data.num_workers=0", "data.batch_size=32", "loggers=[]", "schedule.warmup=1it"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "overrides", "titles"),
    [
        ("detection/digits", ["data.batch_size=4"], {"Ground truth and predictions"}),
        ("reid/digits", [], {"Queries, from the worst to the best", "The worst queries", "Nearest neighbors"}),
        ("selfsup/digits_simsiam", [], {"Map of embeddings", "Nearest neighbors"}),
        ("video/digits", [], {"Ground truth and predictions"}),
    ],
)
def test_images_of_each_task(recipe: str, overrides: list[str], titles: set[str], tmp_path: Path) -> None:
    run, _ = launch.train(recipe, [*SHORT, *overrides], out=tmp_path)
    write_images(RunModel(run))
    index = json.loads((run / "pictures" / "index.json").read_text())
    assert not index["missing"]
    assert {group["title"] for group in index["groups"]} == {"Some of the training data", *titles} | (
        {"Map of embeddings"} if "Nearest neighbors" in titles else set()
    )
    page = write_report([run]).read_text()
    assert ("class=drawn" in page) == ("Map of embeddings" in page), "embedding maps are drawn on white"
    assert all(title in page for title in titles)
    assert len(page) < 10_000_000


@pytest.mark.slow
def test_several_views_and_batches_over_time(tmp_path: Path) -> None:
    source = "{name: video_views, source: {name: moving_digits, split: val}, clips: 2, crops: 1}"
    transforms = "[{name: clip, frames: 4, stride: 1, position: middle}]"
    shapes = "{name: multigrid, frames: 4, size: 32, milestones: [2], drop_empty: true}"
    overrides = [f"data.val={{source: {source}, transforms: {transforms}}}", f"shapes={shapes}", "evaluate.every=9ep"]
    overrides += ["train.length=3ep", "data.sampler={name: subset, num_samples: 256}", *SHORT[1:], "data.batch_size=16"]
    run, _ = launch.train("video/digits", overrides, out=tmp_path)
    write_images(RunModel(run))
    index = json.loads((run / "pictures" / "index.json").read_text())
    assert not index["missing"]
    texts = [image["text"] for group in index["groups"] for row in group["rows"] for image in row["pictures"]]
    assert [text for text in texts if "clip 1 of 2" in text and "clip 2 of 2" in text]
    assert [chart["title"] for chart in index["batches"]["charts"]][:2] == ["frames", "size in pixels"]
    assert "times fewer steps" in index["batches"]["note"]
    assert "batch size" in write_report([run]).read_text()
