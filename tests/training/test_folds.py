"""Cross-validation: the changes to a config that train a fold, and the record of the folds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError
from opabinia.training.run_folder import resolve
from opabinia.training.sweep.folds import Folds, fold_changes, make_folds

FOLDS = Folds("recipe", 2, None, 0, ["../a-fold1", "../a-fold2"])
DIGITS = {"name": "digits", "split": "train"}


def sources(recipe: str, *overrides: str, folds: Folds = FOLDS) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sections of the sources of training and validation data of the first fold."""
    changes = fold_changes(resolve(recipe, overrides), overrides, Path("fold1.json"), folds)
    data = resolve(recipe, changes).config["data"]
    val = data["val"][0] if isinstance(data["val"], list) else data["val"]
    return data["train"]["source"], val["source"]


def test_the_held_out_samples_take_the_place_of_the_validation_data() -> None:
    train, val = sources("classification/digits")
    assert train == {"name": "subset", "source": DIGITS, "file": "fold1.json", "split": "train", "identities": False}
    assert val == {**train, "split": "val"}
    changes = fold_changes(resolve("classification/digits"), [], Path("fold1.json"), FOLDS)
    before, now = (resolve("classification/digits", words).config for words in ([], changes))
    for name in ("train", "val"):
        assert before["data"][name]["transforms"] == now["data"][name]["transforms"]
        assert now["data"][name].pop("source") != before["data"][name].pop("source")
    assert before == now, "all else is that of the recipe"


def test_sources_on_the_command_line_are_divided() -> None:
    text = "[{source: {name: digits, split: val}, prefix: test}]"
    train, val = sources("classification/digits", "--data.train.source.split=val", f"data.val={text}")
    assert train["source"] == val["source"] == {"name": "digits", "split": "val"}
    assert (train["split"], val["split"]) == ("train", "val")
    nested = "{name: subset, source: digits, file: '${env:NOTHING,own}.json'}"
    train, _ = sources("classification/digits", f"data.train.source={nested}")
    assert train["source"]["file"] == "own.json" and train["source"]["source"] == DIGITS


def test_samples_with_an_index_and_views_of_videos_stay_these() -> None:
    train, val = sources("selfsup/digits_npid")
    assert (train["name"], train["source"]["name"], val["name"]) == ("indexed", "subset", "subset")
    views = "{name: video_views, source: {name: moving_digits, split: val}, clips: 2, crops: 1}"
    train, val = sources("video/digits", f"data.val.source={views}")
    assert (val["name"], val["clips"], val["source"]["name"]) == ("video_views", 2, "subset")
    assert val["source"]["source"] == train["source"]


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("multitask/digits", [], "folds are for recipes of one task, not for multi-task runs"),
        ("classification/digits", ["data.val=null"], "of which the recipe must have one"),
        ("classification/digits", ["data.val=[{source: digits}, {source: digits, prefix: b}]"], "found val, b"),
    ],
)
def test_other_recipes_are_refused(recipe: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sources(recipe, *overrides)


def test_folds_are_made_once(tmp_path: Path) -> None:
    resolved = resolve("classification/digits")
    folder = tmp_path / "a-folds"
    assert make_folds(folder, FOLDS, resolved) == FOLDS
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(files) == ["config.yaml", "fold1.json", "fold2.json", "folds.json"]
    first, second = (set(json.loads(files[f"fold{number}.json"])["val"]) for number in (1, 2))
    assert not first & second and (len(first), len(second)) == (719, 718)
    (folder / "fold1.json").write_text("kept")
    make_folds(folder, FOLDS, resolved)
    assert (folder / "fold1.json").read_text() == "kept"
    with pytest.raises(ConfigError, match=r"belongs to folds with another group_by \(None, not folder\): choose anoth"):
        make_folds(folder, replace(FOLDS, group_by="folder"), resolved)
    with pytest.raises(ConfigError, match="--folds: the samples have no camera; a regular"):
        make_folds(tmp_path / "b", replace(FOLDS, group_by="camera"), resolved)
    assert not (tmp_path / "b" / "folds.json").exists()


def test_identities_are_found_by_the_task(tmp_path: Path) -> None:
    small = "data.train.source={name: digit_views, split: train}"
    folds = make_folds(tmp_path, FOLDS, resolve("reid/digits", [small]))
    assert folds.identities
    assert json.loads((tmp_path / "folds.json").read_text())["identities"] is True
    train, _ = sources("reid/digits", folds=folds)
    assert train["identities"] is True
