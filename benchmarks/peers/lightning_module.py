"""Lightning: a plain ``LightningModule`` with Adam at its documentation's 1e-3, all layers, ended by ``max_time``."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import timm
import torch
from job import MODEL, Job
from lightning.pytorch import LightningModule, Trainer, seed_everything
from timm.data import create_transform, resolve_data_config
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

job = Job.parse()
BATCH = 32


class Classifier(LightningModule):
    """A classifier with timm's model."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        weights = {"file": str(job.tensors)}
        self.model = timm.create_model(MODEL, pretrained=True, num_classes=classes, pretrained_cfg_overlay=weights)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self.model(images), labels)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.model(batch[0]).argmax(dim=1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def trainer(**options: object) -> Trainer:
    return Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, **options)


if __name__ == "__main__":
    seed_everything(job.seed)
    preprocessing = resolve_data_config({}, model=MODEL)
    train = ImageFolder(job.folder / "train", create_transform(**preprocessing, is_training=True))
    validation = ImageFolder(job.validation, create_transform(**preprocessing))
    model = Classifier(len(train.classes))
    train_loader = DataLoader(train, BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    validation_loader = DataLoader(validation, BATCH, num_workers=2)
    # The time of the predictions is that of the first batch, for all of them.
    first, began = next(iter(DataLoader(validation, BATCH))), time.perf_counter()
    with torch.no_grad():
        model.predict_step(first, 0)
    reserve = (time.perf_counter() - began) * len(validation_loader) * 1.5
    training = trainer(max_epochs=-1, max_time=timedelta(seconds=max(1.0, job.left - reserve)))
    training.fit(model, train_loader)
    labels = torch.cat(trainer().predict(model, validation_loader)).tolist()
    images = [Path(path) for path, _ in validation.samples]
    classes = {job.name(path): train.classes[label] for path, label in zip(images, labels, strict=True)}
    job.finish(f"{training.global_step / len(train_loader):.1f} epochs", classes=classes)
