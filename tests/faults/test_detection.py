"""Detection runs: kills, workers, processes, and replayed steps."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scripts import small_data
from tests.faults.programs import Server
from tests.faults.runs import Outcome, Run, Trained, Trainings, checkpoint, expect, scores, start, steps

RECIPE = """
# Mask R-CNN samples regions at random, and every sample combines several images.
plugins: [tests.faults.parts]
vars: {root: ROOT}
task:
  name: detection
  backbone: {name: timm, model: test_resnet}
  detector:
    name: mask_rcnn
    neck: {name: fpn, channels: 32}
    proposals:
      anchor_sizes: [8, 16, 32, 64, 128]
      batch_size_per_image: 32
      pre_nms_topk_train: 60
      post_nms_topk_train: 30
      post_nms_topk_test: 20
    box: {fc_dim: 32, batch_size_per_image: 32, score_threshold: 0.01, max_detections: 10}
    mask: {num_convs: 1, channels: 16}
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


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detection")
    small_data.coco2017(folder / "data")
    (folder / "detection.yaml").write_text(RECIPE.replace("ROOT", str(folder / "data")))
    return folder / "detection.yaml"


@pytest.fixture(scope="module")
def detect(trainings: Trainings, recipe: Path) -> Trained:
    """Train on a number of processes, with overrides."""
    return partial(trainings, recipe.read_text())


@pytest.fixture(scope="module")
def uninterrupted_run(detect: Trained) -> Path:
    return detect(1)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["after_backward 6", "before_phase evaluate 5"])
def test_killed_and_resumed_with_other_workers(run: Run, uninterrupted_run: Path, moment: str) -> None:
    program = run.start("data.num_workers=2")
    program.until(lambda: moment in program.trace, 300)
    program.kill()
    run.resume_exactly(Outcome.of(uninterrupted_run), "data.num_workers=0")


@pytest.mark.slow
def test_every_source_of_randomness_changes_the_weights(detect: Trained) -> None:
    """Otherwise the tests of kills would prove little."""
    overrides = [
        "data.train.transforms.0.short_edge_length=48",
        *(f"data.train.transforms.{index}.probability=0" for index in (1, 2, 3)),
        "data.train.transforms.4.p=0",
        "data.sampler=null",
    ]
    options = ("train.length=4it", "evaluate.every=0it", "checkpoint.every=4it")
    runs = [detect(1, *options, *changed) for changed in ([], *([each] for each in overrides))]
    assert len({(checkpoint(folder, 4) / "model.safetensors").read_bytes() for folder in runs}) == len(overrides) + 1


def test_scores_do_not_depend_on_the_number_of_processes(server: Server, uninterrupted_run: Path) -> None:
    """Scores of boxes and masks are bitwise identical."""
    expected = scores(uninterrupted_run)[-1]
    assert {"val/AP", "val/mask_AP", "val/loss", "val/loss_mask"} <= expected.keys()
    assert expected["val/AP"] > 0 and expected["val/mask_AP"] > 0
    for processes in (1, 3):
        expect(start(server, processes, str(uninterrupted_run), "--checkpoint", "last", command="eval"))
        actual = json.loads((uninterrupted_run / "eval" / "val" / "scores.json").read_text())
        assert {name: actual[name] for name in expected} == expected, processes


def test_the_first_loss_is_the_same_on_two_processes(detect: Trained) -> None:
    """If neither batch norm nor padding depends on the rest of the batch."""
    fcos = "task.detector={name: fcos, neck: {name: fpn_p3_p7, channels: 64}, num_convs: 1}"
    frozen = ("task.freeze_norms=true", "task.freeze_random=true")
    same_size = ("data.train.transforms.2.probability=1", "data.train.transforms.1.probability=0")
    options = (fcos, *frozen, *same_size, "train.length=1it", "evaluate.every=0it")
    one_process, two_processes = (steps(detect(processes, *options)) for processes in (1, 2))
    for actual, expected in zip(two_processes, one_process, strict=True):
        assert actual["sample_ids"] == expected["sample_ids"]
    for name in ("train/loss", "train/loss_cls", "train/loss_box_reg", "train/loss_centerness", "grad_norm"):
        assert two_processes[0][name] == pytest.approx(one_process[0][name], rel=1e-5), name


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_a_replayed_step_has_the_same_numbers(server: Server, uninterrupted_run: Path, step: int) -> None:
    server.run("replay", str(uninterrupted_run), "--step", str(step), seconds=300)
    folder = uninterrupted_run / "replay" / f"step-{step:08d}"
    replayed, recorded = json.loads((folder / "step.json").read_text()), steps(uninterrupted_run)[step - 1]
    for name in ("train/loss", "train/loss_mask", "train/loss_rpn_cls", "grad_norm"):
        assert replayed[name] == recorded[name], name
    batch = json.loads((folder / "batch.json").read_text())
    assert batch["id"] == recorded["sample_ids"]
    tensors = load_file(folder / "batch.safetensors")
    assert tensors["image"].shape[:2] == (4, 3)
    for number in range(4):
        assert len(tensors[f"boxes.{number}"]) == len(tensors[f"labels.{number}"]) == len(tensors[f"masks.{number}"])
        assert tensors[f"boxes.{number}"].dtype == torch.float32
