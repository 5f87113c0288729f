"""Evaluation on other data: the files that a source reads instead, and scores that are kept."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError, Resolved
from opabinia.config.text import describe_source
from opabinia.training.evaluation_data import choose_sets, redirect_source, write_scores


def files(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


COCO = {"root": "a/val", "file": "a/annotations/instances_val.json"}


@pytest.mark.parametrize(
    ("source", "present", "path", "expected"),
    [
        # a folder instead of the root
        ({"name": "image_folder", "root": "a/val"}, ["a/test/cat/1.jpg"], "a/test", {"root": "a/test"}),
        ({"name": "market1501", "root": "a", "split": "test"}, ["b/query/1.jpg"], "b", {"root": "b", "split": "test"}),
        ({"name": "roboflow", "root": "a", "split": "valid"}, ["a/valid/1", "a/test/1"], "a/test", {"split": "test"}),
        ({"name": "roboflow", "root": "a", "split": "valid"}, ["a/valid/1", "b/valid/1"], "b", {"root": "b"}),
        # images and annotations: of another split, in another folder, side by side, given by the annotation file
        (COCO, ["a/test/1.jpg", "a/annotations/instances_test.json", "a/annotations/instances_val.json"], "a/test",
         {"root": "a/test", "file": "a/annotations/instances_test.json"}),
        (COCO, ["b/val/1.jpg", "b/annotations/instances_val.json"], "b",
         {"root": "b/val", "file": "b/annotations/instances_val.json"}),
        (COCO, ["b/1.jpg", "b/_annotations.coco.json"], "b", {"root": "b", "file": "b/_annotations.coco.json"}),
        (COCO, ["a/test/1.jpg", "a/val/1.jpg", "a/annotations/instances_test.json"],
         "a/annotations/instances_test.json", {"root": "a/test", "file": "a/annotations/instances_test.json"}),
        ({"root": "a/images", "file": "a/val.json"}, ["b/images/1.jpg", "b/new.json"], "b/new.json",
         {"root": "b/images", "file": "b/new.json"}),
        ({"root": "a/images", "file": "a/val.json"}, ["a/images/1.jpg", "b/new.json"], "b/new.json",
         {"root": "a/images", "file": "b/new.json"}),
        # lists and YOLO's data.yaml
        ({"name": "table", "file": "a/val.csv", "root": None}, ["b/test.csv"], "b/test.csv", {"file": "b/test.csv"}),
        ({"name": "table", "file": "a/val.csv", "root": None}, ["b/test.csv"], "b", {"file": "b/test.csv"}),
        ({"name": "yolo", "data": "a/data.yaml", "split": "val"}, ["b/data.yaml"], "b", {"data": "b/data.yaml"}),
    ],
)  # fmt: skip
def test_a_source_reads_other_data_of_its_layout(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[str, Any],
    present: Sequence[str],
    path: str,
    expected: dict[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path, *present)
    source = {"name": "coco", "broken": "clip", **source}
    assert redirect_source(source, Path(path), "data.val.source") == {**source, **expected}
    wrapped = {"name": "video_views", "source": source, "clips": 2}
    assert redirect_source(wrapped, Path(path), "data.val.source") == {**wrapped, "source": {**source, **expected}}
    subset = {"name": "subset", "source": source, "file": "split.json", "split": "val"}
    assert redirect_source(subset, Path(path), "data.val.source") == {**source, **expected}
    part = {"name": "random_part", "source": source, "fraction": 0.2, "part": "chosen", "seed": 0}
    assert redirect_source(part, Path(path), "data.val.source") == {**source, **expected}


@pytest.mark.parametrize(
    ("source", "path", "messages"),
    [
        ({"name": "image_folder", "root": "a/val"}, "c", ["there is no c"]),
        (COCO, "b", ["coco cannot read b", "data.val.source.root=", "data.val.source.file="]),
        ({"name": "digits", "split": "val"}, "b", ["digits reads no folder or file", "data.val.source.split="]),
    ],
)
def test_data_of_another_layout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, Any], path: str, messages: Sequence[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path, "a/val/1.jpg", "a/annotations/instances_val.json", "b/1.jpg")
    with pytest.raises(ConfigError) as refused:
        redirect_source({"name": "coco", **source}, Path(path), "data.val.source")
    assert all(message in str(refused.value) for message in ["--data", *messages])


def config(*streams: dict[str, Any], evaluators: Any = None) -> Resolved:
    val = [{"transforms": [], "prefix": "val", "every": None, **stream} for stream in streams]
    hooks = {"expected": {"name": "expected_scores"}, "watch": {"name": "gpu_monitor"}}
    data, evaluate = {"val": val}, {"evaluators": evaluators}
    task = {"name": "classification"}
    return Resolved({"task": task, "data": data, "evaluate": evaluate, "hooks": hooks}, {}, [])


VAL, TEST = (
    {"source": {"name": "digits", "split": "val"}},
    {"prefix": "test", "source": {"name": "digits", "split": "train"}},
)


def test_splits_are_evaluated_without_the_others() -> None:
    evaluators = {"a": {"on": "val"}, "b": {"on": "test"}, "c": {"on": None}}
    run = config(VAL, TEST, evaluators=evaluators)
    assert choose_sets(run, run) is run
    chosen = choose_sets(run, run, splits=["test"]).config
    assert chosen["data"]["val"]["prefix"] == "test" and list(chosen["evaluate"]["evaluators"]) == ["b", "c"]
    assert list(chosen["hooks"]) == ["watch"]
    with pytest.raises(ConfigError, match=r"no validation set 'tset'; did you mean 'test'\?"):
        choose_sets(run, run, splits=["tset"])


def test_scores_of_other_data_have_their_own_name(tmp_path: Path) -> None:
    run, changed = (
        config(VAL, TEST, evaluators={"a": {"on": "val"}}),
        config({"source": {"name": "digits", "split": "train"}}),
    )
    with pytest.raises(ConfigError, match=r"would replace the scores of that; add --name, or use --data PATH"):
        choose_sets(changed, run)
    named = choose_sets(changed, run, name="seen").config["data"]["val"]
    assert (named["prefix"], named["source"]["split"]) == ("seen", "train")
    for name in ("val", "test", "val_ema", "a/b"):
        with pytest.raises(ConfigError, match="is not a name for the scores of other data"):
            choose_sets(changed, run, name=name)
    files(tmp_path, "more/val/cat/1.png")
    folder = config({"source": {"name": "image_folder", "root": "none"}}, evaluators={"a": {"on": "val"}})
    chosen = choose_sets(folder, folder, data=tmp_path / "more" / "val").config
    assert chosen["data"]["val"]["prefix"] == "more_val" and chosen["evaluate"]["evaluators"]["a"]["on"] == "more_val"
    assert choose_sets(folder, folder, data=tmp_path / "more").config["data"]["val"]["prefix"] == "more"


def test_scores_of_other_checkpoints_and_weights_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    older = {"data": "digits, split val", "samples": 9, "checkpoint": "step-1", "weights": "raw", "overrides": []}
    newer = {**older, "checkpoint": "step-2"}
    for metadata, score in ((older, 0.5), (older, 0.6), (newer, 0.7)):
        write_scores(tmp_path, metadata, {"val/top1": score})
    written = json.loads((tmp_path / "scores.json").read_text())
    assert written == {**newer, "val/top1": 0.7, "earlier": [{**older, "val/top1": 0.6}]}
    (tmp_path / "scores.json").write_text('{"earlier": 3}')
    write_scores(tmp_path, older, {"val/top1": 0.5})
    assert json.loads((tmp_path / "scores.json").read_text()) == {**older, "val/top1": 0.5}
    assert "scores.json: earlier: input should be a valid list" in caplog.text
    source = {"name": "coco", **COCO, "classes": None}
    assert describe_source(source) == "coco, root a/val, file a/annotations/instances_val.json"
    wrapped = {"name": "video_views", "source": {"name": "videos", "root": "b"}}
    assert describe_source(wrapped) == "video_views of videos, root b"
    subset = {"name": "subset", "source": {"name": "images", "root": "b"}, "file": "split.json", "split": "val"}
    assert describe_source(subset) == "subset, file split.json, split val of images, root b"
