"""Runs built in Python are written as configs, so that every command works on their folders."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms import v2

import opabinia
from opabinia import Checkpointing, Data, Duration, Evaluation, Stream, Training, TrainingRun, ValidationStream
from opabinia.config import ConfigError, register
from opabinia.data.sources import Digits
from opabinia.tasks.classification import Classification
from opabinia.training.run_folder import resolve

MODULE = '''
from torch import Tensor, nn
import opabinia


@opabinia.register.backbone
class OneConvolution(nn.Module):
    """A network that does not depend on Opabinia.

    Args:
        width: its channels.
    """

    def __init__(self, channels: int, /, *, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.conv(images).relu()
'''


def make_run(backbone: Any, **changes: Any) -> TrainingRun:
    shrink = v2.Resize(6)
    run = TrainingRun(
        task=partial(Classification, backbone=backbone),
        data=Data(
            train=Stream(source=Digits(split="train"), transforms=[shrink, v2.RandomAffine(10)]),
            val=ValidationStream(source=Digits(split="val"), transforms=[shrink]),
            batch_size=64,
        ),
        optimizer=partial(torch.optim.SGD, lr=0.05),
        train=Training(length=Duration(2, "it"), device="cpu"),
        evaluate=Evaluation(every=Duration(1, "it")),
        checkpoint=Checkpointing(every=Duration(1, "it"), keep=1, best="val/nll"),
        loggers=[],
        seed=0,
    )
    return replace(run, **changes)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "one_convolution.py").write_text(MODULE, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield importlib.import_module("one_convolution").OneConvolution
    sys.path.remove(str(folder))
    # A process may be given a test of this module again, after those of another: then the module is imported anew.
    del register.entries["backbone"]["one_convolution"], sys.modules["one_convolution"]


@pytest.fixture(scope="module")
def finished(network: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    return opabinia.train(make_run(partial(network, width=4)), out=tmp_path_factory.mktemp("runs"), name="digits")


def test_the_run_folder_works_with_every_command(finished: tuple[Path, dict[str, float]]) -> None:
    folder, scores = finished
    assert folder.name == "digits"
    config = resolve(folder).config
    assert config["task"]["backbone"] == {"name": "one_convolution", "width": 4}
    assert config["data"]["val"]["transforms"][0]["name"] == "Resize"
    assert config["plugins"] == ["one_convolution"]
    assert opabinia.evaluate(folder, checkpoint="last") == scores
    assert opabinia.load(folder)(Digits()[0]["image"]).readable["top"][0]["class"] in "0123456789"
    assert "registered" not in (folder / "train.log").read_text()


def test_a_run_is_resumed_with_or_without_its_objects(
    network: Any, finished: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    folder, _ = finished
    opabinia.train(folder, ["train.length=3it"], resume="last")
    rebuilt, longer = make_run(partial(network, width=4)), ["train.length=4it"]
    _, resumed = opabinia.train(rebuilt, longer, out=folder.parent, name="digits", resume="last")
    _, uninterrupted = opabinia.train(rebuilt, longer, out=tmp_path)
    assert resumed == uninterrupted
    # The last checkpoint became the best after it was saved, and the previous one was deleted.
    assert "is gone" not in (folder / "train.log").read_text()


def test_local_parts_train_with_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Local(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.net = nn.Flatten()
            self.num_features = 36 * channels

        def forward(self, images: Tensor) -> Tensor:
            vectors: Tensor = self.net(images)
            return vectors

    folder, _ = opabinia.train(make_run(lambda channels: Local(channels)), out=tmp_path)
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "registered" in line]
    assert warning.startswith("task.backbone (") and "@opabinia.register.backbone" in warning
    assert opabinia.load(folder)(Digits()[0]["image"]).readable["top"]
    name = resolve(folder).config["task"]["backbone"]["name"]
    del register.entries["backbone"][name]  # as in another process
    with pytest.raises(ConfigError, match=r"task.backbone.name: there is no backbone of this name .* in plugins"):
        opabinia.load(folder)
