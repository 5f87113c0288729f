"""Building and running a training session: incompatible parts are reported before the first step."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import RandomHorizontalFlip

from opabinia.config import ConfigError
from opabinia.contracts import Backbone, DatasetInfo, Hook
from opabinia.data import Data, Stream
from opabinia.data.errors import DataError
from opabinia.data.sources import segmentation_folder
from opabinia.runtime.durations import Duration
from opabinia.tasks.video import Video
from opabinia.training import dry_run, launch, model
from opabinia.training.evaluate import evaluate as evaluate_trained
from opabinia.training.planning import plan_training
from opabinia.training.samples import read_dataset_info
from opabinia.training.settings import Training
from tests.data.sources.test_segmentation import VALUES, write_pair

SMALL = ("train.device=cpu", "data.num_workers=0")


def check_recipe(*overrides: str) -> None:
    dry_run.dry_run(launch.build_parts(launch.resolve("classification/digits", [*SMALL, *overrides])).keywords)


def test_mixed_batches_pass_a_dry_run_on_the_cpu() -> None:
    check_recipe("train.device=cuda", "data.mix=[mixup]")


VIEWS = (
    "task={name: simclr, backbone: {name: timm, model: %s}}",
    "data.train.transforms=[{name: views, views: [{count: 2, transforms: []}]}]",
)


@pytest.mark.parametrize(
    ("overrides", "path", "text"),
    [
        (["loggers=[tensorboard,wandb]"], "loggers.1", "wandb needs a package that is not installed"),
        (["checkpoint.best=val/top2"], "checkpoint.best", "scores: val/top1, val/top5"),
        (["checkpoint.best=val/top1 + val/top2"], "checkpoint.best", "no evaluation computes the score 'val/top2'"),
        (["checkpoint.best=val/top1 val/top5"], "checkpoint.best", "neither a score nor a sum such as 0.5*val/rank1"),
        (["checkpoint.best=val/top1 - val/top5"], "checkpoint.best", "some of these scores are to be high and others"),
        (["task.backbone.model=test_resnt"], "task.backbone.model", "test_resnet"),
        (["task.backbone.options={widht: 3}"], "task.backbone.options", "refuses"),
        (["task.mean=[0.1,0.2]"], "task.mean", "2 values for images of 1 channels"),
        (["task.backbone.model=vit_tiny_patch16_224"], "task", "a batch of shape (2, 1, 32, 32) does not go through"),
        ([VIEWS[0] % "vit_tiny_patch16_224", VIEWS[1]], "task", "a batch of shape (2, 1, 8, 8) does not go through"),
        ([VIEWS[0] % "test_resnet", VIEWS[1], "data.mix=[mixup]"], "data.mix", "the batch has views instead of images"),
        (
            [VIEWS[0] % "test_resnet", VIEWS[1], "data.batch_size=359"],
            *("data.batch_size", "SimCLR needs at least 2 samples per rank, and of the batch of 1 at step"),
        ),
        (["optimizer.lr=-1"], "optimizer", "Invalid learning rate"),
        (["train.distributed.backend=nccl"], "train.distributed.backend", "'auto', 'gloo'"),
        (["train.length=99999999999ep"], "train.length", "more than 1,000,000,000 steps cannot be meant"),
        (["data.drop_last=true", "data.batch_size=2000"], "data", "1437 samples cannot fill one batch of 2000"),
        (["data.val.transforms.0={name: RGB}"], "data.val", "3 channels, those of training 1"),
    ],
)
def test_incompatible_parts_are_reported(
    overrides: list[str], path: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError) as caught:
        check_recipe(*overrides)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert text in str(problem)


def test_frozen_random_weights_and_an_absent_device_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*SMALL, "task.freeze_stages=1", "task.freeze_norms=true"]
    with pytest.raises(ConfigError, match="task: freeze_stages and freeze_norms would freeze random weights: load"):
        dry_run.dry_run(launch.build_parts(launch.resolve("detection/digits", overrides)).keywords)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"train.device: 'cuda' is not available"):
        model.set_up(Training(length=Duration(1, "ep"), device="cuda"))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    monkeypatch.setattr(model, "choose_device", lambda name: torch.device("cuda"))
    with pytest.raises(ConfigError, match=r"train.deterministic: deterministic matrix products on a GPU need"):
        model.set_up(Training(length=Duration(1, "ep"), deterministic=True))


def test_validation_views_are_checked_before_the_first_step(tmp_path: Path) -> None:
    views = [{"count": 1, "transforms": []}]
    for transform, text in [
        ({"name": "views", "views": views}, "is evaluated on whole images, not on views"),
        (
            {"name": "views_and_image", "views": views, "image": []},
            r"learns from 2 views.* of an image; data\.val\.transforms gives 1",
        ),
    ]:
        task = "task={name: simclr, backbone: {name: timm, model: test_resnet}}"
        overrides = [*SMALL, task, f"data.val.transforms={json.dumps([transform])}"]
        with pytest.raises(ConfigError, match=f"data.val: a batch of shape .* does not go through: SimCLR {text}"):
            launch.train("classification/digits", overrides, out=tmp_path)
    assert not list(tmp_path.rglob("config.yaml")), "a refused run leaves its folder unchanged"


def test_training_batches_have_no_ground_truth_for_evaluators(tmp_path: Path) -> None:
    write_pair(tmp_path)
    source, batches = segmentation_folder(root=tmp_path, classes=["x", "y", "z"]), []
    for augment_on in ("workers", "device"):
        stream = Stream(source=source, transforms=[RandomHorizontalFlip()])
        data = Data(train=stream, batch_size=1, augment_on=augment_on)  # type: ignore[arg-type]
        planned = plan_training(lambda info: None, data, Duration(1, "it"), None, 0)
        batches.append(next(iter(planned.loader(torch.device("cpu"), lambda name: 32).iterate()))[1])
    worker_batch, device_batch = batches
    assert worker_batch.keys() == device_batch.keys() == {"id", "image", "mask", "image_sizes", "original_size"}
    assert torch.equal(worker_batch["image"], device_batch["image"]) and torch.equal(
        worker_batch["mask"], device_batch["mask"]
    )


def test_maps_without_labels_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for values, messages in ((VALUES, 0), (np.full_like(VALUES, 255), 1)):
        for name in "abc"[messages:]:
            write_pair(tmp_path, values, name=name)
        caplog.clear()
        read_dataset_info(Stream(source=segmentation_folder(root=tmp_path, classes=["x", "y", "z"])))
        assert not caplog.messages  # one image with labels remains
    write_pair(tmp_path, np.full_like(VALUES, 255), name="a")
    read_dataset_info(Stream(source=segmentation_folder(root=tmp_path, classes=["x"])))
    (message,) = caplog.messages
    assert "maps of the first 3 samples have no labeled pixel (images/a.jpg ...)" in message


def test_settings_that_make_steps_faster_are_those_that_apply() -> None:
    training = Training(length=Duration(1, "ep"))
    products, search = "train.matmul_precision: high", "train.cudnn_benchmark: true"
    assert {products, search} <= {*training.faster_options()}
    assert products not in replace(training, matmul_precision="medium").faster_options()
    assert products not in replace(training, precision="bf16").faster_options(), "products are in bf16 already"
    assert search not in replace(training, deterministic=True).faster_options()
    assert search not in replace(training, cudnn_benchmark=True).faster_options()


def test_channels_last_images_reach_the_backbone_of_a_video_in_channels_last() -> None:
    clips: list[Tensor] = []

    class Recorder(Backbone):
        clips, out_channels = True, 1

        def forward(self, images: Tensor, offset: Tensor | None = None) -> Tensor:
            clips.append(images)
            return images.mean((2, 3, 4))[:, :1]

    task = Video(DatasetInfo(samples=8, channels=3, classes=("a", "b")), backbone=lambda channels: Recorder())
    model.place(task, Training(length=Duration(1, "ep"), channels_last=True), torch.device("cpu"))
    task.features({"image": torch.zeros(2, 4, 3, 8, 8, dtype=torch.uint8)})
    assert clips[0].shape == (2, 3, 4, 8, 8) and clips[0].is_contiguous(memory_format=torch.channels_last_3d)


def test_a_run_returns_its_final_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the memory layout of training: other kernels would give slightly different scores."""
    overrides = [*SMALL, "train.length=3it", "train.channels_last=true", "ema.decay=0.5", "loggers=[]"]
    folder, scores = launch.train("classification/digits", overrides, out=tmp_path)
    names = ("top1", "top5", "mean_recall", "macro_f1", "ece", "nll")
    assert list(scores) == [f"{prefix}/{name}" for prefix in ("val_ema", "val") for name in names]
    assert launch.evaluate(folder, checkpoint="last", weights="both") == scores
    log = (folder / "train.log").read_text()
    for expected in (
        "rank 0 of 1",
        "1 thread, seed",
        "schedule.warmup (2ep) is at least as long as",
        "torch ",
        "git ",
        "command ",
        "lr: 0.004",
        "TimmBackbone",
        "label_smoothing=0.1",
    ):
        assert expected in log, expected
    assert "TimmBackbone" not in capsys.readouterr().err
    # A hook sees the evaluation, too.
    events = list[str]()
    names = ("start", "before_phase", "before_step", "after_phase", "finish")
    methods = {name: lambda self, *args, name=name: events.append(name) for name in names}
    hooks = {"recorder": type("Recorder", (Hook,), methods)()}
    parts = dict(launch.build_parts(launch.resolve(folder)).keywords, hooks=hooks)
    snapshot = launch.read_checkpoint(folder / "checkpoints" / "step-00000003")
    assert evaluate_trained(folder, parts, snapshot, lambda: parts["data"]) == scores
    assert events == ["start", "before_phase", "after_phase", "before_phase", "after_phase", "finish"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_dry_run_finds_images_that_do_not_fit_into_a_batch(split: str, tmp_path: Path) -> None:
    """The first two are alike."""
    for folder in ("train", "val"):
        (tmp_path / folder / "a").mkdir(parents=True)
        for number in range(4):
            size = (40, 32) if number == 3 and folder == split else (32, 32)
            Image.new("RGB", size).save(tmp_path / folder / "a" / f"{number}.png")
        (tmp_path / folder / "b").mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / folder / "b" / "0.png")
    sources = [f"data.{name}.source={{name: image_folder, root: {tmp_path / name}}}" for name in ("train", "val")]
    small = [*sources, "data.train.transforms=[]", "task.mean=[0.5]", "task.std=[0.5]"]
    with pytest.raises(DataError, match=r"'image' differs in size: a.0.png has 3 x 32 x 32, a.3.png has 3 x 32 x 40"):
        check_recipe(*small)
    check_recipe(*small, "data.batch_size=2", "evaluate.batch_size=3")
