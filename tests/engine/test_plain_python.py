"""The engine without a config: parts are built by hand."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import Backbone, DatasetInfo, Source, SourceInfo, StepOptions
from opabinia.data.loader import BatchReader, Loader, evaluation_requests, training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import epoch_order
from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from opabinia.engine.hooks.evaluate import Evaluate
from opabinia.engine.hooks.log_metrics import LogMetrics
from opabinia.engine.hooks.order import order_hooks
from opabinia.engine.hooks.save_best import SaveBest
from opabinia.engine.hooks.save_checkpoint import SaveCheckpoint
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loop.evaluate import ValidationSet
from opabinia.engine.loop.step import StandardStep
from opabinia.engine.loop.trainer import Trainer
from opabinia.optim.schedules import cosine
from opabinia.runtime.durations import Duration
from opabinia.tasks.classification import Classification

CLASSES = ("left", "right")


class Bars(Source):
    """Images with a bright half; the class is its side."""

    info = SourceInfo(channels=1, classes=CLASSES)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = torch.zeros(1, 4, 4, dtype=torch.uint8)
        label = index % 2
        image[:, :, 2 * label : 2 * label + 2] = 100 + index
        return {"image": image, "label": label, "id": str(index)}


class Flat(Backbone):
    out_channels = 16

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Flatten()

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.layers(images)
        return vectors


def make_trainer(folder: Path, source: Source, length: str, seed: int = 0) -> Trainer:
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    dataset_info = DatasetInfo(samples=len(source), channels=source.channels, classes=tuple(source.classes))
    plan = ConstantPlan(len(source), 8, Duration.parse(length))
    torch.manual_seed(seed)
    task = Classification(dataset_info, backbone=Flat)
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1, momentum=0.9)
    orders = partial(epoch_order, seed, n=len(source), shuffle=True)
    validation = ValidationSet(
        "val", Loader(BatchReader(source), evaluation_requests(len(source), 16, 0, 1)), dataset_info
    )
    return Trainer(
        task=task,
        step=StandardStep(task, optimizer, {"lr": partial(cosine, warmup=Duration(2, "it"))}, StepOptions(seed)),
        plan=plan,
        loader=Loader(BatchReader(source, seed=seed), training_requests(plan, orders, 0, 1)),
        validation=[validation],
        metrics_log=MetricsLogger(folder / "metrics.jsonl"),
        hooks=order_hooks(
            task={},
            user={},
            metrics_log=LogMetrics(4),
            save=SaveCheckpoint(Duration(1, "ep")),
            evaluate=Evaluate(Duration(1, "ep")),
            save_best=SaveBest("val/top1", "max"),
        ),
        folder=folder,
        device=torch.device("cpu"),
    )


def test_train_and_resume(tmp_path: Path) -> None:
    scores = make_trainer(tmp_path, Bars(), "4ep").run()
    assert scores["val/top1"] == scores["val/top5"] == 1.0
    latest = load_latest_checkpoint(tmp_path / "checkpoints")
    assert latest and latest[1].step == 32

    longer = make_trainer(tmp_path, Bars(), "6ep")
    longer.restore(latest[1])
    longer.run()
    final = load_latest_checkpoint(tmp_path / "checkpoints")
    assert final and final[1].step == 48
    assert final[1].state["position"] == 0 and final[1].state["epoch"] == 6


def test_the_run_folder_has_no_config(tmp_path: Path) -> None:
    make_trainer(tmp_path, Bars(), "1it").run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "eval", "metrics.jsonl"]
