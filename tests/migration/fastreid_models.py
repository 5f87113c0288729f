"""Models of FastReID with weights that depend on their names alone, for the test and the script that writes its
fixture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from opabinia.config import build
from opabinia.contracts import DatasetInfo
from opabinia.models.weights.init import Init, initialize
from opabinia.training.run_folder import resolve

FIXTURE = Path(__file__).with_name("fastreid_features.json")
CLASSES = tuple("abcde")
REST = {
    "data": {"train": {"source": {"name": "digits"}}, "batch_size": 2},
    "optimizer": {"name": "sgd"},
    "train": {"length": "1it"},
}
"""The sections of a config other than the task, which are not built."""


def images() -> Tensor:
    """Two images in 0 to 1, of a size for which pooling with and without padding differs."""
    return torch.rand(2, 3, 97, 48, generator=torch.Generator().manual_seed(0))


def draw_weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    return {name: _draw(name, shape) for name, shape in shapes.items()}


def _draw(name: str, shape: Sequence[int]) -> Tensor:
    if not shape:
        return torch.tensor(0)
    if name.endswith(".p"):
        return torch.full(tuple(shape), 2.5)
    generator = torch.Generator().manual_seed(crc32(name.encode()))
    if len(shape) > 1:
        size = 0.01 if "NL_" in name else 1  # the product of three layers
        return size * torch.randn(*shape, generator=generator) / math.sqrt(math.prod(shape[1:]))
    uniform = torch.rand(*shape, generator=generator)
    return uniform - 0.5 if name.endswith(("bias", "mean")) else uniform + 0.5


@torch.no_grad()
def features(task: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Tensor:
    """Return the features (B x D) of our model with FastReID's weights, all of which must be used."""
    config = resolve({"task": task, **REST}).config
    sections = {name: config[name] for name in ("task", "train", "evaluate")}
    make = build(sections, None, "predictor").keywords["task"]
    model = make(DatasetInfo(samples=1, classes=CLASSES, cameras=2, queries=True)).eval()
    with TemporaryDirectory() as folder:
        torch.save({"model": weights}, Path(folder) / "model.pth")
        report = initialize(model, Init(weights=Path(folder) / "model.pth", strict=True))
    assert report.translated == "FastReID's names"
    features: Tensor = model.embed_and_classify(model.extract({"image": images()}))["embedding"]
    return features
