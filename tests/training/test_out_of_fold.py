"""Out-of-fold predictions and scores, and the folder of the folds as one of several runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opabinia.config import ConfigError
from opabinia.config.paths import member_runs
from opabinia.training.launch import evaluate, train
from opabinia.training.out_of_fold import predict_out_of_fold
from opabinia.training.run_folder import resolve
from opabinia.training.sweep.folds import Folds, fold_changes, make_folds, split_files
from scripts import small_data

SHORT = ["train.length=1it", "train.device=cpu", "train.num_threads=1", "data.num_workers=0", "loggers=[]"]


def trained(recipe: str, overrides: list[str], out: Path) -> Path:
    """Train two folds of a recipe; return their folder."""
    resolved = resolve(recipe, overrides)
    folder = out / "a-folds"
    folds = make_folds(folder, Folds(recipe, 2, None, 0, ["../a-fold1", "../a-fold2"]), resolved)
    for number, file in enumerate(split_files(folder, 2), 1):
        run = train(recipe, fold_changes(resolved, overrides, file, folds), out=out / "runs", name=f"{number}")[0]
        run.rename(out / f"a-fold{number}")
    return folder


def overrides_of(task: str, root: Path) -> list[str]:
    """Return the overrides of a digits recipe that train on a small dataset."""
    if task == "reid":
        small_data.market1501(root)
        train, val = (f"{{name: market1501, root: '{root}', split: {split}}}" for split in ("train", "test"))
        of_digits = ["data.sampler=null", "data.train.source.channels=1", "data.val.source.channels=1"]
        return [f"data.train.source={train}", f"data.val.source={val}", "data.batch_size=4", *of_digits[:1]]
    small_data.coco(root)
    source = f"{{name: coco, root: '{root}', file: '{root}/annotations.json'}}"
    if task == "segmentation":
        source = f"{{name: object_maps, source: {source[:-1]}, masks: true}}}}"
    return [f"data.{key}.source={source}" for key in ("train", "val")] + ["data.batch_size=2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "score", "key"),
    [("detection", "val/AP", "detections"), ("segmentation", "val/mIoU", "classes"), ("reid", None, "embedding")],
)
def test_tasks_predict_out_of_fold(task: str, score: str | None, key: str, tmp_path: Path) -> None:
    folder = trained(f"{task}/digits", [*SHORT, *overrides_of(task, tmp_path / "data")], tmp_path)
    scores = predict_out_of_fold(member_runs(folder), folder / "predictions.jsonl")
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    held_out = [set(json.loads(file.read_text())["val"]) for file in split_files(folder, 2)]
    assert {line["path"] for line in lines} == set.union(*held_out)
    assert all(line["path"] in held_out[line["fold"] - 1] and key in line for line in lines)
    assert (score in scores) if score else not scores, "identities of different folds have the same numbers"

    evaluated = evaluate(folder)
    assert (score or "val/mAP") in evaluated, "the folder of the folds is an ensemble"
    if task == "detection":
        assert "val/loss" not in evaluated
    assert (folder / "eval" / "val" / "scores.json").is_file()


def test_members_of_folds(tmp_path: Path) -> None:
    assert member_runs(tmp_path) == [tmp_path]
    (tmp_path / "a-folds").mkdir()
    (tmp_path / "a-folds" / "folds.json").write_text('{"runs": ["../a-fold1", "../a-fold2"]}')
    for number in (1, 2):
        with pytest.raises(ConfigError, match=rf"there is no run .*a-fold{number}.*: repeat the command that trains"):
            member_runs(tmp_path / "a-folds")
        (tmp_path / f"a-fold{number}").mkdir()
        (tmp_path / f"a-fold{number}" / "config.yaml").touch()
    assert member_runs(tmp_path / "a-folds") == [tmp_path / "a-fold1", tmp_path / "a-fold2"]
