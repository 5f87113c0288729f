"""Detection keeps the engine's promises: kills, workers, processes, and one step once more."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scripts import small_data
from tests.faults.many import start, steps
from tests.faults.programs import Server
from tests.faults.runs import Outcome, assert_same, checkpoint, metrics

RECIPE = """
# Mask R-CNN draws which regions it learns from, and every sample is made of several.
plugins: [tests.faults.parts]
vars: {root: ROOT}
task:
  name: detection
  backbone: {name: timm, model: test_resnet}
  detector:
    name: mask_rcnn
    neck: {name: fpn, channels: 32}
    proposals: {anchor_sizes: [8, 16, 32, 64, 128], samples: 32, before_training: 60, after_training: 30, after: 20}
    box: {width: 32, samples: 32, threshold: 0.01, most: 10}
    mask: {convolutions: 1, channels: 16}
  mean: [0.2]
  std: [0.2]
data:
  train:
    source:
      name: coco
      root: "${vars.root}/train2017"
      file: "${vars.root}/annotations/instances_train2017.json"
      masks: true
    transforms:
      - {name: resize_shortest_edge, short_edge_length: [40, 48]}
      - {name: copy_paste, probability: 0.7}
      - {name: mosaic, size: 64, probability: 0.7}
      - {name: mixup_boxes, probability: 0.5}
      - {name: RandomHorizontalFlip}
  val:
    source:
      name: coco
      root: "${vars.root}/val2017"
      file: "${vars.root}/annotations/instances_val2017.json"
      masks: true
  sampler: {name: aspect_ratio_batches, sampler: {name: repeat_factor, threshold: 1.0}}
  batch_size: 4
optimizer: {name: adamw, lr: 0.005}
schedule: {name: cosine, warmup: 2it}
train: {length: 10it, log_every: 1, log_samples: true, num_threads: 1, deterministic: true}
evaluate: {every: 5it, batch_size: 3}
checkpoint: {every: 3it, keep: 9}
hooks: {trace: {}}
loggers: []
seed: 3
"""
STEPS = 10

Detect = Callable[..., Path]
"""Trains the recipe in a folder with this name, on some processes, with overrides, and returns the run's."""


@pytest.fixture(scope="session")
def detection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detection")
    small_data.coco2017(folder / "data")
    (folder / "faults.yaml").write_text(RECIPE.replace("ROOT", str(folder / "data")))
    return folder / "faults.yaml"


@pytest.fixture
def detect(server: Server, detection: Path, tmp_path: Path) -> Detect:
    def train(name: str, processes: int, *overrides: str, **how: Any) -> Path:
        arguments = (str(detection), "--out", str(tmp_path), "--name", name, *overrides)
        for program in start(server, processes, *arguments, **how):
            program.expect(0, 300)
        return tmp_path / "faults" / name

    return train


@pytest.fixture(scope="session")
def whole(warm_server: Server, detection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves behind that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    warm_server.run("train", str(detection), "--out", str(out), seconds=300)
    return out / "faults" / "default"


def found_in(folder: Path) -> list[dict[str, float]]:
    return [
        {name: value for name, value in line.items() if name.startswith("val/")}
        for line in metrics(folder)
        if "val/loss" in line
    ]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["after_backward 6", "before_phase evaluate 5"])
def test_killed_and_resumed_with_other_workers(
    server: Server, detection: Path, whole: Path, tmp_path: Path, moment: str
) -> None:
    arguments = ("train", str(detection), "--out", str(tmp_path))
    program = server.start(*arguments, "data.num_workers=2")
    program.until(lambda: moment in program.trace, 300)
    program.kill()
    server.run(*arguments, "--resume", "data.num_workers=0", seconds=300)
    assert_same(Outcome.of(tmp_path / "faults" / "default"), Outcome.of(whole))


@pytest.mark.slow
def test_everything_random_counts(detect: Detect, whole: Path) -> None:
    """Without it the tests of kills would prove little: each of these changes what is learned."""
    transforms = ["resize_shortest_edge", "copy_paste", "mosaic", "mixup_boxes", "RandomHorizontalFlip"]
    offs = {
        "shortest": "data.train.transforms.0.short_edge_length=48",
        **{f"{name}": f"data.train.transforms.{place}.probability=0" for place, name in enumerate(transforms[1:4], 1)},
        "flip": "data.train.transforms.4.p=0",
        "sampler": "data.sampler=null",
    }
    short = ("train.length=4it", "evaluate.every=0it", "checkpoint.every=4it")
    models = {
        (checkpoint(detect(name, 1, *short, *override), 4) / "model.safetensors").read_bytes()
        for name, override in {"all": (), **{name: (one,) for name, one in offs.items()}}.items()
    }
    assert len(models) == len(offs) + 1


def test_the_same_scores_on_any_number_of_processes(server: Server, whole: Path) -> None:
    """Of boxes and of masks, to the last digit."""
    expected = found_in(whole)[-1]
    assert {"val/AP", "val/mask_AP", "val/loss", "val/loss_mask"} <= expected.keys()
    assert expected["val/AP"] > 0 and expected["val/mask_AP"] > 0
    for processes in (1, 2, 3):
        for program in start(server, processes, str(whole), "--checkpoint", "last", command="eval"):
            program.expect(0, 300)
        said = json.loads((whole / "eval" / "val" / "scores.json").read_text())
        assert {name: said[name] for name in expected} == expected, processes


def test_the_first_loss_is_the_same_on_two_processes(detect: Detect) -> None:
    """Where neither batch norm nor padding looks at what else is in a batch."""
    fcos = "task.detector={name: fcos, neck: {name: fpn_p3_p7, channels: 64}, num_convs: 1}"
    frozen = ("task.freeze_norms=true", "task.freeze_random=true")
    alike = ("data.train.transforms.2.probability=1", "data.train.transforms.1.probability=0")
    short = (fcos, *frozen, *alike, "train.length=3it", "evaluate.every=0it")
    one, two = (steps(detect(f"on{processes}", processes, *short)) for processes in (1, 2))
    for mine, other in zip(two, one, strict=True):
        assert mine["sample_ids"] == other["sample_ids"]
    for name in ("train/loss", "train/loss_cls", "train/loss_box_reg", "train/loss_centerness", "grad_norm"):
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-5), name


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_a_step_is_done_again_with_the_same_numbers(server: Server, whole: Path, step: int) -> None:
    server.run("replay", str(whole), "--step", str(step), seconds=300)
    folder = whole / "replay" / f"step-{step:08d}"
    found, recorded = json.loads((folder / "step.json").read_text()), steps(whole)[step - 1]
    for name in ("train/loss", "train/loss_mask", "train/loss_rpn_cls", "grad_norm"):
        assert found[name] == recorded[name], name
    plain = json.loads((folder / "batch.json").read_text())
    assert plain["id"] == recorded["sample_ids"]
    tensors = load_file(folder / "batch.safetensors")
    assert tensors["image"].shape[:2] == (4, 3)
    for number in range(4):
        assert len(tensors[f"boxes.{number}"]) == len(tensors[f"labels.{number}"]) == len(tensors[f"masks.{number}"])
        assert tensors[f"boxes.{number}"].dtype == torch.float32
