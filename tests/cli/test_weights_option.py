"""Commands on a recipe with weights from a file, without a run and without training data."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from PIL import Image

from opabinia import ConfigError, load
from opabinia.cli.weights import open_run
from opabinia.inference import export
from opabinia.inference.load import RunModel
from opabinia.inference.serving import server
from opabinia.training.imported_weights import import_weights
from opabinia.training.run_folder import resolve
from tests.cli.conftest import SIX_STEPS, CommandResult

Opabinia = Callable[..., CommandResult]
RECIPE = "classification/digits"
TIMM = ["task.backbone={name: timm, model: test_resnet}", "train.device=cpu"]
DIGITS = [str(number) for number in range(10)]


@pytest.fixture
def weights(six_steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The weights of a run as a file outside of it; the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    checkpoint = (six_steps / "checkpoints" / "last").read_text().strip()
    return Path(
        shutil.copy(six_steps / "checkpoints" / checkpoint / "model.safetensors", tmp_path / "mine.safetensors")
    )


def test_eval_extract_and_predict_of_a_file(opabinia: Opabinia, weights: Path, six_steps: Path, tmp_path: Path) -> None:
    changes = [change for change in SIX_STEPS if change.partition(".")[0] in ("task", "data", "train")]
    result = opabinia("eval", RECIPE, "--weights", weights, *changes, "--json")
    assert result.status == 0, result.err
    scores = json.loads((six_steps / "results.json").read_text())
    assert json.loads(result.out)["scores"] == pytest.approx(scores)
    (folder,) = (tmp_path / "runs" / RECIPE).iterdir()
    assert folder.name.startswith("mine-")
    assert opabinia("extract", RECIPE, "--weights", weights, *changes).status == 0
    assert len(np.load(folder / "features" / "val" / "features.npy")) == 360
    Image.new("L", (8, 8), 200).save(tmp_path / "a.png")
    words = [word for change in changes for word in ("--set", change)]
    assert opabinia("predict", RECIPE, tmp_path / "a.png", "--weights", weights, *words).status == 0
    assert len((folder / "predictions" / "predictions.jsonl").read_text().splitlines()) == 1
    assert list((tmp_path / "runs" / RECIPE).iterdir()) == [folder], "the same file and config: the same folder"


def test_a_file_takes_variables_of_the_recipe(
    opabinia: Opabinia, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the config of the folder that is written, which has no ``vars``."""
    (tmp_path / "mine.yaml").write_text(
        f'base: {RECIPE}\nvars: {{workers: 1}}\ndata: {{num_workers: "${{vars.workers}}"}}'
    )
    Image.new("L", (8, 8), 200).save(tmp_path / "a.png")
    served: list[RunModel] = []
    monkeypatch.setattr(server, "serve", lambda model, listener, **options: served.append(model))
    exported: list[object] = []
    monkeypatch.setattr(export, "export", lambda *arguments, **options: exported.append(arguments))
    options = ["--weights", weights, "--set", "vars.workers=0", "--set", "train.device=cpu"]
    for words in (["predict", "mine.yaml", "a.png"], ["serve", "mine.yaml", "--port", "0"]):
        result = opabinia(*words, *options)
        assert result.status == 0, result.err
    for command in ("eval", "extract", "export"):
        result = opabinia(command, "mine.yaml", *(word for word in options if word != "--set"))
        assert result.status == 0, result.err
    (folder,) = (tmp_path / "runs" / "mine").iterdir()
    assert resolve(folder).config["data"]["num_workers"] == 0
    assert served[0].run == folder.relative_to(tmp_path) and served[0].load().classes == tuple(DIGITS)
    assert exported == [(served[0].run, None, [])]


@torch.no_grad()
def test_weights_of_timm_have_the_outputs_of_timm(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = timm.create_model("test_resnet", num_classes=10).eval()
    torch.save({"state_dict": net.state_dict()}, tmp_path / "net.pth")
    # The training data is not opened and need not exist.
    predictor = load(RECIPE, [*TIMM, "data.train.source={name: image_folder, root: nix}"], weights=tmp_path / "net.pth",
                     classes=DIGITS)  # fmt: skip
    image = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
    sample = predictor.sample(image)
    normalized = predictor.task.get_submodule("normalize")(sample["image"][None])
    torch.testing.assert_close(predictor(image)["logits"], net(normalized)[0], atol=1e-5, rtol=1e-5)


def test_incomplete_weights_are_rejected(tmp_path: Path) -> None:
    net = timm.create_model("test_resnet", num_classes=7, in_chans=1)
    torch.save(net.state_dict(), tmp_path / "net.pth")
    with pytest.raises(ConfigError, match=r"2 parameters not filled.*head\.\S+weight.*init\.partial=true"):
        load(RECIPE, TIMM, weights=tmp_path / "net.pth")
    load(RECIPE, [*TIMM, "init.partial=true"], weights=tmp_path / "net.pth")
    with pytest.raises(ConfigError, match=r"the number of classes is unknown(.|\n)*--classes FILE(.|\n)*nix"):
        missing = "{name: image_folder, root: nix}"
        load(
            RECIPE, [*TIMM, f"data.train.source={missing}", f"data.val.source={missing}"], weights=tmp_path / "net.pth"
        )


def test_class_names_are_read_from_a_file(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("\n".join(DIGITS))
    folder, selected, changes = open_run(RECIPE, SIX_STEPS, str(weights), tmp_path / "classes.txt")
    assert (selected, changes) == ("raw", []) and load(folder).classes == tuple(DIGITS)
    assert import_weights(RECIPE, SIX_STEPS, weights, classes=DIGITS) == folder.relative_to(".")


TRAIN = ["train", "detection/digits", "train.device=cpu", "data.num_workers=0"]
OFFLINE = "hf:nobody/model: model.safetensors is not in the cache, and HF_HUB_OFFLINE is set; download https://"


@pytest.mark.parametrize(
    "cases",
    [
        [
            (["predict", RECIPE, "a.png", "--weights", "hf:nobody/model"], f"--weights: {OFFLINE}"),
            ([*TRAIN, "task.tiles={}", "task.tiles.overlap=1"], "task.tiles.overlap: expected a number >= 0 and < 1"),
        ],
        pytest.param(
            [
                ([*TRAIN, "init.weights=hf:nobody/model"], f"init: {OFFLINE}"),
                (
                    [*TRAIN, "init.weights=other.pth"],
                    "init: other.pth: 51 of 84 tensors of the backbone are not filled",
                ),
                ([*TRAIN, "task.tiles={size: 31}"], "tiles.size: 31 is below 32, the detector's smallest image side"),
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["before", "after the model is built"],
)
def test_invalid_weights_and_tiles_are_errors_without_traceback(
    opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: list[tuple[list[str], str]]
) -> None:
    """The messages name the key, the value and the valid values."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    torch.save(timm.create_model("test_resnet").state_dict(), "other.pth")
    Image.new("L", (8, 8)).save("a.png")
    for command, message in cases:
        result = opabinia(*command)
        assert result.status == 2 and message in result.err and "Traceback" not in result.err, result.err
        assert sum(line.startswith("error") for line in result.err.splitlines()) <= 1, result.err
    if "task.tiles={}" in command:
        assert "task.tiles.size: missing; an integer >= 1 is required" in result.err
