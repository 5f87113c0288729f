"""The commands on a run of six steps: output, files, and exit status."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from opabinia.cli import main
from tests.cli.conftest import SIX_STEPS, CommandResult

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "classification/digits"
Opabinia = Callable[..., CommandResult]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def scores(folder: Path) -> dict[str, float]:
    results: dict[str, float] = json.loads((folder / "results.json").read_text())
    return results


# --- train ------------------------------------------------------------------------------------------------------------


def test_train(opabinia: Opabinia, tmp_path: Path) -> None:
    result = opabinia("train", RECIPE, *SIX_STEPS, "train.length=2it", "--name", "short", "--out", tmp_path)
    folder = tmp_path / "classification" / "digits" / "short"
    assert result.status == 0
    assert re.search(r"val/top1\W+0\.\d{4}", result.out)
    assert f"{folder} (after its last step" in result.out
    assert scores(folder).keys() >= {"val/top1", "val/top5"}
    assert (folder / "checkpoints" / "last").read_text() == "step-00000002\n"


def test_a_run_is_not_overwritten(opabinia: Opabinia, six_steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(six_steps)
    monkeypatch.setattr("opabinia.training.launch.train", None)  # checked before torch is imported for the training
    result = opabinia("train", RECIPE, "--out", six_steps.parents[2])
    assert result.status == 2
    assert f"{six_steps} holds a run, which is never overwritten: --resume continues it" in result.err
    assert contents(six_steps) == before


def test_a_finished_run_has_nothing_to_resume(opabinia: Opabinia, copied_run: Path) -> None:
    """The run may be named by its recipe, its folder, or a checkpoint."""
    checkpoint = copied_run / "checkpoints" / "step-00000006"
    out = ["--out", copied_run.parents[2]]
    for arguments in (
        [RECIPE, "--resume", *SIX_STEPS, *out],
        [RECIPE, *SIX_STEPS, *out, f"--resume={checkpoint}"],
        ["--resume", copied_run],
    ):
        result = opabinia("train", *arguments)
        assert result.status == 0, result.err
        assert f"{copied_run} is finished: nothing to do" in result.err
        assert f"{scores(copied_run)['val/top1']:.4f}" in result.out


def test_a_finished_run_that_is_resumed_with_other_settings_says_so(opabinia: Opabinia, copied_run: Path) -> None:
    result = opabinia("train", copied_run, "--resume", "optimizer.lr=0.5")
    assert result.status == 0 and "resuming" not in result.err
    assert re.search(r"changed since the run began: optimizer\.lr: [\d.]+ -> 0\.5\n", result.err)
    hint = "to train with other settings, set a longer train.length or begin another run (--name NAME)"
    assert f"{copied_run} is finished: nothing to do; {hint}\n" in result.err
    assert hint not in opabinia("train", copied_run, "--resume").err
    result = opabinia("train", copied_run, "--resume", "data.sampler=balanced", "train.length=9it")
    assert result.status == 2 and "data.sampler: a resumed run cannot change this" in result.err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=3", "seed: a resumed run cannot change this: the checkpoint has 0, the config gives 3"),
        ("data.batch_size=32", "data.batch_size: a resumed run cannot change this"),
        ("data.train.source.split=val", "data.train.source: a resumed run cannot change this"),
        ("task.backbone.model=test_vit", "task: the weights do not fit"),
    ],
)
def test_a_finished_run_refuses_what_a_resume_cannot_change(
    opabinia: Opabinia, copied_run: Path, override: str, message: str
) -> None:
    result = opabinia("train", copied_run, "--resume", override)
    assert result.status == 2 and message in result.err and "nothing to do" not in result.err


def test_a_run_resumes_from_its_last_step(opabinia: Opabinia, copied_run: Path) -> None:
    result = opabinia("train", copied_run, "--resume", "train.length=8it")
    assert result.status == 0
    assert f"resuming {copied_run} from step 6" in result.err
    assert "changed since the run began: train.length: 6it -> 8it" in result.err
    steps = [json.loads(line)["step"] for line in (copied_run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [6, 6, 8, 8], "training and evaluation, twice"


# --- eval -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [[], ["--checkpoint", "last"], ["--checkpoint", None]])
def test_eval(opabinia: Opabinia, copied_run: Path, checkpoint: list[str | None]) -> None:
    path = copied_run / "checkpoints" / "step-00000006"
    result = opabinia("eval", copied_run, *(path if word is None else word for word in checkpoint))
    assert result.status == 0, result.err
    for name, value in scores(copied_run).items():
        assert re.search(rf"{name}\W+{value:.4f}", result.out)
    assert str(copied_run) in result.out
    scores_file = json.loads((copied_run / "eval" / "val" / "scores.json").read_text())
    about = {"data": "digits, split val", "samples": 360, "checkpoint": path.name, "weights": "raw", "overrides": []}
    assert scores_file == {**about, **scores(copied_run)}


def test_eval_with_confidence_intervals(opabinia: Opabinia, copied_run: Path) -> None:
    result = opabinia("eval", copied_run, "--confidence-intervals")
    assert result.status == 0 and re.search(r"val/top1\W+0\.\d{4} \(95 %: 0\.\d{4} to 0\.\d{4}\)", result.out), (
        result.err
    )
    scores_file = json.loads((copied_run / "eval" / "val" / "scores.json").read_text())
    assert scores_file["val/top1_ci_low"] < scores_file["val/top1"] < scores_file["val/top1_ci_high"]
    assert scores_file["overrides"] == []
    interval = json.loads((copied_run / "eval" / "val" / "details.json").read_text())["confidence"]["top1"]
    assert (interval["unit"], interval["count"], interval["level"]) == ("images", 360, 0.95)


def test_eval_on_other_data(opabinia: Opabinia, copied_run: Path, tmp_path: Path) -> None:
    """Scores of other data have their own name and do not replace those of the validation set."""
    assert opabinia("eval", copied_run).status == 0
    before = contents(copied_run / "eval" / "val")
    assert_rejected(
        opabinia("eval", copied_run, "data.val.source.split=train"), "would replace the scores", "--name", "--data PATH"
    )
    result = opabinia("eval", copied_run, "data.val.source.split=train", "--name", "seen", "evaluate.batch_size=500")
    assert result.status == 0
    scores_file = json.loads((copied_run / "eval" / "seen" / "scores.json").read_text())
    assert scores_file["samples"] == 1437 and scores_file["data"] == "digits, split train"
    assert (scores_file["seen/top1"] * 1437) % 1 == pytest.approx(0, abs=1e-9), "a fraction of 1,437 digits"
    for folder, gray in (("known", 0), ("other", 255)):
        for name in "0123456789":
            (tmp_path / folder / name).mkdir(parents=True)
            Image.new("L", (8, 8), gray).save(tmp_path / folder / name / "1.png")
    source = f"data.val.source={{name: image_folder, root: '{tmp_path / 'known'}', channels: 1}}"
    result = opabinia("eval", copied_run, source, "--data", tmp_path / "other", "--json")
    assert result.status == 0 and json.loads(result.out)["scores"]["other/top1"] == pytest.approx(0.1)
    scores_file = json.loads((copied_run / "eval" / "other" / "scores.json").read_text())
    assert scores_file["samples"] == 10 and scores_file["data"] == f"image_folder, root {tmp_path / 'other'}"
    assert contents(copied_run / "eval" / "val") == before
    report = opabinia("report", copied_run, "--no-images")
    page = (copied_run / "report.html").read_text()
    assert report.status == 0 and "Data of these scores" in page and scores_file["data"] in page


def test_further_evaluators_by_name(opabinia: Opabinia, copied_run: Path) -> None:
    evaluators = ["--evaluator", "collapse", "--evaluator", "knn", "evaluate.evaluators.knn.evaluator.k=3"]
    result = opabinia("eval", copied_run, *evaluators)
    assert result.status == 0 and "val/knn_top1" in result.out, result.err
    scores_file = json.loads((copied_run / "eval" / "val" / "scores.json").read_text())
    names = {"val/top1", "val/spread", "val/rank", "val/uniformity", "val/knn_top1", "val/knn_top5"}
    assert names <= scores_file.keys() and 0.1 < scores_file["val/knn_top1"] < 1


# --- user errors: exit status 2, a message and no traceback -----------------------------------------------------------


def assert_rejected(result: CommandResult, *messages: str) -> None:
    assert result.status == 2
    for message in messages:
        assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_all_errors_of_a_config_are_reported(opabinia: Opabinia, tmp_path: Path) -> None:
    result = opabinia("train", RECIPE, "optimiser=sgd", "data.batch_size=0", "train.length=5", "--out", tmp_path)
    assert_rejected(result, "optimiser", "did you mean 'optimizer'?", "data.batch_size", "train.length", "12ep")
    assert len(result.err.splitlines()) == 3
    assert not list(tmp_path.iterdir()), "a run that did not start leaves no files"


def test_a_missing_gpu_is_reported(opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = opabinia("train", RECIPE, "train.device=cuda", "--out", tmp_path)
    assert_rejected(result, "train.device: 'cuda' is not available", "use 'cpu' or 'auto'")


def test_without_arguments_help_is_shown(opabinia: Opabinia) -> None:
    result = opabinia()
    assert result.status == 2
    assert "Usage" in result.out + result.err


def test_a_crash_shows_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Python then exits with status 1."""
    monkeypatch.setattr("opabinia.training.launch.train", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", RECIPE, "--out", str(tmp_path)])


# --- config show --origin ---------------------------------------------------------------------------------------------


def test_the_origin_of_every_value_is_shown(opabinia: Opabinia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = opabinia("config", "show", "--origin", RECIPE, "seed=7", "optimizer.lr=0.5")
    assert result.status == 0
    golden = (ROOT / "tests" / "golden" / "configs" / f"{RECIPE}.txt").read_text(encoding="utf-8").splitlines()
    lines = [re.fullmatch(r"(\S+): (.*\S) +# (.*)", line) for line in result.out.splitlines()]
    assert all(lines)
    shown = [line.groups() for line in lines if line]
    assert [path for path, _, _ in shown] == [line.split(":")[0] for line in golden]
    recipe = f"opabinia/recipes/{RECIPE}.yaml"
    recipe_lines = (ROOT / recipe).read_text(encoding="utf-8").splitlines()
    for path, value, origin in shown:
        if path in ("seed", "optimizer.lr"):
            assert origin == f"command line: {path}={value}"
            continue
        assert f"{path}: {value}" in golden
        if origin != "signature's default":
            file, number = origin.split(":")
            assert file == recipe
            key = [key for key in path.split(".") if not key.isdigit()][-1]
            assert f"{key}:" in recipe_lines[int(number) - 1]
    assert {origin for _, _, origin in shown} >= {"signature's default", f"{recipe}:7"}


def test_names_of_files_that_are_not_utf8_are_printed_and_written(
    opabinia: Opabinia, six_steps: Path, tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    names = [os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/images/a\xff.png", b"/images/b\xfe.png")]
    Image.new("L", (8, 8)).save(names[0])
    Path(names[1]).write_bytes(b"no image")
    result = opabinia("predict", six_steps, tmp_path / "images", "--out", tmp_path / "out")
    assert result.status == 2 and "a\\udcff.png  " in result.out
    assert "b\\udcfe.png cannot be decoded" in result.err and "Traceback" not in result.err
    (line,) = (tmp_path / "out/predictions.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == names[0]
