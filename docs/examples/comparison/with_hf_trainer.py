"""Fine-tune a classifier with the Hugging Face Trainer: ``python with_hf_trainer.py DATA``; see docs/comparison.md."""

import argparse
from pathlib import Path

import numpy as np
import timm
import torch
from torch import nn
from torchvision import datasets
from torchvision.transforms import v2
from transformers import Trainer, TrainingArguments, set_seed


class Classifier(nn.Module):
    def __init__(self, model: str, pretrained: bool, classes: int) -> None:
        super().__init__()
        self.model = timm.create_model(model, pretrained=pretrained, num_classes=classes)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(pixel_values)
        return {"loss": self.criterion(logits, labels), "logits": logits}


def collate(samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    images, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


def top1(prediction) -> dict[str, float]:
    return {"top1": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())}


def main() -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--pretrained", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--out", type=Path, default=Path("runs/hf_trainer"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    set_seed(0)
    to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    to_tensor.append(v2.Normalize(timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD))
    augment = v2.Compose([v2.RandomResizedCrop(args.size, scale=(0.2, 1.0)), v2.RandomHorizontalFlip(), *to_tensor])
    center = v2.Compose([v2.Resize(args.size * 8 // 7), v2.CenterCrop(args.size), *to_tensor])
    train = datasets.ImageFolder(args.data / "train", augment)
    val = datasets.ImageFolder(args.data / "validation", center)
    settings = TrainingArguments(
        output_dir=str(args.out),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=32,
        dataloader_drop_last=True,
        dataloader_num_workers=2,
        learning_rate=3e-4,
        weight_decay=0.05,
        lr_scheduler_type="cosine",
        warmup_steps=2 * (len(train) // 32),
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="top1",
        logging_steps=20,
        report_to="tensorboard",
    )
    model = Classifier(args.model, args.pretrained, len(train.classes))
    trainer = Trainer(
        model, settings, data_collator=collate, train_dataset=train, eval_dataset=val, compute_metrics=top1
    )
    trainer.train(resume_from_checkpoint=args.resume)
    return float(trainer.state.best_metric)


if __name__ == "__main__":
    main()
