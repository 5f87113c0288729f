"""The Python that README and docs/ show runs as it stands there; of values that it takes for granted there are some."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from opabinia import load
from opabinia.contracts import Clock
from tests.cli.conftest import Ended
from tests.docs.examples_data import CPU
from tests.docs.pages import blocks

SHOWN = {block.name: block.text for block in blocks("python")}
FILES = {"README.md-2", "docs/configs.md-1", "docs/configs.md-2"}
"""Modules with parts of one's own, which other tests must not see: they are used by programs of their own."""


def needs(library: str) -> None:
    pytest.importorskip(library, reason=f"{library} is absent")


def judged(place: Path, **_: Any) -> dict[str, Any]:
    """An annotation file, and what is in it as results."""
    ground_truth = json.loads((place / "path/to/data/annotations/instances_val.json").read_text(encoding="utf-8"))
    (place / "annotations.json").write_text(json.dumps(ground_truth), encoding="utf-8")
    things = [{**one, "score": 0.5} for one in ground_truth["annotations"] if isinstance(one["segmentation"], dict)]
    (place / "results.json").write_text(json.dumps(things), encoding="utf-8")
    return {}


def frames(**_: Any) -> dict[str, Any]:
    return {"frame": np.zeros((48, 64, 3), np.uint8), "other": np.zeros((64, 64, 3), np.uint8)}


def exported(opabinia: Callable[..., Ended], **_: Any) -> dict[str, Any]:
    needs("onnx")
    needs("onnxruntime")
    needs("onnxscript")
    assert opabinia("export", CLASSIFIER, "--out", "model.onnx").status == 0
    return {"images": np.zeros((5, 1, 32, 32), np.uint8)}


def exported_by_torch(opabinia: Callable[..., Ended], **_: Any) -> dict[str, Any]:
    assert opabinia("export", CLASSIFIER, "--format", "torch", "--out", "model.pt2").status == 0
    return {"images": torch.zeros((5, 1, 32, 32), dtype=torch.uint8)}


def embeddings(**_: Any) -> dict[str, Any]:
    """Four identities, each seen by three cameras, the first of which asks."""
    random = np.random.default_rng(0)
    ids, cameras = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    features = np.eye(4, 8)[ids] + 0.1 * random.standard_normal((12, 8))
    asks = cameras == 0
    names = {"features": features, "ids": ids}
    for name, rows in (("query", asks), ("gallery", ~asks)):
        names |= {name: features[rows], f"{name}_ids": ids[rows], f"{name}_cameras": cameras[rows]}
    return names


def learning(**_: Any) -> dict[str, Any]:
    """A task and a batch for it."""
    task = load("runs/reid/digits/default").task.train()
    batch = {
        "image": torch.zeros(4, 1, 32, 16, dtype=torch.uint8),
        "label": torch.tensor([0, 0, 1, 1]),
        "id": list("abcd"),
    }
    return {"task": task, "batch": batch, "clock": Clock()}


class Prepared(NamedTuple):
    """What a block needs: runs, and a function that gives the names it takes for granted."""

    runs: tuple[str, ...] = ()
    names: Callable[..., dict[str, Any]] = lambda **_: {}


CLASSIFIER = "runs/classification/digits/default"
PREPARED = {
    "README.md-1": Prepared((CLASSIFIER,)),
    "docs/detection.md-1": Prepared(names=judged),
    "docs/detection.md-2": Prepared(("runs/detection/digits/default",), frames),
    "docs/export.md-1": Prepared((CLASSIFIER,), exported),
    "docs/export.md-2": Prepared((CLASSIFIER,), exported_by_torch),
    "docs/reid.md-1": Prepared(names=embeddings),
    "docs/reid.md-2": Prepared(("runs/reid/digits/default",), learning),
}
TAKE_LONG = {"docs/export.md-1", "docs/export.md-2"}
RUNNABLE = [
    pytest.param(name, marks=pytest.mark.slow) if "export" in name else name for name in SHOWN if name not in FILES
]


@pytest.mark.parametrize("name", RUNNABLE)
def test_it_runs(name: str, place: Callable[..., Path], opabinia: Callable[..., Ended]) -> None:
    prepared = PREPARED[name]
    folder = place(*prepared.runs)
    exec(compile(SHOWN[name], name, "exec"), prepared.names(place=folder, opabinia=opabinia))


@pytest.mark.slow
def test_parts_of_ones_own_are_trained_with(place: Callable[..., Path]) -> None:
    """Those of docs/configs.md, all at once; that of README stands in a command."""
    folder = place()
    (folder / "own_parts.py").write_text(SHOWN["docs/configs.md-1"] + SHOWN["docs/configs.md-2"], encoding="utf-8")
    overrides = ["plugins=[own_parts]", "task.loss={name: my_focal, gamma: 1}", "hooks.shout={every: 1}"]
    overrides += [f"data.{section}.source={{name: squares, n: 64}}" for section in ("train", "val")]
    words = ["train", "classification/digits", *overrides, "train.length=2it", *CPU]
    done = subprocess.run([sys.executable, "-m", "opabinia", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "50% done" in done.stdout


def test_every_block_is_run() -> None:
    assert PREPARED.keys() | FILES == SHOWN.keys()
