"""``track`` and ``eval --tracker`` with a multi-task run as detector and for re-identification."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opabinia.inference.serving import server
from opabinia.training.launch import train
from tests.cli.conftest import CommandResult
from tests.inference.tracking.squares import VIDEOS, write_videos

Opabinia = Callable[..., CommandResult]

RECIPE = """
task:
  name: multitask
  backbone: {{name: timm, model: test_efficientnet}}
  tasks:
    identities:
      task: reid
      batch_share: 0.5
      data:
        train: {{source: {crops}, transforms: [{{name: Resize, size: [32, 32]}}]}}
        val: {{source: {test_crops}, transforms: [{{name: Resize, size: [32, 32]}}]}}
        sampler: {{name: identities, instances: 2}}
    boxes:
      task: {{name: detection, detector: {{name: fcos, num_convs: 1, neck: {{name: fpn, channels: 32}}}}}}
      data: {{train: {{source: {frames}}}, val: {{source: {frames}}}}}
data: {{batch_size: 8, num_workers: 0}}
optimizer: sgd
train: {{length: 1it, num_threads: 1, device: cpu}}
evaluate: {{every: 100it}}
loggers: []
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step; the re-identification is its first task."""
    folder = tmp_path_factory.mktemp("multitask")
    frames = write_videos(folder / "videos")
    crops = {"name": "track_crops", "source": frames, "min_size": 4, "min_gap": 1}
    sections = {"frames": frames, "crops": crops, "test_crops": {**crops, "split": "test"}}
    text = RECIPE.format(**{name: json.dumps(section) for name, section in sections.items()})
    (folder / "recipe.yaml").write_text(text)
    return train(str(folder / "recipe.yaml"), out=folder / "runs")[0]


def test_one_run_detects_and_embeds(opabinia: Opabinia, run: Path, tmp_path: Path) -> None:
    words = ["track", run, run.parents[2] / "videos" / "passing", "--reid", run, "--no-video", "--out", tmp_path]
    result = opabinia(*words, "tracker.min_hits=1", "--score", 0)
    assert result.status == 0, result.err
    assert "re-ID" in result.out and len((tmp_path / "tracks.jsonl").read_text().splitlines()) == len(
        VIDEOS["passing"][0]
    )
    result = opabinia(*words, "--task", "identities")
    assert result.status == 2 and "a detector, with boxes, is needed" in result.err
    result = opabinia(*words, "--reid-task", "identitis")
    assert result.status == 2 and "--reid-task: there is no task 'identitis'; did you mean 'identities'?" in result.err


def test_sets_of_the_detector_are_evaluated(opabinia: Opabinia, run: Path) -> None:
    words = ["eval", run, "--tracker", "botsort", "--reid", run, "--json", "-q"]
    result = opabinia(*words)
    assert result.status == 0, result.err
    scores = json.loads(result.out)["scores"]
    assert list(scores) == ["boxes/val_tracking"]
    assert list(scores["boxes/val_tracking"]) == ["ground-truth boxes", "motion only", "with re-ID"]
    kept = len(list((run / "tracking").glob("embeddings-*")))
    assert opabinia(*words, "--reid-task", "boxes").status == 0  # the features that the detector reads
    assert len(list((run / "tracking").glob("embeddings-*"))) == kept + 1
    assert opabinia("report", run, "--no-images").status == 0
    assert "ground-truth boxes" in (run / "report.html").read_text()
    result = opabinia("eval", run, "--tracker", "sort", "--split", "identities/val")
    assert result.status == 2 and "TrackCrops has no videos with tracks" in result.err


def test_streams_of_a_server(opabinia: Opabinia, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: dict[str, Any] = {}
    monkeypatch.setattr(server, "serve", lambda *arguments, **options: served.update(options))
    assert opabinia("serve", run, "--tracker", "botsort", "--reid", run, "--port", 0).status == 0
    assert served["task"] == ["boxes"] and served["streams"].embedder.task == "identities"
    assert opabinia("serve", run, "--task", "boxes,identities", "--port", 0).status == 0
    assert served["task"] == ["boxes", "identities"]
    result = opabinia("serve", run, "--tracker", "botsort", "--task", "boxs", "--port", 0)
    assert result.status == 2 and "--task: there is no task 'boxs'; did you mean 'boxes'?" in result.err


def test_a_sweep_varies_the_tracker(opabinia: Opabinia, run: Path) -> None:
    result = opabinia("sweep", run, "tracker.min_hits=1,2", "--reid", run)
    assert result.status == 0, result.err
    assert "botsort with re-ID" in result.out


@pytest.mark.parametrize("command", ["eval", "serve", "sweep", "track"])
def test_a_task_needs_a_run(opabinia: Opabinia, run: Path, command: str) -> None:
    words: dict[str, list[object]] = {"sweep": ["tracker.min_hits=1,2"], "track": [run.parents[2] / "videos"]}
    result = opabinia(command, run, *words.get(command, []), "--reid-task", "identities")
    assert result.status == 2 and "--reid-task: is a task of --reid RUN: add it" in result.err
