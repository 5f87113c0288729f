"""``opabinia eval RUN --evaluator NAME``"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import CommandResult

Command = Callable[..., CommandResult]


def test_further_evaluators_by_name(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    run = shutil.copytree(six_steps, tmp_path / "run")
    result = opabinia(
        "eval", run, "--evaluator", "collapse", "--evaluator", "knn", "evaluate.evaluators.knn.evaluator.k=3"
    )
    assert result.status == 0, result.err
    scores = json.loads((run / "eval" / "val" / "scores.json").read_text())
    assert {"val/top1", "val/spread", "val/rank", "val/uniformity", "val/knn_top1", "val/knn_top5"} <= scores.keys()
    assert 0.1 < scores["val/knn_top1"] < 1
    assert "val/knn_top1" in result.out


def test_an_unknown_evaluator_is_reported_with_a_suggestion(opabinia: Command, six_steps: Path) -> None:
    result = opabinia("eval", six_steps, "--evaluator", "linear_prob")
    assert result.status == 2
    assert "there is no evaluator of this name (found 'linear_prob'); did you mean 'linear_probe'?" in result.err
