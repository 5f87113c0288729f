"""The Python code of README and docs/ runs as written; names that it presupposes are defined here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia import fit, load, register
from opabinia.contracts import Clock
from opabinia.inference.fit import FittedRun
from tests.cli.conftest import CommandResult
from tests.docs.examples_data import CPU
from tests.docs.pages import blocks

CODE = {block.name: block.text for block in blocks("python")}
OWN_NETWORK = ("docs/api/python.md-1", "docs/api/python.md-2")
PLUGINS = {"docs/extending.md-1", "docs/extending.md-2", "docs/extending.md-3", *OWN_NETWORK}
"""Modules that register parts, which other tests must not see: they run in their own process."""


def needs(library: str) -> None:
    pytest.importorskip(library, reason=f"{library} is absent")


def annotation_files(folder: Path, **_: Any) -> dict[str, Any]:
    """An annotation file, and its objects as results."""
    ground_truth = json.loads((folder / "path/to/data/annotations/instances_val.json").read_text(encoding="utf-8"))
    (folder / "annotations.json").write_text(json.dumps(ground_truth), encoding="utf-8")
    objects = [
        {**annotation, "score": 0.5}
        for annotation in ground_truth["annotations"]
        if isinstance(annotation["segmentation"], dict)
    ]
    (folder / "results.json").write_text(json.dumps(objects), encoding="utf-8")
    return {}


def frames(**_: Any) -> dict[str, Any]:
    return {"frame": np.zeros((48, 64, 3), np.uint8), "other": np.zeros((64, 64, 3), np.uint8)}


def exported(opabinia: Callable[..., CommandResult], **_: Any) -> dict[str, Any]:
    needs("onnx")
    needs("onnxruntime")
    needs("onnxscript")
    assert opabinia("export", CLASSIFIER, "--out", "model.onnx").status == 0
    return {"images": np.zeros((5, 1, 32, 32), np.uint8)}


def exported_by_torch(opabinia: Callable[..., CommandResult], **_: Any) -> dict[str, Any]:
    assert opabinia("export", CLASSIFIER, "--format", "torch", "--out", "model.pt2").status == 0
    return {"images": torch.zeros((5, 1, 32, 32), dtype=torch.uint8)}


def embeddings(**_: Any) -> dict[str, Any]:
    """Four identities in images of three cameras; images of the first camera are queries."""
    random = np.random.default_rng(0)
    ids, cameras = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    features = np.eye(4, 8)[ids] + 0.1 * random.standard_normal((12, 8))
    queries = cameras == 0
    names = {"features": features, "ids": ids}
    for name, rows in (("query", queries), ("gallery", ~queries)):
        names |= {name: features[rows], f"{name}_ids": ids[rows], f"{name}_cameras": cameras[rows]}
    return names


def training_batch(**_: Any) -> dict[str, Any]:
    """A task in training mode and a batch for it."""
    task = load("runs/reid/digits/default").task.train()
    batch = {
        "image": torch.zeros(4, 1, 32, 16, dtype=torch.uint8),
        "label": torch.tensor([0, 0, 1, 1]),
        "id": list("abcd"),
    }
    return {"task": task, "batch": batch, "clock": Clock()}


def exported_to_openvino(opabinia: Callable[..., CommandResult], **_: Any) -> dict[str, Any]:
    needs("openvino")
    needs("onnx")
    run = "runs/detection/digits/default"
    assert opabinia("export", run, "--format", "openvino", "--out", "openvino").status == 0
    return {"images": np.zeros((1, 1, 128, 128), np.uint8), "sizes": np.array([[128, 128]])}


def without_scenes(folder: Path, **_: Any) -> dict[str, Any]:
    (folder / "scenes").unlink()  # a link to files that other tests read
    return {}


def without_crossings(folder: Path, **_: Any) -> dict[str, Any]:
    (folder / "crossings").unlink()
    return {}


def quick_fit(folder: Path, **_: Any) -> dict[str, Any]:
    """The package with a ``fit`` that measures and trains a few steps only, and an image for its predictor."""
    Image.fromarray(np.zeros((48, 64, 3), np.uint8)).save(folder / "new.jpg")
    quick = ["train.length=2it", "data.batch_size=4", "data.num_workers=0", "evaluate.every=2it"]

    def fit_quickly(data: str, **options: Any) -> FittedRun:
        with patch("opabinia.training.autoconfig.probe.MOST_STEPS", 2):
            return fit(data, overrides=quick, out=folder / "fit", **options)

    return {"opabinia": SimpleNamespace(fit=fit_quickly)}


def exported_folder(opabinia: Callable[..., CommandResult], **_: Any) -> dict[str, Any]:
    assert opabinia("export", CLASSIFIER, "--format", "huggingface", "--out", "digits").status == 0
    return {}


class Setup(NamedTuple):
    """Runs that a block needs, and a function that returns the names it presupposes."""

    runs: tuple[str, ...] = ()
    names: Callable[..., dict[str, Any]] = lambda **_: {}


CLASSIFIER = "runs/classification/digits/default"
SETUPS = {
    "README.md-1": Setup(names=quick_fit),
    "docs/detection.md-1": Setup(("runs/detection/digits/default",), frames),
    "docs/detection.md-2": Setup(names=annotation_files),
    "docs/getting_started.md-1": Setup(("runs/clothes/default",)),
    "docs/tutorials/detection.md-1": Setup(("runs/detection/bccd/default",)),
    "docs/tutorials/segmentation.md-1": Setup(names=without_scenes),
    "docs/tutorials/segmentation.md-2": Setup(("runs/scenes/default",)),
    "docs/tutorials/tracking.md-1": Setup(names=without_crossings),
    "docs/export.md-1": Setup((CLASSIFIER,), exported),
    "docs/export.md-2": Setup((CLASSIFIER,), exported_by_torch),
    "docs/export.md-3": Setup(("runs/detection/digits/default",), exported_to_openvino),
    "docs/export.md-4": Setup((CLASSIFIER,), exported_folder),
    "docs/inference.md-1": Setup((CLASSIFIER,)),
    "docs/inference.md-2": Setup(("runs/reid/digits/default",), training_batch),
    "docs/planning.md-1": Setup(names=quick_fit),
    "docs/reid.md-1": Setup(names=embeddings),
    "docs/splits.md-1": Setup(),
    "docs/segmentation.md-1": Setup(("runs/segmentation/digits/default",)),
    "docs/tracking.md-1": Setup(("runs/detection/digits/default", "runs/reid/digits/default")),
    "docs/tracking.md-2": Setup(),
    "docs/tracking.md-3": Setup(),
    "docs/tracking.md-4": Setup(),
}
RUNNABLE = [
    pytest.param(name, marks=pytest.mark.slow) if re.search("export|getting_started|tutorials", name) else name
    for name in CODE
    if name not in PLUGINS
]


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_code_runs(name: str, workspace: Callable[..., Path], opabinia: Callable[..., CommandResult]) -> None:
    setup = SETUPS[name]
    folder = workspace(*setup.runs)
    exec(compile(CODE[name], name, "exec"), setup.names(folder=folder, opabinia=opabinia))


def test_a_custom_network_is_trained(workspace: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workspace()
    (folder / "my_network.py").write_text(CODE[OWN_NETWORK[0]], encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    names: dict[str, Any] = {}
    exec(compile(CODE[OWN_NETWORK[1]], OWN_NETWORK[1], "exec"), names)
    assert names["scores"]["val/top1"] > 0.5
    del register.entries["backbone"]["small_net"], sys.modules["my_network"]


@pytest.mark.slow
def test_custom_parts_are_trained(workspace: Callable[..., Path]) -> None:
    """All parts of docs/extending.md at once, but for the first, which is used in a command."""
    folder = workspace()
    (folder / "own_parts.py").write_text(CODE["docs/extending.md-2"] + CODE["docs/extending.md-3"], encoding="utf-8")
    overrides = ["plugins=[own_parts]", "task.loss={name: my_focal, gamma: 1}", "hooks.print_progress={every: 1}"]
    overrides += [f"data.{section}.source={{name: squares, n: 64}}" for section in ("train", "val")]
    words = ["train", "classification/digits", *overrides, "train.length=2it", *CPU]
    result = subprocess.run([sys.executable, "-m", "opabinia", *words], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "50% done" in result.stdout


def test_every_block_is_run() -> None:
    assert SETUPS.keys() | PLUGINS == CODE.keys()
