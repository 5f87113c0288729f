"""``opabinia data labels``: the list, the page, corrections that are read back, and errors."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from opabinia.config import ConfigError
from opabinia.contracts import Source, Task
from opabinia.data.sources import Digits, Synthetic
from opabinia.evaluation.label_errors.classification import ClassificationCheck
from opabinia.evaluation.label_errors.multilabel import MultiLabelCheck
from opabinia.evaluation.label_errors.suspects import LabelCheck, Suspect
from opabinia.inference.label_errors.collect import CollectedRun, check_for
from opabinia.inference.label_errors.find import check_no_corrections, check_same_kind, default_folder, list_text
from tests.cli.conftest import SIX_STEPS, CommandResult

Command = Callable[..., CommandResult]


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_list_page_and_table(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels"
    result = opabinia("data", "labels", six_steps, "--count", 3, "--out", out)
    assert result.status == 0, result.err
    rows = rows_of(out / "labels.csv")
    assert list(rows[0]) == ["id", "issue", "label", "predicted", "score", "reason", "corrected"]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True) and 3 < len(rows) < 360
    assert all(row["label"] != row["predicted"] and not row["corrected"] for row in rows)
    assert result.out.count("│ digits/") == 3 and rows[0]["id"] in result.out
    assert "samples: 360" in result.out and f"suspicious labels in the list: {len(rows)}" in result.out
    assert result.err == f"the list is in {out / 'labels.csv'}, the page in {out / 'labels.html'}\n"
    page = (out / "labels.html").read_text()
    assert page.count("<figure") == min(len(rows), 120) and rows[0]["id"] in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)  # it needs no network


def test_corrections_are_read_back_and_kept(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels"
    assert opabinia("data", "labels", six_steps, "--out", out).status == 0
    before, text = rows_of(out / "labels.csv"), (out / "labels.csv").read_text()
    first = before[0]
    (out / "labels.csv").write_text(
        re.sub(r",\n", f",{first['predicted']}\n", text.replace("corrected\n", "corrected\n", 1), count=1)
    )
    again = opabinia("data", "labels", six_steps, "--out", out)
    assert again.status == 2 and "labels.csv has corrections, or is another file, which would be lost" in again.err
    source = f"data.val.source={{name: corrected, source: {{name: digits, split: val}}, file: {out / 'labels.csv'}}}"
    result = opabinia("data", "labels", six_steps, "--out", tmp_path / "after", "--set", source)
    assert result.status == 0, result.err
    assert first["id"] not in [row["id"] for row in rows_of(tmp_path / "after" / "labels.csv")]


def test_training_data_comes_with_a_warning(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    result = opabinia("data", "labels", six_steps, "--split", "train", "--out", tmp_path, "--count", 0)
    assert result.status == 0 and "samples: 1,437" in result.out and "│" not in result.out
    assert "warning: the model was trained on these labels" in result.err
    assert "the model was trained on these labels" in (tmp_path / "labels.html").read_text()


def test_several_runs_are_one_list(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    """Of the training data of one run and the validation data of the same: their samples differ."""
    same = opabinia("data", "labels", six_steps, six_steps, "--out", tmp_path)
    assert same.status == 2 and re.search(r"both have digits/\d+: their samples must differ", same.err)


@pytest.mark.parametrize("text", ["id;corrected\na;cat\n", "id,corrected\na,\nb,-\n", "notes of mine\n", "\xff"])
def test_lists_that_are_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.csv").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match="would be lost: move it, or choose another folder"):
        check_no_corrections(tmp_path)
    (tmp_path / "labels.csv").write_text("id;corrected\na;\n")
    check_no_corrections(tmp_path)


def test_default_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_folder([Path("runs/a")]) == Path("runs/a/labels")
    assert default_folder([Path("runs/x/a"), Path("runs/x/b")]) == Path("runs/x/labels")
    assert default_folder([tmp_path / "a", tmp_path / "b"]) == tmp_path / "labels"


def test_places_are_columns_if_there_are_some() -> None:
    suspects = [
        Suspect("a.png", "overlooked", "", "cat", 0.5, 'a "quoted", reason', None, (1.0, 2.0, 3.25, 4.0)),
        Suspect("b.png", "class", "dog", "cat", 0.25, "r"),
    ]
    assert list_text(suspects).splitlines() == [
        "id,issue,label,predicted,score,left,top,right,bottom,reason,corrected",
        'a.png,overlooked,,cat,0.5000,1.0,2.0,3.2,4.0,"a ""quoted"", reason",',
        "b.png,class,dog,cat,0.2500,,,,,r,",
    ]


def test_names_are_escaped(opabinia: Command, tmp_path: Path) -> None:
    """Names of files and classes are text on the page, and in the terminal one line."""
    from PIL import Image

    names = ["<script>alert(1)<&script>", "[red]b"]
    for number in range(16):
        path = tmp_path / "photos" / names[number % 2] / f"<b>{number}\n.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number * 15).save(path)
    source = f"{{name: image_folder, root: {tmp_path / 'photos'}, channels: 1}}"
    words = [f"data.{part}.source={source}" for part in ("train", "val")]
    trained = opabinia("train", "classification/digits", *SIX_STEPS, *words, "--out", tmp_path / "runs")
    assert trained.status == 0, trained.err
    run = tmp_path / "runs" / "classification" / "digits" / "default"
    result = opabinia("data", "labels", run)
    assert result.status == 0, result.err
    page = (run / "labels" / "labels.html").read_text()
    assert "<script>alert(1)" not in page and "<b>" not in page.replace('<b class="mark">', "")
    if rows_of(run / "labels" / "labels.csv"):
        assert "&lt;script&gt;alert(1)" in page and "[red]b" in result.out


# --- errors -----------------------------------------------------------------------------------------------------------


def fails(result: CommandResult, *parts: str, status: int = 2) -> None:
    assert result.status == status and "Traceback" not in result.err, result.err
    assert len(result.err.splitlines()) == 1
    for part in parts:
        assert part in result.err


def test_a_run_without_validation_data(opabinia: Command, copied_run: Path) -> None:
    config = copied_run / "config.yaml"
    text = config.read_text()
    start = text.index("  val:")
    end = re.compile(r"^  \w", re.MULTILINE).search(text, start + 4)
    assert end is not None
    config.write_text(text[:start] + "  val: null\n" + text[end.start() :])
    result = opabinia("data", "labels", copied_run)
    fails(result, "data.val", "has no validation data", "--folds 5", "--split train")


def test_no_run_no_split_no_number(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    fails(opabinia("data", "labels", tmp_path / "none"), str(tmp_path / "none"))
    fails(opabinia("data", "labels", six_steps, "--split", "vla"), "there is no 'vla'", "did you mean 'val'?")
    fails(opabinia("data", "labels", "classification/digits"), "is a recipe")


def test_a_self_supervised_model() -> None:
    predictions, batch = {"embedding": torch.zeros(1, 4)}, {"label": torch.zeros(1), "id": ["a"]}
    with pytest.raises(ConfigError, match=r"Task of runs/a predicts embedding; .* are compared with predicted ones"):
        check_for(Path("runs/a"), Task(), predictions, batch)


def test_runs_with_other_classes_or_labels() -> None:
    def run(name: str, source: Source, check: LabelCheck) -> CollectedRun:
        return CollectedRun(Path(name), "val", source, check, trained_on=False, skipped=0)

    digits, noise = Digits(split="val"), Synthetic(samples=4, classes=3)
    with pytest.raises(ConfigError, match=r"b has other classes than a.*classes: 0, 1, 2, 3, 4"):
        check_same_kind([run("a", digits, ClassificationCheck()), run("b", noise, ClassificationCheck())])
    with pytest.raises(ConfigError, match="b has another kind of labels than a"):
        check_same_kind([run("a", digits, ClassificationCheck()), run("b", digits, MultiLabelCheck())])


def test_data_that_the_model_is_not_for(opabinia: Command, six_steps: Path) -> None:
    source = "data.val.source={name: synthetic, channels: 1, classes: 3}"
    fails(opabinia("data", "labels", six_steps, "--set", source), "data of val", "class")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    fails(opabinia("data", "labels", six_steps, "--out", tmp_path / "labels"), "permission denied", status=1)


def test_a_file_in_place_of_the_folder(opabinia: Command, six_steps: Path, tmp_path: Path) -> None:
    (tmp_path / "labels").write_text("")
    result = opabinia("data", "labels", six_steps, "--out", tmp_path / "labels")
    assert result.status == 1 and "Traceback" not in result.err and "cannot write" in result.err


@pytest.mark.slow
def test_the_folder_of_a_cross_validation_stands_for_its_runs(opabinia: Command, tmp_path: Path) -> None:
    trained = opabinia("train", "classification/digits", *SIX_STEPS, "--folds", 2, "--out", tmp_path)
    assert trained.status == 0, trained.err
    folds = tmp_path / "classification" / "digits" / "default-folds"
    result = opabinia("data", "labels", folds)
    assert result.status == 0 and "samples: 1,437" in result.out, result.err
    assert (folds / "labels" / "labels.csv").is_file() and (folds / "labels" / "labels.html").is_file()


@pytest.mark.slow
def test_segmentation_maps(opabinia: Command, tmp_path: Path) -> None:
    words = [*SIX_STEPS, "train.length=2it", "data.batch_size=2"]
    trained = opabinia("train", "segmentation/digits", *words, "--out", tmp_path)
    assert trained.status == 0, trained.err
    result = opabinia("data", "labels", tmp_path / "segmentation" / "digits" / "default", "--out", tmp_path / "labels")
    assert result.status == 0, result.err
    assert "samples: 400" in result.out and (tmp_path / "labels" / "labels.html").is_file()


@pytest.mark.slow
def test_identities(opabinia: Command, tmp_path: Path) -> None:
    words = [*SIX_STEPS, "train.length=2it", "data.batch_size=64"]
    trained = opabinia("train", "reid/digits", *words, "--out", tmp_path)
    assert trained.status == 0, trained.err
    result = opabinia("data", "labels", tmp_path / "reid" / "digits" / "default", "--out", tmp_path / "labels")
    assert result.status == 0 and "identities: " in result.out, result.err
    assert {row["issue"] for row in rows_of(tmp_path / "labels/labels.csv")} <= {"split identity", "merged identities"}
