"""Evaluation of trackers on the validation data of a run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from opabinia.config import ConfigError
from opabinia.contracts import DataMismatch
from opabinia.inference.load import RunModel
from opabinia.inference.tracking import evaluation
from opabinia.inference.tracking.evaluation import ANNOTATED, APPEARANCE, MOTION, TrackedSet, evaluate_tracker, sweep
from opabinia.inference.tracking.kept import CAMERA, DETECTIONS, EMBEDDINGS, KeptVideos
from opabinia.training.tracking import Tracking, resolve_tracking
from tests.inference.tracking.squares import VIDEOS, Seeing, SquareVideos, write_videos

RUNS = Path(__file__).parents[2] / "compat" / "v0.1"
BOTSORT = ["tracker.min_appearance_iou=0", "tracker.min_hits=1"]


def botsort(*options: str) -> Tracking:
    return resolve_tracking({"tracker": "botsort"}, [*BOTSORT, *options])


def tracked_set(folder: Path, videos: dict[str, Any] | None = None) -> TrackedSet:
    names = {kind: f"{kind}-1" for kind in (DETECTIONS, EMBEDDINGS, CAMERA)}
    kept = KeptVideos(folder / "tracking", SquareVideos(VIDEOS if videos is None else videos), Seeing(), names)
    return TrackedSet("val_tracking", {"data": "squares", "overrides": []}, 7, kept)


def test_the_three_rows(tmp_path: Path) -> None:
    """Motion takes squares that go back for each other; appearance does not."""
    tracked = tracked_set(tmp_path)
    cases = tracked.cases(botsort())
    results = tracked.evaluate(cases)
    assert list(results.scores) == [ANNOTATED, MOTION, APPEARANCE]
    assert results.scores[MOTION]["IDSW"] == 2 and results.scores[MOTION]["DetA"] == 1
    assert results.scores[ANNOTATED]["AssA"] == results.scores[APPEARANCE]["AssA"] == 1
    assert [row["sequence"] for row in results.tables[MOTION]["per_sequence"]] == ["crossing", "passing"]
    assert tracked.evaluate(cases).tables == results.tables


@pytest.mark.parametrize("world", [2, 3])
def test_any_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    cases = tracked_set(tmp_path).cases(botsort("camera_motion=true"))
    whole = tracked_set(tmp_path / "one").evaluate(cases)
    parts: list[Any] = []
    monkeypatch.setattr(evaluation, "world_size", lambda: world)
    for number in range(world):
        monkeypatch.setattr(evaluation, "rank", lambda number=number: number)
        monkeypatch.setattr(evaluation, "all_gather", lambda part: [parts.append(part), *parts][1:])
        gathered = None
        try:
            gathered = tracked_set(tmp_path / "many").evaluate(cases)
        except KeyError:  # the other ranks have not run yet
            assert number < world - 1
    assert gathered is not None and gathered.tables == whole.tables
    assert sorted(len(part) for part in parts) == ([1, 1] if world == 2 else [0, 1, 1])


def test_data_without_objects(tmp_path: Path) -> None:
    tracked = tracked_set(tmp_path, {"empty": [[None] * 4] * 3})
    with pytest.raises(DataMismatch, match="squares: there are no annotated objects to track"):
        tracked.evaluate(tracked.cases(botsort()))


def test_an_error_of_a_tracker_names_the_sequence(tmp_path: Path) -> None:
    def failing(state: Any, frame: Any) -> Any:
        raise ValueError("too many boxes")

    tracked = tracked_set(tmp_path)
    with pytest.raises(DataMismatch, match="crossing: too many boxes"):
        tracked.evaluate(tracked.cases(Tracking(failing)))


# --- of a run folder --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The videos as files."""
    return write_videos(tmp_path_factory.mktemp("videos"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any]) -> Callable[..., RunModel]:
    """Return a function that returns a run of a detector on these videos; its model sees every square."""
    monkeypatch.setattr(evaluation, "Pipeline", Seeing())
    shutil.copytree(RUNS / "detection" / "run", tmp_path / "run")

    def model(*changes: str, **source: Any) -> RunModel:
        return RunModel(tmp_path / "run", [f"data.val.source={json.dumps({**data, **source})}", *changes])

    return model


def evaluate(model: RunModel, tracking: Tracking, reid: bool = True, **options: Any) -> dict[str, Any]:
    tables = evaluate_tracker(
        model,
        tracking,
        ["tracker=botsort"],
        RunModel(RUNS / "reid" / "run") if reid else None,
        name="videos",
        **options,
    )
    return tables["videos_tracking"]


def test_scores_tables_and_images_are_written(run: Callable[..., RunModel], capsys: pytest.CaptureFixture[str]) -> None:
    model = run()
    tables = evaluate(model, botsort(), reid=False)
    assert "are read from" not in capsys.readouterr().err and list(tables) == [ANNOTATED, MOTION]
    again = evaluate(model, botsort())
    assert "detections of 2 sequences are read from" in capsys.readouterr().err and again[MOTION] == tables[MOTION]
    assert evaluate(model, resolve_tracking({"tracker": "sort"}))[APPEARANCE]["class_averaged"]["IDSW"] == 2
    assert "the scores are the same with embeddings: does sort use them?" in capsys.readouterr().err
    folder = model.run / "eval" / "videos_tracking"
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["videos_tracking/IDSW"] == 2 and scores["samples"] == 28
    assert scores["overrides"][1:] == ["tracker=botsort"]
    details = json.loads((folder / "details.json").read_text())["tracking"]
    assert [row["row"] for row in details["rows"]] == [ANNOTATED, MOTION, APPEARANCE]
    assert details["switches"][0] == {"sequence": "crossing", "first": 1, "last": 22, "frames": [16, 16]}
    (group,) = json.loads((folder / "pictures" / "index.json").read_text())["groups"]
    (row,) = group["rows"]
    assert row["pictures"][0]["text"].startswith("crossing: object 1 is track 0 until frame 9, track 1 from frame 16")
    for picture in row["pictures"]:
        with Image.open(folder / "pictures" / picture["file"]) as image:
            assert image.width > 600
    assert len(list((model.run / "tracking").iterdir())) == 2


def test_other_data_other_models_and_other_files_are_kept_apart(run: Callable[..., RunModel]) -> None:
    for model in (run(), run(first_pixel=1), run(sequences=["passing"]), run("task.detector.box.score_threshold=0.02")):
        evaluate(model, botsort(), reid=False)
    assert len(list((model.run / "tracking").iterdir())) == 4


def test_a_sweep_has_the_scores_of_evaluations(run: Callable[..., RunModel]) -> None:
    model, reid = run(), RunModel(RUNS / "reid" / "run")
    trackings = {name: botsort(f"tracker.new_track_score={name}") for name in ("0.5", "0.95")}
    scores = sweep(model, trackings, reid)
    expected = {name: evaluate(model, tracking)[APPEARANCE]["class_averaged"] for name, tracking in trackings.items()}
    assert scores == expected and scores["0.5"]["HOTA"] == 1 > scores["0.95"]["HOTA"]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ({"every": 2}, {}, "crossing: frame 1 is followed by frame 3"),
        ({"classes": ["0", "1"]}, {}, "videos has other classes than the model"),
        ({}, {"splits": ["test"]}, "there is no validation set 'test'"),
    ],
)
def test_mistakes(run: Callable[..., RunModel], source: dict[str, Any], options: Any, message: str) -> None:
    model = run(**source)
    with pytest.raises((ConfigError, DataMismatch)) as error:
        evaluate(model, botsort(), reid=False, **options)
    assert message in str(error.value)
