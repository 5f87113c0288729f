"""Training with an exponential moving average (EMA) of the weights: evaluation, checkpoints, resuming, loading."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import opabinia
from opabinia.engine.checkpointing.checkpoint import read_checkpoint
from opabinia.runtime.shards import load_safetensors
from opabinia.training import launch

SMALL = [
    "train.length=12it",
    "evaluate.every=6it",
    "checkpoint.every=6it",
    "data.batch_size=16",
    "data.num_workers=0",
    "loggers=[]",
]
EMA = ["ema.decay=0.9", "ema.every=2"]


def train(folder: Path, *overrides: str, **options: Any) -> tuple[Path, dict[str, float]]:
    return launch.train("classification/digits", [*SMALL, *EMA, *overrides], out=folder, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """Folder and scores of a run; tests read or copy it, but do not change it."""
    return train(tmp_path_factory.mktemp("ema"))


def tensors(folder: Path, step: int, name: str) -> dict[str, torch.Tensor]:
    return load_safetensors(folder / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors")


def test_both_weights_are_evaluated_and_the_average_selects_the_best(finished: tuple[Path, dict[str, float]]) -> None:
    folder, scores = finished
    assert {"val/top1", "val/top5", "val_ema/top1", "val_ema/top5"} <= set(scores)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum("val_ema/top1" in line for line in lines) == sum("val/top1" in line for line in lines) == 2
    assert launch.evaluate(folder, checkpoint="last", weights="both") == scores
    state = read_checkpoint(folder / "checkpoints" / "step-00000012").state
    best = max(line["val_ema/top1"] for line in lines if "val_ema/top1" in line)
    assert state["scores"] and json.loads(json.dumps(state["hooks"])).get("best", {"best": best})["best"] <= best


def test_a_resumed_run_has_the_same_average(tmp_path: Path, finished: tuple[Path, dict[str, float]]) -> None:
    model, before = tensors(finished[0], 12, "model"), tensors(finished[0], 12, "ema")
    assert model.keys() == before.keys()
    assert not all(torch.allclose(model[name], value) for name, value in before.items() if value.is_floating_point())
    folder = tmp_path / finished[0].relative_to(finished[0].parents[2])
    shutil.copytree(finished[0], folder)
    _, scores = train(tmp_path, resume=str(folder / "checkpoints" / "step-00000006"))
    assert scores == finished[1]
    for name, value in tensors(folder, 12, "ema").items():
        assert torch.equal(value, before[name]), name


def test_a_resumed_run_may_start_an_average(tmp_path: Path) -> None:
    launch.train("classification/digits", [*SMALL, "train.length=6it"], out=tmp_path)
    folder, scores = train(tmp_path, "ema.decay=1.0", "ema.warmup=false", resume="last")
    assert "100% of it will still be the initial weights" in (folder / "train.log").read_text()
    assert "val_ema/top1" in scores
    early, average = tensors(folder, 6, "model"), tensors(folder, 12, "ema")
    assert all(torch.equal(early[name], average[name]) for name in early if early[name].is_floating_point())


def test_the_average_alone_is_evaluated_with_the_period_of_each_validation_set(tmp_path: Path) -> None:
    source = "source: {name: digits, split: val}"
    folder, _ = train(
        tmp_path, "evaluate.weights=ema", f"data.val=[{{{source}}}, {{prefix: late, every: 0ep, {source}}}]"
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated_steps = {
        name: [line["step"] for line in lines if f"{name}/top1" in line]
        for name in ("val", "val_ema", "late", "late_ema")
    }
    assert evaluated_steps == {"val": [], "val_ema": [6, 12], "late": [], "late_ema": [12]}


def test_predictions_use_the_weights_with_the_better_score(
    tmp_path: Path, finished: tuple[Path, dict[str, float]]
) -> None:
    folder = Path(shutil.copytree(finished[0], tmp_path / "run"))
    model, average = (tensors(folder, 12, name)["head.1.fc.weight"] for name in ("model", "ema"))

    def loaded(*overrides: str, **options: Any) -> torch.Tensor:
        task = opabinia.load(folder, overrides, checkpoint="last", **options).task
        return task.state_dict()["head.1.fc.weight"]

    def evaluated() -> set[str]:
        return {name.partition("/")[0] for name in launch.evaluate(folder, checkpoint="last")}

    def score(raw: float, ema: float) -> None:
        """Change the scores in the metrics log."""
        file = folder / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        values = {"val/top1": raw, "val_ema/top1": ema}
        changed = [line | {name: values[name] for name in values if name in line} for line in lines]
        file.write_text("".join(json.dumps(line) + "\n" for line in changed))

    score(raw=0.5, ema=0.25)
    assert torch.equal(loaded(), model) and evaluated() == {"val"}
    assert torch.equal(loaded(weights="ema"), average) and torch.equal(loaded("evaluate.weights=ema"), average)
    score(raw=0.25, ema=0.5)
    assert torch.equal(loaded(), average) and evaluated() == {"val_ema"}
    assert torch.equal(loaded(weights="raw"), model) and torch.equal(loaded("evaluate.weights=raw"), model)
    (folder / "metrics.jsonl").unlink()
    assert torch.equal(loaded(), average)  # without scores, the average is the default
    assert {name.partition("/")[0] for name in launch.evaluate(folder, checkpoint="last", weights="raw")} == {"val"}
