"""torchvision: its reference training of detectors, with the schedule over the time instead of 26 epochs.

The words are ``320`` or ``800``: Faster R-CNN as ``fasterrcnn_mobilenet_v3_large_320_fpn`` or ``..._fpn``, with timm's
model in place of MobileNet: maps of strides 16 and 32, frozen batch norms and first stages, and 256 channels.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import timm
import torch
from job import MODEL, Job
from timm.data import resolve_data_config
from timm.utils.model import freeze_batch_norm_2d
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool
from torchvision.transforms import v2

job = Job.parse()
BATCH, LR, MOMENTUM, WEIGHT_DECAY, WARMUP = 2, 0.02 / 8, 0.9, 1e-4, 1000
"""For one process; the warm-up is of at most one epoch and a tenth of the time."""
SIZES: dict[str, dict[str, Any]] = {
    "320": {"min_size": 320, "max_size": 640, "rpn_pre_nms_top_n_test": 150, "rpn_post_nms_top_n_test": 150},
    "800": {"min_size": 800, "max_size": 1333},
}


class Pyramid(nn.Module):
    """Feature maps of timm's model and a feature pyramid on them."""

    def __init__(self) -> None:
        super().__init__()
        weights = {"file": str(job.tensors)}
        options = {"pretrained": True, "pretrained_cfg_overlay": weights}
        self.body = timm.create_model(MODEL, features_only=True, out_indices=(3, 4), **options)
        self.body.conv_stem.requires_grad_(False)
        self.body.blocks[:2].requires_grad_(False)
        self.body = freeze_batch_norm_2d(self.body)
        self.out_channels = 256
        self.fpn = FeaturePyramidNetwork(self.body.feature_info.channels(), self.out_channels, LastLevelMaxPool())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        first, second = self.body(images)
        return self.fpn(OrderedDict({"0": first, "1": second}))


def detector(classes: int, size: str) -> FasterRCNN:
    anchors = AnchorGenerator(((32, 64, 128, 256, 512),) * 3, ((0.5, 1.0, 2.0),) * 3)
    preprocessing = resolve_data_config({}, model=MODEL)
    return FasterRCNN(
        Pyramid(),
        classes,
        rpn_anchor_generator=anchors,
        rpn_score_thresh=0.05,
        image_mean=preprocessing["mean"],
        image_std=preprocessing["std"],
        **SIZES[size],
    )


def dataset(split: str, flip: float) -> tuple[CocoDetection, Dataset[Any]]:
    """Return the images of an annotation file, and with tensors and boxes as the detector wants them."""
    transform = v2.Compose([v2.RandomHorizontalFlip(flip), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    file = job.folder / "annotations" / f"instances_{split}.json"
    data = CocoDetection(job.folder / split, file, transforms=transform)
    return data, wrap_dataset_for_transforms_v2(data, target_keys={"image_id", "boxes", "labels"})


def collate(samples: list[tuple[Tensor, dict[str, Any]]]) -> tuple[list[Tensor], list[dict[str, Any]]]:
    return [image for image, _ in samples], [target for _, target in samples]


def detections(model: FasterRCNN, loader: Any) -> list[dict[str, Any]]:
    """Return detections as in COCO's result files."""
    found = []
    model.eval()
    with torch.inference_mode():
        for images, targets in loader:
            for target, prediction in zip(targets, model(images), strict=True):
                columns = (prediction[key].tolist() for key in ("boxes", "labels", "scores"))
                for (left, top, right, bottom), label, score in zip(*columns, strict=True):
                    box = [left, top, right - left, bottom - top]
                    found.append({"image_id": target["image_id"], "category_id": label, "bbox": box, "score": score})
    return found


if __name__ == "__main__":
    torch.manual_seed(job.seed)
    raw, train = dataset("train", flip=0.5)
    _, validation = dataset("val", flip=0.0)
    labelled = [index for index, image in enumerate(raw.ids) if raw.coco.getAnnIds(image)]
    loader = DataLoader(Subset(train, labelled), BATCH, shuffle=True, drop_last=True, num_workers=4, collate_fn=collate)
    validation_loader = DataLoader(validation, 1, num_workers=4, collate_fn=collate)
    model = detector(max(raw.coco.cats) + 1, job.words[0])
    params = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.SGD(params, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    # The time of the predictions is that of the first image, for all of them.
    began = time.perf_counter()
    detections(model, [collate([validation[0]])])
    reserve = (time.perf_counter() - began) * len(validation) * 1.5
    model.train()
    steps = 0
    for used, (images, targets) in job.batches(loader, reserve):
        warmup = min(1.0, max((steps + 1) / min(WARMUP, len(loader)), used * 10))
        decay = 0.1 ** ((used > 16 / 26) + (used > 22 / 26))
        optimizer.param_groups[0]["lr"] = LR * max(warmup, 1e-3) * decay
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    job.finish(f"{steps / len(loader):.1f} epochs", detections=detections(model, validation_loader))
