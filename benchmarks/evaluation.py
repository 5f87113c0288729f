"""Claim: evaluating a ResNet-18 takes at most 1.02 times what a plain loop in inference mode takes.

A classifier of ImageNet's 1,000 classes (timm's ResNet-18, 64 x 64) judges noise that lies in memory, in batches of 64;
so does a very small one (``test_resnet``, 32 x 32), beside which the scores themselves weigh most. By hand: pictures
are cut out, normalised and sent through the model, and those are counted whose class is the first, or among the first
five. Ours: the evaluation of a classification run, which besides gives the confusion, scores by class, calibration and
the mean of -log p; ``top only`` leaves these out. Both count the same. One thread, CPU time, median over the rounds,
each beside the loop of its own round.

Extraction beside such a loop is in ``extract.py``. ``--quick`` takes few pictures, to see that it runs. Run:
``python benchmarks/evaluation.py``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from opabinia.contracts import Batch, DatasetInfo, Indices, Sample
from opabinia.data.loader import BatchReader, Loader, evaluation_requests
from opabinia.engine.loop.evaluate import ValidationSet, evaluate
from opabinia.evaluation.classification.topk import TopK
from opabinia.models.backbones.timm import timm
from opabinia.tasks.classification import Classification

QUICK = "--quick" in sys.argv
BATCH, ROUNDS = (16, 1) if QUICK else (64, 9)
CPU = torch.device("cpu")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Noise:
    """Pictures of noise, in memory."""

    channels = 3
    classes = tuple(map(str, range(1000)))

    def __init__(self, count: int, side: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(1000, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return {"image": self.images[index], "label": int(self.labels[index]), "id": str(index)}

    def batch(self, indices: Indices) -> Batch:
        part = torch.from_numpy(indices)
        return {"image": self.images[part], "label": self.labels[part], "id": list(map(str, indices.tolist()))}


def by_hand(task: Classification, source: Noise) -> dict[str, float]:
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in (MEAN, STD))
    first = among = 0
    task.eval()
    with torch.inference_mode():
        for start in range(0, len(source), BATCH):
            part = torch.arange(start, min(start + BATCH, len(source)))
            images, labels = source.images[part], source.labels[part]
            logits: Tensor = task.head(task.backbone((images.float() / 255 - mean) / std))
            right = logits.topk(5).indices == labels[:, None]
            first += int(right[:, 0].sum())
            among += int(right.sum())
    return {"val/top1": first / len(source), "val/top5": among / len(source)}


def ours(task: Classification, source: Noise, *, top_only: bool = False) -> dict[str, float]:
    dataset_info = DatasetInfo(len(source), 3, classes=source.classes)
    loader = Loader(BatchReader(source), evaluation_requests(len(source), BATCH, 0, 1))
    if top_only:
        return evaluate(
            task, ValidationSet("val", loader, dataset_info, evaluators=lambda task, dataset_info: [TopK()]), CPU
        ).scores
    return evaluate(task, ValidationSet("val", loader, dataset_info), CPU).scores


def milliseconds(action: Callable[[], dict[str, float]]) -> tuple[float, dict[str, float]]:
    began = time.process_time()
    found = action()
    return (time.process_time() - began) * 1e3, found


def main() -> None:
    torch.set_num_threads(1)
    for model, count, pixels in (("resnet18", 256, 64), ("test_resnet", 1024, 32)):
        source = Noise(count // 8 if QUICK else count, pixels)
        dataset_info = DatasetInfo(len(source), 3, classes=source.classes)
        task = Classification(dataset_info, backbone=partial(timm, model=model), mean=MEAN, std=STD)
        sides = {
            "by hand": partial(by_hand, task, source),
            "ours, top only": partial(ours, task, source, top_only=True),
            "ours": partial(ours, task, source),
        }
        scores = {name: milliseconds(side)[1] for name, side in sides.items()}
        for score, value in scores["by hand"].items():
            assert all(abs(found[score] - value) < 2 / len(source) for found in scores.values())
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(ROUNDS):
            for name, side in sides.items():
                times[name].append(milliseconds(side)[0])
        print(f"{model}, {len(source)} pictures of {pixels} x {pixels}, median of {ROUNDS} rounds in turn")
        for name, column in times.items():
            ratios = [one / other for one, other in zip(column, times["by hand"], strict=True)]
            print(f"  {name:<15}{statistics.median(column):8.1f} ms   ratio {statistics.median(ratios):.3f}"
                  f" ({min(ratios):.3f} to {max(ratios):.3f})")  # fmt: skip


if __name__ == "__main__":
    main()
