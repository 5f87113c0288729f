"""Training of detectors: empty images, micro-batches, EMA, hooks, names of losses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from opabinia.config import ConfigError
from opabinia.runtime.shards import load_safetensors
from opabinia.training import launch
from scripts import small_data

RECIPE = """
vars: {root: data}
task:
  name: detection
  backbone: {name: timm, model: test_resnet}
  detector: {name: fcos, neck: {name: fpn_p3_p7, channels: 64}, num_convs: 1, score_threshold: 0.01}
  mean: [0.2]
  std: [0.2]
data:
  train:
    source:
      name: coco
      root: "${vars.root}/train2017"
      file: "${vars.root}/annotations/person_keypoints_train2017.json"
      masks: true
      keypoints: true
  val:
    source:
      name: coco
      root: "${vars.root}/val2017"
      file: "${vars.root}/annotations/person_keypoints_val2017.json"
      masks: true
      keypoints: true
  batch_size: 4
optimizer: {name: adamw, lr: 0.001}
train: {length: 3it, log_every: 1, num_threads: 1}
evaluate: {every: 3it, batch_size: 4}
loggers: []
seed: 0
"""

_REGIONS = (
    "neck: {name: fpn, channels: 32}, box: {fc_dim: 32, batch_size_per_image: 16}, "
    "proposals: {anchor_sizes: [8, 16, 32, 64, 128], batch_size_per_image: 16, "
    "pre_nms_topk_train: 30, post_nms_topk_train: 20, post_nms_topk_test: 10}"
)
DETECTORS = {
    "fcos": "{name: fcos, neck: {name: fpn_p3_p7, channels: 64}, num_convs: 1}",
    "retinanet": "{name: retinanet, neck: {name: fpn_p3_p7, channels: 64}, norm: group}",
    "faster_rcnn": f"{{name: faster_rcnn, {_REGIONS}}}",
    "mask_rcnn": f"{{name: mask_rcnn, {_REGIONS}, mask: {{num_convs: 1, channels: 16}}}}",
    "keypoint_rcnn": f"{{name: keypoint_rcnn, {_REGIONS}, keypoint: {{num_convs: 1, channels: 16}}}}",
    "cascade_rcnn": f"{{name: cascade_rcnn, {_REGIONS}, mask: {{num_convs: 1, channels: 16}}}}",
}
NAMES = {
    "fcos": {"loss_cls", "loss_box_reg", "loss_centerness"},
    "retinanet": {"loss_cls", "loss_box_reg"},
    "faster_rcnn": {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg"},
    "mask_rcnn": {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg", "loss_mask"},
    "keypoint_rcnn": {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg", "loss_keypoint"},
    "cascade_rcnn": {
        *("loss_rpn_cls", "loss_rpn_loc", "loss_mask"),
        *(f"{name}_stage{stage}" for stage in range(3) for name in ("loss_cls", "loss_box_reg")),
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COCO's folders; ``empty_train2017.json`` has no annotations."""
    folder = tmp_path_factory.mktemp("data")
    small_data.coco2017(folder)
    for split in ("train", "val"):
        content = json.loads((folder / "annotations" / f"person_keypoints_{split}2017.json").read_text())
        (folder / "annotations" / f"empty_{split}2017.json").write_text(json.dumps({**content, "annotations": []}))
    return folder


def train(data: Path, out: Path, *overrides: str, name: str = "default") -> Path:
    (out / "tiny.yaml").write_text(RECIPE)
    return launch.train(str(out / "tiny.yaml"), [f"vars.root={data}", *overrides], out=out, name=name)[0]


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses_of(line: dict[str, Any], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in line.items() if name.startswith(f"{prefix}loss_")}


def empty(split: str) -> str:
    return f"data.{split}.source.file=${{vars.root}}/annotations/empty_{split}2017.json"


