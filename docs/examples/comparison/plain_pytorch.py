"""Fine-tune a classifier with plain PyTorch: ``python plain_pytorch.py DATA``; see docs/comparison.md."""

import argparse
import random
from pathlib import Path

import numpy as np
import timm
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter
from torchvision import datasets
from torchvision.transforms import v2


def loaders(root: Path, size: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    to_tensor.append(v2.Normalize(timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD))
    augment = v2.Compose([v2.RandomResizedCrop(size, scale=(0.2, 1.0)), v2.RandomHorizontalFlip(), *to_tensor])
    center = v2.Compose([v2.Resize(size * 8 // 7), v2.CenterCrop(size), *to_tensor])
    train = datasets.ImageFolder(root / "train", augment)
    val = datasets.ImageFolder(root / "validation", center)
    return (
        DataLoader(train, batch_size, shuffle=True, num_workers=2, drop_last=True, pin_memory=True),
        DataLoader(val, batch_size, num_workers=2, pin_memory=True),
    )


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    correct = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in loader)
    return correct / len(loader.dataset)


def main() -> float:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--pretrained", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--out", type=Path, default=Path("runs/plain_pytorch"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    train, val = loaders(args.data, args.size, 32)
    classes = len(train.dataset.classes)
    model = timm.create_model(args.model, pretrained=args.pretrained, num_classes=classes).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    steps, warmup = args.epochs * len(train), 2 * len(train)
    warm = LinearLR(optimizer, start_factor=1e-3, total_iters=warmup)
    schedule = SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, max(1, steps - warmup))], [warmup])
    first, best, step = 0, 0.0, 0
    if args.resume:
        state = torch.load(args.out / "last.pt", map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first, best, step = state["epoch"], state["best"], state["step"]
    writer = SummaryWriter(str(args.out))
    for epoch in range(first, args.epochs):
        model.train()
        for images, labels in train:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 20 == 0:
                writer.add_scalar("train/loss", loss.item(), step)
            step += 1
        top1 = evaluate(model, val, device)
        writer.add_scalar("val/top1", top1, step)
        print(f"epoch {epoch + 1} of {args.epochs}: top-1 {top1:.4f}")
        if top1 > best:
            best = top1
            torch.save(model.state_dict(), args.out / "best.pt")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        torch.save({**state, "epoch": epoch + 1, "best": best, "step": step}, args.out / "last.pt")
    return best


if __name__ == "__main__":
    main()
