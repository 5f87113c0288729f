"""A plain triplet baseline of re-identification in PyTorch, after Hermans et al. 2017 (arXiv:1703.07737).

Batch-hard triplets of 18 identities with 4 images each, the soft margin, Adam with 3e-4 that decays by 1000 from 60 %
of the length on, embeddings of 128 numbers, crops of enlarged images and mirroring; here over the time, on timm's model
at its own size. Images of a query and the gallery are compared by Euclidean distance.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import timm
import torch
from job import MODEL, Job
from PIL import Image
from timm.data import resolve_data_config
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

job = Job.parse()
IDENTITIES, IMAGES, LR, DECAYS_FROM, DIMENSIONS = 18, 4, 3e-4, 0.6, 128


class Crops(Dataset[tuple[Tensor, int]]):
    """Images with the number that their names begin with."""

    def __init__(self, folder: Path, transform: v2.Transform) -> None:
        self.paths = sorted(folder.glob("*.jpg"))
        self.ids = [int(path.name.split("_")[0]) for path in self.paths]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), self.ids[index]


class IdentityBatches:
    """Batches of some images of each of some identities; an epoch has each identity once."""

    def __init__(self, ids: list[int]) -> None:
        self.images = defaultdict[int, list[int]](list)
        for index, identity in enumerate(ids):
            self.images[identity].append(index)
        self.random = random.Random(job.seed)

    def __len__(self) -> int:
        return max(1, len(self.images) // IDENTITIES)

    def __iter__(self) -> Iterator[list[int]]:
        order = self.random.sample(sorted(self.images), len(self.images))
        for number in range(len(self)):
            batch = []
            for identity in order[number * IDENTITIES : (number + 1) * IDENTITIES]:
                images = self.images[identity]
                enough = len(images) >= IMAGES
                batch += self.random.sample(images, IMAGES) if enough else self.random.choices(images, k=IMAGES)
            yield batch


class Embedding(nn.Module):
    """Timm's model with the paper's two layers in place of its classifier."""

    def __init__(self) -> None:
        super().__init__()
        options = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(job.tensors)}}
        self.body = timm.create_model(MODEL, num_classes=0, **options)
        self.head = nn.Sequential(
            nn.Linear(self.body.num_features, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, DIMENSIONS)
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


def batch_hard(embeddings: Tensor, ids: Tensor) -> Tensor:
    """Return the soft margin between the farthest image of the same identity and the nearest of another."""
    squared = (embeddings[:, None] - embeddings[None]).square().sum(dim=2)
    distances = (squared + 1e-12).sqrt()
    same = ids[:, None] == ids[None]
    positive = distances.masked_fill(~same, 0).amax(dim=1)
    negative = distances.masked_fill(same, torch.inf).amin(dim=1)
    return functional.softplus(positive - negative).mean()


def embeddings(model: nn.Module, data: Crops) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    with torch.inference_mode():
        return torch.cat([model(images) for images, _ in DataLoader(data, 32, num_workers=2)]).numpy()


if __name__ == "__main__":
    torch.manual_seed(job.seed)
    preprocessing = resolve_data_config({}, model=MODEL)
    size = preprocessing["input_size"][-1]
    normalized = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(preprocessing["mean"], preprocessing["std"]),
    ]
    enlarged = [v2.Resize((size * 9 // 8,) * 2), v2.RandomCrop(size), v2.RandomHorizontalFlip()]
    plain = v2.Compose([v2.Resize((size, size)), *normalized])
    train = Crops(job.folder / "bounding_box_train", v2.Compose([*enlarged, *normalized]))
    sides = {side: Crops(job.folder / folder, plain) for side, folder in
             {"query": "query", "gallery": "bounding_box_test"}.items()}  # fmt: skip
    batches = IdentityBatches(train.ids)
    loader = DataLoader(train, batch_sampler=batches, num_workers=2)
    model = Embedding()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    # The time of the embeddings is that of the first images, for all of them.
    first = torch.stack([sides["query"][index][0] for index in range(min(16, len(sides["query"])))])
    began = time.perf_counter()
    with torch.inference_mode():
        model.eval()(first)
    reserve = (time.perf_counter() - began) / len(first) * sum(map(len, sides.values())) * 1.5
    model.train()
    steps = 0
    for used, (images, ids) in job.batches(loader, reserve):
        optimizer.param_groups[0]["lr"] = LR * 1e-3 ** max(0.0, (used - DECAYS_FROM) / (1 - DECAYS_FROM))
        loss = batch_hard(model(images), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    model.eval()
    for side, data in sides.items():
        np.save(job.out / f"{side}.npy", embeddings(model, data))
    names = {side: [path.name for path in data.paths] for side, data in sides.items()}
    job.finish(f"{steps} steps of {IDENTITIES} x {IMAGES} images", embeddings=names)