@pytest.mark.parametrize("detector", DETECTORS)
def test_every_loss_is_reported_by_its_name(data: Path, tmp_path: Path, detector: str) -> None:
    run = train(data, tmp_path, f"task.detector={DETECTORS[detector]}", "train.length=1it", "evaluate.every=1it")
    first_line, *_, last_line = lines(run)
    for line, prefix in ((first_line, "train/"), (last_line, "val/")):
        losses = losses_of(line, prefix)
        assert losses.keys() == NAMES[detector]
        assert line[f"{prefix}loss"] == pytest.approx(sum(losses.values()), rel=1e-5)
    assert {"val/AP", "val/AP50", "val/AR100"} <= last_line.keys()
    assert ("val/mask_AP" in last_line) == ("loss_mask" in NAMES[detector])
    assert ("val/keypoint_AP" in last_line) == ("loss_keypoint" in NAMES[detector])
    assert any("loss" not in name and name.startswith("train/") for name in first_line), "other values of the detector"


@pytest.mark.parametrize("detector", ["fcos", "mask_rcnn"])
def test_images_without_objects(data: Path, tmp_path: Path, detector: str) -> None:
    """Batches of only such images are trained and evaluated; AP without ground truth is omitted."""
    run = train(data, tmp_path, f"task.detector={DETECTORS[detector]}", empty("train"), empty("val"))
    *steps, last_line = lines(run)
    for step in steps:
        assert all(torch.isfinite(torch.tensor(value)) for value in losses_of(step, "train/").values())
        assert step["grad_norm"] > 0
    assert not [name for name in last_line if "AP" in name] and last_line["val/loss"] > 0


def test_micro_batches_give_about_the_same_loss(data: Path, tmp_path: Path) -> None:
    """FCOS divides by the positive points of a micro-batch, so losses are only about equal."""
    shared = (
        "task.freeze_norms=true",
        "task.freeze_random=true",
        "train.length=1it",
        "evaluate.every=0it",
        "train.step.name=standard",
    )
    full_batch, micro_batches = (
        lines(train(data, tmp_path, *shared, *overrides, name=name))[0]
        for name, overrides in (("whole", ()), ("pieces", ("train.micro_batch_size=2",)))
    )
    assert micro_batches["train/loss"] == pytest.approx(full_batch["train/loss"], rel=0.1)
    assert micro_batches["train/loss"] != full_batch["train/loss"], "micro-batches were used"


def test_images_that_cannot_be_read_are_skipped(data: Path, tmp_path: Path) -> None:
    root = tmp_path / "broken"
    small_data.coco2017(root)
    (root / "train2017" / "000000000001.png").write_bytes(b"no image")
    (root / "val2017" / "000000000025.png").write_bytes(b"no image")
    with pytest.raises(Exception, match=r"000000000001\.png cannot be decoded"):
        train(root, tmp_path, "train.length=6it", "data.val=null", name="refused")
    run = train(root, tmp_path, "train.length=6it", "data.on_error=skip", "evaluate.every=6it")
    assert lines(run)[-1]["val/skipped"] == 1
    assert "skipped: sample" in (run / "train.log").read_text()


def test_a_teacher_of_detectors_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a task that detects objects in them cannot be distilled"):
        train(data, tmp_path, "distill={ema_teacher: {}}", name="student")


@pytest.mark.slow
def test_a_resumed_run_of_oriented_queries_is_identical(tmp_path: Path) -> None:
    """Its denoising queries are drawn in every step. CUDA has no deterministic gradient of ``grid_sample``."""
    pytest.importorskip("transformers", reason="transformers is absent: pip install 'opabinia[detr]'")
    changes = ["train.length=4it", "train.num_threads=1", "data.batch_size=2", "data.num_workers=0", "data.val=null"]
    changes += ["schedule.warmup=1it", "checkpoint={every: 2it, keep: 9, best: null}", "loggers=[]"]
    recipe = "detection/digits_rt_detr_oriented"
    checkpoints = launch.train(recipe, changes, out=tmp_path)[0] / "checkpoints"
    expected = {file.name: load_safetensors(file) for file in (checkpoints / "step-00000004").glob("*.safetensors")}
    shutil.rmtree(checkpoints / "step-00000004")
    launch.train(recipe, changes, out=tmp_path, resume=str(checkpoints / "step-00000002"))
    assert {*expected} >= {"model.safetensors", "optimizer.safetensors"}
    for name, tensors in expected.items():
        resumed = load_safetensors(checkpoints / "step-00000004" / name)
        assert all(torch.equal(value, resumed[key]) for key, value in tensors.items())
