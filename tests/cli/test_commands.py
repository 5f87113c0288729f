"""The commands on a run of six steps: what they print, what they leave, and their exit status."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from opabinia.cli import main
from tests.cli.conftest import SIX_STEPS, Ended

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "classification/digits"
Opabinia = Callable[..., Ended]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def scores(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "results.json").read_text())
    return found


@pytest.fixture
def own_run(six_steps: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(six_steps, tmp_path / "classification" / "digits" / "default"))


# --- train ------------------------------------------------------------------------------------------------------------


def test_train(opabinia: Opabinia, tmp_path: Path) -> None:
    ended = opabinia("train", RECIPE, *SIX_STEPS, "train.length=2it", "--name", "short", "--out", tmp_path)
    folder = tmp_path / "classification" / "digits" / "short"
    assert ended.status == 0
    assert re.search(r"val/top1\W+0\.\d{4}", ended.out)
    assert f"{folder} (after its last step" in ended.out
    assert scores(folder).keys() >= {"val/top1", "val/top5"}
    assert (folder / "checkpoints" / "last").read_text() == "step-00000002\n"


def test_a_run_is_not_overwritten(opabinia: Opabinia, six_steps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(six_steps)
    monkeypatch.setattr("opabinia.training.launch.train", None)  # checked before torch is imported for the training
    ended = opabinia("train", RECIPE, "--out", six_steps.parents[2])
    assert ended.status == 2
    assert f"{six_steps} holds a run, which is never overwritten: --resume continues it" in ended.err
    assert contents(six_steps) == before


def test_a_finished_run_has_nothing_to_resume(opabinia: Opabinia, own_run: Path) -> None:
    """However it is named: by its recipe, by its folder, with its checkpoint."""
    checkpoint = own_run / "checkpoints" / "step-00000006"
    out = ["--out", own_run.parents[2]]
    for arguments in (
        [RECIPE, *SIX_STEPS, "--resume", *out],
        [RECIPE, "--resume", *SIX_STEPS, *out],
        ["--resume", RECIPE, *SIX_STEPS, *out],
        [RECIPE, *SIX_STEPS, *out, "--resume", checkpoint],
        [RECIPE, *SIX_STEPS, *out, f"--resume={checkpoint}"],
        [own_run, "--resume"],
        ["--resume", own_run],
    ):
        ended = opabinia("train", *arguments)
        assert ended.status == 0, ended.err
        assert f"{own_run} is finished: nothing to do" in ended.err
        assert f"{scores(own_run)['val/top1']:.4f}" in ended.out


def test_a_run_goes_on_where_it_was(opabinia: Opabinia, own_run: Path) -> None:
    ended = opabinia("train", own_run, "--resume", "train.length=8it")
    assert ended.status == 0
    assert f"resuming {own_run} from step 6" in ended.err
    assert "changed since the run began: train.length: 6it -> 8it" in ended.err
    steps = [json.loads(line)["step"] for line in (own_run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [6, 6, 8, 8], "training and evaluation, twice"


# --- eval -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [[], ["--checkpoint", "best"], ["--checkpoint", "last"], ["--checkpoint", None]])
def test_eval(opabinia: Opabinia, own_run: Path, checkpoint: list[str | None]) -> None:
    path = own_run / "checkpoints" / "step-00000006"
    ended = opabinia("eval", own_run, *(path if word is None else word for word in checkpoint))
    assert ended.status == 0, ended.err
    for name, value in scores(own_run).items():
        assert re.search(rf"{name}\W+{value:.4f}", ended.out)
    assert str(own_run) in ended.out
    written = json.loads((own_run / "eval" / "val" / "scores.json").read_text())
    about = {"data": "digits, split val", "samples": 360, "checkpoint": path.name, "weights": "raw", "overrides": []}
    assert written == {**about, **scores(own_run)}


def test_eval_on_other_data(opabinia: Opabinia, own_run: Path, tmp_path: Path) -> None:
    """Its scores have their own name, those of the validation set stay."""
    assert opabinia("eval", own_run).status == 0
    before = contents(own_run / "eval" / "val")
    refused(
        opabinia("eval", own_run, "data.val.source.split=train"), "would replace the scores", "--name", "--data PATH"
    )
    ended = opabinia("eval", own_run, "data.val.source.split=train", "--name", "seen", "evaluate.batch_size=500")
    assert ended.status == 0
    written = json.loads((own_run / "eval" / "seen" / "scores.json").read_text())
    assert written["samples"] == 1437 and written["data"] == "digits, split train"
    assert (written["seen/top1"] * 1437) % 1 == pytest.approx(0, abs=1e-9), "a share of 1,437 digits"
    for folder, gray in (("known", 0), ("other", 255)):
        for name in "0123456789":
            (tmp_path / folder / name).mkdir(parents=True)
            Image.new("L", (8, 8), gray).save(tmp_path / folder / name / "1.png")
    source = f"data.val.source={{name: image_folder, root: '{tmp_path / 'known'}', channels: 1}}"
    ended = opabinia("eval", own_run, source, "--data", tmp_path / "other", "--json")
    assert ended.status == 0 and json.loads(ended.out)["scores"]["other/top1"] == pytest.approx(0.1)
    written = json.loads((own_run / "eval" / "other" / "scores.json").read_text())
    assert written["samples"] == 10 and written["data"] == f"image_folder, root {tmp_path / 'other'}"
    assert contents(own_run / "eval" / "val") == before
    report = opabinia("report", own_run, "--no-images")
    page = (own_run / "report.html").read_text()
    assert report.status == 0 and "Data of these scores" in page and written["data"] in page


# --- mistakes leave with status 2, a message and no traceback ---------------------------------------------------------


def refused(ended: Ended, *messages: str) -> None:
    assert ended.status == 2
    for message in messages:
        assert message in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_all_mistakes_in_a_config_are_reported(opabinia: Opabinia, tmp_path: Path) -> None:
    ended = opabinia("train", RECIPE, "optimiser=sgd", "data.batch_size=0", "train.length=5", "--out", tmp_path)
    refused(ended, "optimiser", "did you mean 'optimizer'?", "data.batch_size", "train.length", "12ep")
    assert len(ended.err.splitlines()) == 3
    assert not list(tmp_path.iterdir()), "nothing is left of a run that did not begin"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "classification/digit"], "did you mean 'classification/digits'?"),
        (["train", "nowhere.yaml"], "nowhere.yaml: there is no such file"),
        (["train", RECIPE, "seed"], "an override is written key=value"),
        (["train", RECIPE, "--resume", "checkpoints/step-1"], "there is no run"),
        (["train", RECIPE, "task.backbone.model=resnet81"], "timm"),
        (["train", RECIPE, "optimizer=sgd", "optimizer.nesterov=true"], "Nesterov momentum requires"),
        (["train", RECIPE, "data.val.transforms.0.size=-1"], "Resize: RuntimeError: "),
        (["train", RECIPE, "checkpoint.best=val/top2"], "val/top2"),
        (["train", "classification/image_folder"], "data.train.source"),
        (["train", RECIPE, "train.num_threads=1000000"], "train.num_threads: expected an integer >= 1 and <= 1024"),
        (["train", RECIPE, "data.num_workers=100000"], "data.num_workers: expected an integer >= 0 and <= 1024"),
        (["train", RECIPE, "data.train.transforms=[{name: RandAugment, num_ops: 100000000}]"], "num_ops: expected an"),
        (["train", RECIPE, "task.std=[0]"], "task.std: every value must be above 0"),
        (["train", "x" * 300], "there is no such recipe"),
        (["train", "x" * 300, "--resume"], "the path is too long"),
        (["eval", "a/" * 3000], "the path is too long"),
        (["eval", "nowhere"], "there is no folder nowhere"),
        (["train"], "Missing argument 'RECIPE'"),
        (["train", RECIPE, "--nmae", "a"], "--nmae"),
        (["trian", RECIPE], "No such command 'trian'"),
    ],
)
def test_mistakes(
    opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(opabinia(*arguments), message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint", "step-1"], "step-1"),
        (["data.val=null"], "data.val: there is no data to evaluate on"),
        (["task.backbone.model=test_vit"], "the weights do not fit"),
    ],
)
def test_mistakes_in_an_evaluation(opabinia: Opabinia, six_steps: Path, arguments: list[str], message: str) -> None:
    refused(opabinia("eval", six_steps, *arguments), message)


def test_a_gpu_that_is_not_there(opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    ended = opabinia("train", RECIPE, "train.device=cuda", "--out", tmp_path)
    refused(ended, "train.device: 'cuda' is not available", "use 'cpu' or 'auto'")


def test_a_broken_image(opabinia: Opabinia, tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (40, 40)).save(tmp_path / split / name / "1.png")
    broken = tmp_path / "train" / "dog" / "1.png"
    broken.write_bytes(broken.read_bytes()[:50])
    ended = opabinia("train", "classification/image_folder", f"vars.root={tmp_path}", *SIX_STEPS, "--out", tmp_path)
    assert (ended.status, ended.out) == (2, "")
    assert str(broken) in ended.err
    assert "Traceback" not in ended.err


def test_without_arguments_help_is_shown(opabinia: Opabinia) -> None:
    ended = opabinia()
    assert ended.status == 2
    assert "Usage" in ended.out + ended.err


def test_a_crash_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Python exits with status 1 then."""
    monkeypatch.setattr("opabinia.training.launch.train", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", RECIPE, "--out", str(tmp_path)])


# --- config show --origin ---------------------------------------------------------------------------------------------


def test_the_origin_of_every_value_is_shown(opabinia: Opabinia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    ended = opabinia("config", "show", "--origin", RECIPE, "seed=7", "optimizer.lr=0.5")
    assert ended.status == 0
    golden = (ROOT / "tests" / "golden" / "configs" / f"{RECIPE}.txt").read_text(encoding="utf-8").splitlines()
    lines = [re.fullmatch(r"(\S+): (.*\S) +# (.*)", line) for line in ended.out.splitlines()]
    assert all(lines)
    shown = [line.groups() for line in lines if line]
    assert [path for path, _, _ in shown] == [line.split(":")[0] for line in golden]
    recipe = f"opabinia/recipes/{RECIPE}.yaml"
    written = (ROOT / recipe).read_text(encoding="utf-8").splitlines()
    for path, value, origin in shown:
        if path in ("seed", "optimizer.lr"):
            assert origin == f"command line: {path}={value}"
            continue
        assert f"{path}: {value}" in golden
        if origin != "signature's default":
            file, number = origin.split(":")
            assert file == recipe
            key = [key for key in path.split(".") if not key.isdigit()][-1]
            assert f"{key}:" in written[int(number) - 1]
    assert {origin for _, _, origin in shown} >= {"signature's default", f"{recipe}:7"}


def test_names_of_files_that_are_not_utf8_are_printed_and_written(
    opabinia: Opabinia, six_steps: Path, tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    names = [os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/images/a\xff.png", b"/images/b\xfe.png")]
    Image.new("L", (8, 8)).save(names[0])
    Path(names[1]).write_bytes(b"no image")
    ended = opabinia("predict", six_steps, tmp_path / "images", "--out", tmp_path / "out")
    assert ended.status == 2 and "a\\udcff.png  " in ended.out
    assert "b\\udcfe.png cannot be decoded" in ended.err and "Traceback" not in ended.err
    (line,) = (tmp_path / "out/predictions.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == names[0]
