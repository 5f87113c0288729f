"""Evaluation of trackers with ``eval`` and ``sweep``."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from opabinia.cli.tracking import split_words
from opabinia.inference.tracking import evaluation
from tests.cli.conftest import CommandResult
from tests.inference.tracking.squares import Seeing, write_videos

RUNS = Path(__file__).parents[1] / "compat" / "v0.1"
Opabinia = Callable[..., CommandResult]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder of a detector whose validation data is videos; its model sees every square."""
    monkeypatch.setattr(evaluation, "Pipeline", Seeing())
    folder = Path(shutil.copytree(RUNS / "detection" / "run", tmp_path / "run"))
    config = (folder / "config.yaml").read_text()
    before, source = config.split("\n  val:\n")
    lines = source.splitlines()
    place = next(number for number, line in enumerate(lines) if "source:" in line)
    lines[place] = "    source: " + json.dumps(write_videos(tmp_path / "videos"))
    (folder / "config.yaml").write_text(f"{before}\n  val:\n" + "\n".join(lines) + "\n")
    return folder


def test_words_of_trackers() -> None:
    words = ["tracker.match_iou=0.2", "--per_class=no", "task.tracker=1", "camera_motion=true", "tracker=sort"]
    assert split_words(words) == ([words[0], words[1], *words[3:]], ["task.tracker=1"])


def test_eval_prints_the_rows_classes_and_sequences(opabinia: Opabinia, run: Path) -> None:
    result = opabinia(
        "eval", run, "--tracker", "botsort", "tracker.min_appearance_iou=0", "--reid", RUNS / "reid" / "run"
    )
    assert result.status == 0
    for text in (
        "ground-truth boxes",
        "motion only",
        "with re-ID",
        "all boxes together",
        "crossing",
        "passing",
        "HOTA",
    ):
        assert text in result.out
    again = opabinia("eval", run, "--tracker", "sort", "--json", "-q")
    assert again.status == 0
    content = json.loads(again.out)
    assert content["tracking"]["tracker"]["name"] == "sort"
    (rows,) = content["scores"].values()
    assert list(rows) == ["ground-truth boxes", "motion only"] and rows["motion only"]["IDSW"] == 2
    assert opabinia("report", run, "--no-images").status == 0
    page = (run / "report.html").read_text()
    assert "Worst identity switches (sort, motion only)" in page and "data:image/webp" in page


def test_sweep_prints_combinations_best_first(opabinia: Opabinia, run: Path) -> None:
    words = ["tracker.new_track_score=0.95,0.5", "tracker.min_hits=1,2", "tracker.keep_lost=2"]
    result = opabinia("sweep", run, *words)
    assert result.status == 0 and "scores on the validation data" in result.out
    record = json.loads((run / "tracking" / "sweep.json").read_text())
    assert [trial["changes"]["tracker.new_track_score"] for trial in record["runs"]] == ["0.95", "0.95", "0.5", "0.5"]
    assert [trial["scores"]["HOTA"] for trial in record["runs"][:2]] == [0, 0]
    as_json = json.loads(opabinia("sweep", run, *words, "--metric", "FN", "--json").out)
    missed = [trial["scores"]["FN"] for trial in as_json["runs"]]
    assert missed == sorted(missed) and missed[0] < missed[-1]
    assert "trackers by motion only" in opabinia("sweep", run, "tracker.name=sort,ocsort", "--name", "names").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["eval", "RUN", "tracker.min_hits=1"],
            "tracker.min_hits=1: is for trackers: add --tracker, such as bytetrack",
        ),
        (["eval", "RUN", "--reid", "RUN"], "--reid: is for trackers"),
        (["eval", "RUN", "--tracker", "bytetrak"], "did you mean 'bytetrack'"),
        (["eval", "RUN", "--tracker", "sort", "tracker.min_hit=1"], "did you mean 'min_hits'"),
        (["eval", "RUN", "--tracker", "sort", "tracker.min_hits=0"], "tracker.min_hits"),
        (["eval", "RUN", "--tracker", "sort", "--reid", "nowhere"], "nowhere"),
        (["eval", "RUN", "--tracker", "sort", "--evaluator", "knn"], "--evaluator: is not for tracks"),
        (["eval", "RUN", "--tracker", "sort", "--confidence-intervals"], "--confidence-intervals: is not for tracks"),
        (["sweep", "RUN", "tracker.min_hits=1,2", "optimizer.lr=1,2"], "optimizer.lr: is no option of a tracker"),
        (["sweep", "RUN", "tracker.min_hit=1,2"], "did you mean 'min_hits'"),
        (["sweep", "RUN", "tracker.min_hits=1,2", "--optuna", "2"], "--optuna: is for training runs"),
        (["sweep", "RUN", "tracker.min_hits=1,2", "--metric", "HOTAA"], "did you mean 'HOTA'"),
        (["sweep", "detection/digits", "tracker.min_hits=1,2"], "detection/digits"),
    ],
)
def test_mistakes(opabinia: Opabinia, run: Path, words: list[str], message: str) -> None:
    result = opabinia(*(run if word == "RUN" else word for word in words))
    assert result.status == 2 and message in result.err
