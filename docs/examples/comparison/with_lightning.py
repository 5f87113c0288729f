"""Fine-tune a classifier with Lightning: ``python with_lightning.py DATA``; see docs/comparison.md."""

import argparse
from pathlib import Path

import lightning as L
import timm
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from torchvision import datasets
from torchvision.transforms import v2


class Images(L.LightningDataModule):
    def __init__(self, root: Path, size: int, batch_size: int = 32) -> None:
        super().__init__()
        self.batch_size = batch_size
        to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        to_tensor.append(v2.Normalize(timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD))
        augment = v2.Compose([v2.RandomResizedCrop(size, scale=(0.2, 1.0)), v2.RandomHorizontalFlip(), *to_tensor])
        center = v2.Compose([v2.Resize(size * 8 // 7), v2.CenterCrop(size), *to_tensor])
        self.train_set = datasets.ImageFolder(root / "train", augment)
        self.val_set = datasets.ImageFolder(root / "validation", center)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_set, self.batch_size, shuffle=True, num_workers=2, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val_set, self.batch_size, num_workers=2)


class Classifier(L.LightningModule):
    def __init__(self, model: str, pretrained: bool, classes: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = timm.create_model(model, pretrained=pretrained, num_classes=classes)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.top1 = MulticlassAccuracy(classes, average="micro")

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        loss = self.criterion(self.model(images), labels)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        images, labels = batch
        self.top1(self.model(images), labels)
        self.log("val/top1", self.top1, on_epoch=True, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-4, weight_decay=0.05)
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = 2 * steps // self.trainer.max_epochs
        warm = LinearLR(optimizer, start_factor=1e-3, total_iters=warmup)
        schedule = SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, max(1, steps - warmup))], [warmup])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--pretrained", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    L.seed_everything(0, workers=True)
    data = Images(args.data, args.size)
    checkpoints = ModelCheckpoint(args.out, monitor="val/top1", mode="max", save_last=True)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        precision="bf16-mixed",
        callbacks=[checkpoints],
        logger=TensorBoardLogger(str(args.out)),
        log_every_n_steps=20,
    )
    model = Classifier(args.model, args.pretrained, len(data.train_set.classes))
    trainer.fit(model, data, ckpt_path=str(args.out / "last.ckpt") if args.resume else None)
    return float(checkpoints.best_model_score)


if __name__ == "__main__":
    main()
