"""The recipes ``selfsup/digits_*``, trained for a quarter of their epochs: they learn and do not collapse."""

from pathlib import Path

import pytest

from opabinia.config.compose import packaged_names
from opabinia.training.launch import train

# Slow at first: NPID compares with embeddings of the last epoch, MAE reconstructs pixels, and BYOL's teacher is near
# its random start (0.32 here, 0.57 after the whole recipe).
SLOW = {"selfsup/digits_npid", "selfsup/digits_mae", "selfsup/digits_byol"}
DISTILLATION = "selfsup/digits_distillation"
RECIPES = [name for name in packaged_names() if name.startswith("selfsup/digits_") and name != DISTILLATION]
UNTRAINED = 0.25
SHORT = ["train.length=3ep", "evaluate.every=3ep", "data.num_workers=0", "train.num_threads=1", "loggers=[]"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_it_does_not_collapse(recipe: str, tmp_path: Path) -> None:
    _, scores = train(recipe, SHORT, out=tmp_path)
    assert scores["val/spread"] > 0.1, "1: vectors are spread evenly, 0: they are identical"
    assert scores["val/rank"] > 5, "of 128 directions"
    assert recipe in SLOW or scores["val/knn_top1"] > UNTRAINED + 0.1


@pytest.mark.slow
def test_a_student_learns_from_a_run_and_resumes_exactly(tmp_path: Path) -> None:
    train("selfsup/digits_vicreg", SHORT, out=tmp_path / "teacher")
    teacher = next((tmp_path / "teacher").rglob("config.yaml")).parent
    overrides = [*SHORT, f"vars.teacher={{run: '{teacher}'}}", "train.length=2ep", "checkpoint.every=1ep"]
    run, scores = train(DISTILLATION, overrides, out=tmp_path / "whole")
    assert scores["val/knn_top1"] > UNTRAINED + 0.1
    first, last = sorted((run / "checkpoints").glob("step-*"))
    weights = (last / "model.safetensors").read_bytes()
    _, resumed_scores = train(DISTILLATION, overrides, out=tmp_path / "whole", resume=str(first))
    assert (last / "model.safetensors").read_bytes() == weights and resumed_scores["val/spread"] == scores["val/spread"]
