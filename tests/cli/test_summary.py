"""The summary that a run logs before its first step: FLOPs, parameters, device, data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone, Task
from opabinia.runtime.durations import Duration
from opabinia.training import summary
from opabinia.training.flops import FlopCount, copy_without_values, count_forward_flops
from opabinia.training.run_folder import resolve
from opabinia.training.settings import Training
from opabinia.training.summary import describe_device, describe_flops, describe_parameters, format_si, run_title


class Net(Task):
    """A convolution and a linear layer; with ``branches`` control flow depends on values, as in detectors."""

    def __init__(self, branches: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 10)
        self.branches = branches

    def predict(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        features = self.norm(self.conv(batch["image"])).mean((2, 3))
        if self.branches and float(features.sum()) > 0:
            return {}
        return {"logits": self.head(features)}


SAMPLE = {"image": torch.rand(1, 3, 8, 8), "id": ["a"]}
CONV = 2 * 64 * 4 * 27  # a multiplication and an addition for each pixel, channel and weight


def test_flops_after_a_data_dependent_branch_are_omitted() -> None:
    flops = count_forward_flops(Net(branches=True), SAMPLE)
    assert flops == FlopCount(CONV, complete=False)
    assert describe_flops(flops) == "at least 13.8 kFLOP per sample (forward)"


class Columns(Backbone):
    """A backbone whose convolution is called by another method than ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def maps(self, images: Tensor) -> Tensor:
        return self.conv(images)


@pytest.mark.parametrize(("channels", "is_heavy"), [(26, False), (27, True)])
def test_a_head_that_costs_ten_times_the_backbone_is_named(channels: int, is_heavy: bool) -> None:
    class Dense(Task):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.ModuleDict({"inner": Columns()})
            self.head = nn.Conv2d(4, 10 * channels, 1)

        def predict(self, batch: Mapping[str, Any]) -> Any:
            return self.head(self.backbone["inner"].maps(batch["image"]))

    flops = count_forward_flops(Dense(), SAMPLE)
    assert flops == FlopCount(CONV + 2 * 64 * 40 * channels, complete=True, backbone=CONV)
    assert ("only 13.8 kFLOP of them in the backbone" in describe_flops(flops)) == is_heavy


@pytest.mark.parametrize(
    ("recipe", "part"), [("detection/coco_format", "detector"), ("segmentation/image_folder", "decoder")]
)
def test_starting_recipes_have_a_light_head(recipe: str, part: str) -> None:
    assert resolve(recipe).config["task"][part]["neck"]["channels"] == 256
    assert resolve(recipe, ["vars.channels=64"]).config["task"][part]["neck"]["channels"] == 64


def test_counting_changes_neither_model_nor_random_numbers() -> None:
    torch.manual_seed(3)
    net = Net().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.default_generator.get_state()
    assert count_forward_flops(net, SAMPLE) == FlopCount(CONV + 2 * 40, complete=True)
    assert count_forward_flops(net, {"id": ["a"]}) is None
    assert torch.equal(torch.default_generator.get_state(), state)
    assert net.training and all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_meta_copy_takes_no_memory() -> None:
    net = Net()
    meta_copy = copy_without_values(net, torch.device("meta"))
    assert {tensor.device.type for tensor in [*meta_copy.parameters(), *meta_copy.buffers()]} == {"meta"}
    assert [param.shape for param in meta_copy.parameters()] == [param.shape for param in net.parameters()]
    assert {param.device.type for param in net.parameters()} == {"cpu"}


def test_frozen_parameters_are_reported() -> None:
    net = Net()
    assert describe_parameters(net) == "170 parameters"
    net.conv.requires_grad_(False)
    assert describe_parameters(net) == "170 parameters, 58 of them trainable"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 "), (999, "999 "), (999.9, "1 k"), (25_557_032, "25.6 M"), (8.18e9, "8.18 G"), (3e13, "30 T")],
)
def test_numbers_with_three_digits(number: float, text: str) -> None:
    assert format_si(number) == text


def test_the_run_title_names_the_networks() -> None:
    task = {"name": "detection", "backbone": {"name": "timm", "model": "resnet18"}, "detector": {"name": "fcos"}}
    assert run_title("mine", task) == "mine: detection, backbone timm resnet18, detector fcos"
    assert run_title("mine", {"name": "video", "backbone": None}) == "mine: video"


def test_the_summary_is_logged(six_steps: Path) -> None:
    log = (six_steps / "train.log").read_text()
    for line in (
        "run     classification/digits: classification, backbone timm test_resnet",
        "model   373 k parameters, 8.05 MFLOP per sample (forward)",
        "data    1437 samples of 10 classes; val: 360",
        "device  cpu, fp32; 1 process, 1 thread and 0 workers",
        "length  6it: 1437 samples, 6 steps of 16 (90 per epoch); from step 0",
    ):
        assert log.count(f"I {line}\n") == 1


@pytest.mark.parametrize(("workers", "words"), [(2, "2 workers"), (4, "4 workers (data.num_workers; 2 cores)")])
def test_more_workers_than_cores_are_reported(workers: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "cores", lambda: 2)
    training = Training(length=Duration.parse("1ep"))
    assert describe_device(torch.device("cpu"), training, 1, 1, workers).endswith(f"1 thread and {words}")
