"""Layers by short names, and one row of each for a sample."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.config import ConfigError
from opabinia.contracts import DataMismatch, Task
from opabinia.inference.layer_names import LayerFeatures, resolve_layer_names


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer2(self.layer1(x))
        return out


class Plain(Task):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Sequential(Block()), nn.Linear(2, 3)

    def predict(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {"logits": self.head(self.backbone(batch["image"]))}

    def features(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {"embedding": self.backbone(batch["image"])}


class Momentum(Task):
    """Measured is the teacher's backbone, without its projector."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.projector = Block(), nn.Linear(2, 3)
        self.teacher = nn.ModuleDict({"backbone": Block(), "projector": nn.Linear(2, 3)})
        self.predictor = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    predicts_embedding_only = True

    @property
    def trunk(self) -> nn.Module:
        return self.teacher["backbone"]

    def predict(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {"embedding": self.trunk(batch["image"])}


BATCH = {"image": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "id": ["a", "b"]}


def test_short_names() -> None:
    names = ["trunk", "head", "layer1", "backbone.0.layer2", "backbone"]
    assert resolve_layer_names(Plain(), names) == {
        "trunk": "backbone",
        "head": "head",
        "layer1": "backbone.0.layer1",
        "backbone.0.layer2": "backbone.0.layer2",
        "backbone": "backbone",
    }


def test_of_a_momentum_method_they_are_those_of_what_is_measured() -> None:
    assert resolve_layer_names(Momentum(), ["trunk", "head", "layer2", "projector", "predictor"]) == {
        "trunk": "teacher.backbone",
        "head": "teacher.projector",
        "layer2": "teacher.backbone.layer2",
        "projector": "projector",
        "predictor": "predictor",
    }


class Twins(Task):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Block(), Block()
        self.shared = self.left.layer2


@pytest.mark.parametrize(
    ("task", "name", "message"),
    [
        (Plain(), "layer3", r"--layers: there is no layer 'layer3'; similar: layer\d, layer\d"),
        (Plain(), "backbone.0.layer22", "similar: backbone.0.layer2, backbone.0.layer1"),
        (Plain(), "projector", "there is no layer 'projector'"),
        (Twins(), "layer1", "'layer1' is the end of several names; give one of: left.layer1, right.layer1"),
        (Twins(), "trunk", "there is no layer 'trunk'"),
        (Twins(), "head", "there is no layer 'head'"),
    ],
    ids=["missing", "misspelt", "projector", "several", "no trunk", "no head"],
)
def test_what_is_not_clear_is_reported(task: Task, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LayerFeatures(task, {"column": name})


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        resolve_layer_names(Twins(), ["nothing", "left", "layer1"])
    assert len(error.value.problems) == 2


@pytest.mark.parametrize("task", [Plain(), Momentum()], ids=["plain", "momentum"])
def test_a_head_is_asked_where_predicting_does_without(task: Any) -> None:
    found = LayerFeatures(task, {"h": "head", "t": "trunk", "e": "embedding"})(BATCH)
    trunk = task.backbone if isinstance(task, Plain) else task.trunk
    head = task.head if isinstance(task, Plain) else task.teacher["projector"]
    assert torch.equal(found["t"], trunk(BATCH["image"])) and torch.equal(found["e"], found["t"])
    assert torch.equal(found["h"], head(trunk(BATCH["image"])))
    full = resolve_layer_names(task, ["head"])["head"]
    alone = LayerFeatures(task, {"h": full})(BATCH)
    assert alone.keys() == {"h"} and torch.equal(alone["h"], found["h"]), "by its own name, too"


class Parts(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"a": x, "b": (x * 2, [x[:, :1, None] * 3])}


class Nested(Task):
    def __init__(self) -> None:
        super().__init__()
        self.parts, self.idle, self.total = Parts(), Parts(), nn.Flatten(0)

    def predict(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        self.parts(batch["image"] * 10)
        self.total(batch["image"])
        return {"given": self.parts(batch["image"])["a"]}


def test_what_a_layer_gives_becomes_one_row_a_sample() -> None:
    found = LayerFeatures(Nested(), {"parts": "parts"})(BATCH)["parts"]
    assert found.tolist() == [[10, 20, 20, 40, 30], [30, 40, 60, 80, 90]], "of its first call"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("idle", "does not use layer 'idle'"),
        ("total", "'total' does not output one row per sample"),
        ("embedding", "Nested has no embedding; name its layers"),
    ],
)
def test_layers_that_are_of_no_use_are_reported(name: str, message: str) -> None:
    with pytest.raises(DataMismatch, match=message):
        LayerFeatures(Nested(), {"column": name})(BATCH)


def test_nothing_needs_a_gradient() -> None:
    """A model that is frozen as a whole gives features, too."""
    frozen = Plain()
    expected = LayerFeatures(frozen, {"h": "head"})(BATCH)["h"]
    frozen.requires_grad_(False)
    assert torch.equal(LayerFeatures(frozen, {"h": "head"})(BATCH)["h"], expected.detach())


@pytest.mark.parametrize("name", ["projector", "expander", "heads.images"])
def test_a_head_has_many_names(name: str) -> None:
    task = Plain()
    del task.head
    first, _, last = name.partition(".")
    task.add_module(first, nn.ModuleDict({last: nn.Linear(2, 3)}) if last else nn.Linear(2, 3))
    assert resolve_layer_names(task, ["head"]) == {"head": name}
