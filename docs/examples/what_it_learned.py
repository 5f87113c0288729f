"""What a run of self-supervision has learned, beside what pixels and its own network at the start know already.

    python docs/examples/what_it_learned.py runs/selfsup/digits_simclr/default

All three go to the same two judges: nearest neighbours and a linear classifier, which learn from the training set and
are asked about the validation set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

import opabinia
from opabinia.contracts import Batch, DatasetInfo, Source, Task
from opabinia.data.loader import Loader, Reader, evaluation_requests
from opabinia.evaluation.representation.knn import Knn
from opabinia.evaluation.representation.linear_probe import LinearProbe
from opabinia.training.launch import parts_of
from opabinia.training.run_folder import resolve

Embed = Callable[[Batch], Tensor]


def main(run: Path, overrides: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Scores of each of the three; the run's own data are read, with the transforms of its validation set."""
    parts = parts_of(resolve(run, overrides)).keywords
    validation = parts["data"].validation[0]
    train, val = parts["data"].train.source, validation.source
    dataset_info = DatasetInfo(samples=len(train), channels=train.channels, classes=train.classes)
    torch.manual_seed(0)
    untrained, trained = parts["task"](dataset_info), opabinia.load(run, overrides).task
    ways = {"pixels": pixels, "untrained": embedded_by(untrained), "trained": embedded_by(trained)}
    return {name: judged(embed, train, val, validation.transforms, dataset_info) for name, embed in ways.items()}


def pixels(batch: Batch) -> Tensor:
    """B x (C * H * W), from 0 to 1."""
    image: Tensor = batch["image"]
    return image.flatten(1) / 255


def embedded_by(task: Task) -> Embed:
    """What a task makes of images (B x D)."""
    task.eval()
    return lambda batch: task.predict(batch)["embedding"]


@torch.inference_mode()
def judged(
    embed: Embed, train: Source, val: Source, transforms: Sequence[object], dataset_info: DatasetInfo
) -> dict[str, float]:
    """The scores of both judges for one way to embed."""
    judges = [Knn(dataset_info), LinearProbe(dataset_info)]
    for source, asked in ((train, False), (val, True)):
        requests = evaluation_requests(len(source), 256, rank=0, world=1)
        for _, batch in Loader(Reader(source, transforms), requests).iterate():
            found = {"embedding": embed(batch)}
            for judge in judges:
                (judge.update if asked else judge.learn)(found, batch)
    return {name: value for judge in judges for name, value in judge.compute([judge.state()]).items()}


if __name__ == "__main__":
    for way, scores in main(Path(sys.argv[1]), sys.argv[2:]).items():
        print(f"{way:<10}", "  ".join(f"{name} {value:.4f}" for name, value in scores.items()))
