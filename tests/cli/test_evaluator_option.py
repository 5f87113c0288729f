"""``opabinia eval RUN --measure NAME``"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ended

Command = Callable[..., Ended]


def test_further_evaluators_by_name(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    run = shutil.copytree(six_steps, tmp_path / "run")
    ended = opabinia("eval", run, "--measure", "collapse", "--measure", "knn", "evaluate.evaluators.knn.evaluator.k=3")
    assert ended.status == 0, ended.err
    scores = json.loads((run / "eval" / "val" / "scores.json").read_text())
    assert {"val/top1", "val/spread", "val/rank", "val/uniformity", "val/knn_top1", "val/knn_top5"} <= scores.keys()
    assert 0.1 < scores["val/knn_top1"] < 1
    assert "val/knn_top1" in ended.out


def test_an_evaluator_that_is_not_there_is_reported_with_the_nearest(opabinia: Command, six_steps: Path) -> None:
    ended = opabinia("eval", six_steps, "--measure", "linear_prob")
    assert ended.status == 2
    assert "there is no evaluator of this name (found 'linear_prob'); did you mean 'linear_probe'?" in ended.err
