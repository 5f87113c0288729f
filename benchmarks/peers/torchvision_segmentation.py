"""torchvision: its reference training of segmentation, with the schedule over the time instead of 30 epochs.

The word is ``lraspp`` or ``deeplabv3``: as ``lraspp_mobilenet_v3_large`` and ``deeplabv3_mobilenet_v3_large`` with the
auxiliary loss, with timm's model in place of MobileNet: maps of strides 8 and 16. A second word is the size of images
in place of the reference's 520, as its ``--base-size``; crops are a thirteenth smaller, as there.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from job import MODEL, Job
from PIL import Image
from timm.data import resolve_data_config
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.models.segmentation import LRASPP, DeepLabV3
from torchvision.models.segmentation.deeplabv3 import DeepLabHead
from torchvision.models.segmentation.fcn import FCNHead
from torchvision.transforms import v2

job = Job.parse()
BASE = int(job.words[1]) if len(job.words) > 1 else 520
CROP, BATCH, LR, MOMENTUM, WEIGHT_DECAY, IGNORED = round(BASE * 480 / 520), 4, 0.01, 0.9, 1e-6, 255


class Features(nn.Module):
    """Two feature maps of timm's model under the names that a decoder wants."""

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        options = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(job.tensors)}}
        self.body = timm.create_model(MODEL, features_only=True, output_stride=16, out_indices=(2, 4), **options)
        self.names, self.channels = names, self.body.feature_info.channels()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return OrderedDict(zip(self.names, self.body(images), strict=True))


def network(kind: str, classes: int) -> nn.Module:
    if kind == "lraspp":
        features = Features(("low", "high"))
        return LRASPP(features, *features.channels, classes)
    features = Features(("aux", "out"))
    low, high = features.channels
    return DeepLabV3(features, DeepLabHead(high, classes), FCNHead(low, classes))


class Maps(Dataset[tuple[Tensor, Tensor]]):
    """Images and maps of the class of each pixel, in folders ``images`` and ``labels``."""

    def __init__(self, folder: Path, transform: v2.Transform) -> None:
        self.images = sorted((folder / "images").iterdir())
        self.labels, self.transform = folder / "labels", transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        path = self.images[index]
        image = tv_tensors.Image(Image.open(path).convert("RGB"))
        labels = tv_tensors.Mask(np.array(Image.open(self.labels / f"{path.stem}.png")))
        image, labels = self.transform(image, labels)
        return image, labels.squeeze(0).long()


def losses(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    parts = {name: functional.cross_entropy(out, labels, ignore_index=IGNORED) for name, out in outputs.items()}
    return parts["out"] + 0.5 * parts.get("aux", torch.zeros(()))


def predict(model: nn.Module, images: Tensor, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Return the map of an image at a size (height and width)."""
    with torch.inference_mode():
        logits = model(images)["out"]
        return functional.interpolate(logits, size, mode="bilinear").argmax(dim=1)[0].numpy().astype(np.uint8)


if __name__ == "__main__":
    torch.manual_seed(job.seed)
    preprocessing = resolve_data_config({}, model=MODEL)
    normalized = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(preprocessing["mean"], preprocessing["std"])]
    fill = {tv_tensors.Image: 0, tv_tensors.Mask: IGNORED}
    augmented = [
        v2.RandomResize(BASE // 2, BASE * 2),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(CROP, pad_if_needed=True, fill=fill),
    ]
    train = Maps(job.folder / "train", v2.Compose([*augmented, *normalized]))
    validation = Maps(job.validation, v2.Compose([v2.Resize(BASE), *normalized]))
    loader = DataLoader(train, BATCH, shuffle=True, drop_last=True, num_workers=2)
    model = network(job.words[0], len((job.folder / "classes.txt").read_text().split()))
    auxiliary = list(model.aux_classifier.parameters()) if job.words[0] == "deeplabv3" else []
    main = [*model.backbone.parameters(), *model.classifier.parameters()]
    groups = [{"params": main, "factor": 1}, {"params": auxiliary, "factor": 10}]
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    # The time of the predictions is that of the first image, for all of them.
    began = time.perf_counter()
    predict(model.eval(), validation[0][0][None], (BASE, BASE))
    reserve = (time.perf_counter() - began) * len(validation) * 1.5
    model.train()
    steps = 0
    for used, (images, labels) in job.batches(loader, reserve):
        for group in optimizer.param_groups:
            group["lr"] = LR * group["factor"] * (1 - used) ** 0.9
        loss = losses(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    model.eval()
    (job.out / "maps").mkdir()
    for index, path in enumerate(validation.images):
        with Image.open(path) as image:
            width, height = image.size
        found = predict(model, validation[index][0][None], (height, width))
        Image.fromarray(found).save(job.out / "maps" / f"{path.stem}.png")
    job.finish(f"{steps / len(loader):.1f} epochs", maps="maps")
