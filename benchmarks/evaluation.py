"""Claim: evaluating a ResNet-18 takes at most 1.02 times what a plain loop in inference mode takes.

A classifier of ImageNet's 1,000 classes (timm's ResNet-18, 64 x 64) classifies noise images in memory, in batches of
64; so does a very small one (``test_resnet``, 32 x 32), where computing the scores takes the largest share. By hand:
images are sliced from a tensor, normalized and passed through the model, and top-1 and top-5 accuracy are counted.
Ours: the evaluation of a classification run, which also computes the confusion matrix, scores by class, calibration and
the mean negative log-likelihood; ``top only`` omits these. Both sides have the same accuracies. One thread, CPU time,
median over the rounds; a ratio is to the loop of the same round.

Then the scores of every other task alone, from predictions in memory, compared with the loop that a user would write
and the libraries that are installed (pycocotools, faster-coco-eval, torchmetrics): average precision of boxes, mIoU,
nearest neighbors of a self-supervised network, ranking of a gallery, videos of several clips. All give the same score;
``with tables`` also makes the tables of the report (classes, confusion, worst images). A multi-task run has the
evaluators of its tasks. A detector's whole evaluation is in ``detection.py``, ranking at its full size in
``retrieval.py``, extraction in ``extract.py``. ``--quick`` takes few samples, to see that it works. Run: ``python
benchmarks/evaluation.py``, or with ``model`` or ``scores`` for one part.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from retrieval import by_sorting
from torch import Tensor

from opabinia.contracts import (
    Batch,
    DatasetInfo,
    Evaluator,
    GroundTruth,
    GroundTruthMap,
    Indices,
    Sample,
    Source,
    SourceInfo,
)
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import evaluation_requests
from opabinia.engine.loop.evaluate import ValidationSet, evaluate
from opabinia.evaluation.classification.topk import TopK
from opabinia.evaluation.classification.video import PerVideo
from opabinia.evaluation.detection.coco import Coco
from opabinia.evaluation.representation.knn import Knn
from opabinia.evaluation.retrieval.retrieval_evaluators import Retrieval
from opabinia.evaluation.segmentation.semantic import Semantic
from opabinia.models.backbones.timm import timm
from opabinia.tasks.classification import Classification

QUICK = "--quick" in sys.argv
BATCH, ROUNDS = (16, 1) if QUICK else (64, 9)
CPU = torch.device("cpu")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Noise(Source):
    """Images of noise, in memory."""

    info = SourceInfo(channels=3, classes=tuple(map(str, range(1000))))

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
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    in_top1 = in_top5 = 0
    task.eval()
    with torch.inference_mode():
        for start in range(0, len(source), BATCH):
            part = torch.arange(start, min(start + BATCH, len(source)))
            images, labels = source.images[part], source.labels[part]
            logits: Tensor = task.head(task.backbone((images.float() / 255 - mean) / std))
            correct = logits.topk(5).indices == labels[:, None]
            in_top1 += int(correct[:, 0].sum())
            in_top5 += int(correct.sum())
    return {"val/top1": in_top1 / len(source), "val/top5": in_top5 / len(source)}


def ours(task: Classification, source: Noise, *, top_only: bool = False) -> dict[str, float]:
    dataset_info = DatasetInfo(len(source), channels=3, classes=source.classes)
    loader = Loader(BatchReader(source), evaluation_requests(len(source), BATCH, 0, 1))
    if top_only:
        return evaluate(
            task, ValidationSet("val", loader, dataset_info, evaluators=lambda task, dataset_info: [TopK()]), CPU
        ).scores
    return evaluate(task, ValidationSet("val", loader, dataset_info), CPU).scores


def milliseconds(action: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = action()
    return (time.process_time() - began) * 1e3, result


def in_turn(sides: dict[str, Callable[[], Any]], against: str) -> None:
    """Print the time of each side, and its ratio to that of the side ``against``."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            times[name].append(milliseconds(side)[0])
    for name, column in times.items():
        ratios = [value / base for value, base in zip(column, times[against], strict=True)]
        print(f"  {name:<22}{statistics.median(column):8.1f} ms   ratio {statistics.median(ratios):.3f}"
              f" ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)  # fmt: skip


def model_evaluations() -> None:
    for model, count, pixels in (("resnet18", 256, 64), ("test_resnet", 1024, 32)):
        source = Noise(count // 8 if QUICK else count, pixels)
        dataset_info = DatasetInfo(len(source), channels=3, classes=source.classes)
        task = Classification(dataset_info, backbone=partial(timm, model=model), mean=MEAN, std=STD)
        sides = {
            "by hand": partial(by_hand, task, source),
            "ours, top only": partial(ours, task, source, top_only=True),
            "ours": partial(ours, task, source),
        }
        scores = {name: milliseconds(side)[1] for name, side in sides.items()}
        for score, value in scores["by hand"].items():
            assert all(abs(side[score] - value) < 2 / len(source) for side in scores.values())
        print(f"{model}, {len(source)} images of {pixels} x {pixels}, median of {ROUNDS} rounds in turn")
        in_turn(sides, "by hand")


# --- scores alone, from predictions in memory -------------------------------------------------------------------------

Batches = Sequence[tuple[dict[str, Tensor], Batch]]
CLASSES = 20


def evaluator_scores(make: Callable[[], Any], batches: Batches, tables: bool = False) -> float:
    """Return the headline score of an evaluator."""
    evaluator = make()
    for predictions, batch in batches:
        evaluator.update(predictions, batch)
    states = [evaluator.state()]
    score: float = evaluator.compute(states)[next(iter(evaluator.better))]
    if tables:
        evaluator.details(states)
    return score


def compare_scores(title: str, make: Callable[[], Any], batches: Batches, **others: Callable[[], float]) -> None:
    """Compare an evaluator's time with the ``others``; ratios are to the first of them. Libraries may be missing."""
    sides = {name.replace("_", " "): side for name, side in others.items()}
    for name in [name for name, side in sides.items() if getattr(side, "library", None)]:
        try:
            import_module(sides[name].library)  # type: ignore[attr-defined]
        except ImportError:
            del sides[name]
    sides["opabinia"] = partial(evaluator_scores, make, batches)
    if type(make()).details is not Evaluator.details:
        sides["opabinia, with tables"] = partial(evaluator_scores, make, batches, tables=True)
    scores = {name: side() for name, side in sides.items()}
    assert max(scores.values()) - min(scores.values()) < 1e-5, scores
    print(f"{title}; {scores['opabinia']:.4f}")
    in_turn(sides, next(iter(sides)))


def library(name: str) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """Mark a side that needs a library."""

    def mark(side: Callable[..., float]) -> Callable[..., float]:
        side.library = name  # type: ignore[attr-defined]
        return side

    return mark


def chunks(count: int, size: int = 64) -> Iterator[slice]:
    return (slice(start, stop) for start, stop in pairwise([*range(0, count, size), count]))


def boxes_scores() -> None:
    images, objects, detections = (20 if QUICK else 300), 8, 50
    random = np.random.default_rng(0)
    corners = random.uniform(0, 300, (images, objects, 2))
    boxes = np.concatenate([corners, random.uniform(10, 200, (images, objects, 2))], 2)  # left, top, width, height
    labels = random.integers(CLASSES, size=(images, objects))
    nearest_object = random.integers(objects, size=(images, detections))
    rows = np.arange(images)[:, None]
    predicted = (boxes[rows, nearest_object] * random.normal(1, 0.1, (images, detections, 4))).astype(np.float32)
    predicted_labels = np.where(
        random.random(nearest_object.shape) < 0.7,
        labels[rows, nearest_object],
        random.integers(CLASSES, size=nearest_object.shape),
    )
    confidences = -np.sort(-random.random((images, detections)).astype(np.float32))
    ground_truths = [
        GroundTruth(n, (500, 500), n * objects + np.arange(1, objects + 1), boxes[n], labels[n],
                    boxes[n, :, 2] * boxes[n, :, 3], np.zeros(objects, bool))
        for n in range(images)
    ]  # fmt: skip
    as_corners = np.concatenate([predicted[..., :2], predicted[..., :2] + predicted[..., 2:]], 2)
    tensors = {"boxes": as_corners, "scores": confidences, "labels": predicted_labels}
    batches = [
        ({name: torch.from_numpy(values[part]) for name, values in tensors.items()},
         {"id": list(map(str, range(part.start, part.stop))), "ground_truth": ground_truths[part]})
        for part in chunks(images)
    ]  # fmt: skip

    def coco_content() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return annotations and results as lists of dictionaries, as in detection references."""
        annotations = [
            {"id": int(i), "image_id": ground_truth.image_id, "category_id": c, "bbox": b, "area": a, "iscrowd": 0}
            for ground_truth in ground_truths
            for i, c, b, a in zip(
                ground_truth.ids,
                ground_truth.labels.tolist(),
                ground_truth.boxes.tolist(),
                ground_truth.areas.tolist(),
                strict=True,
            )
        ]
        results = [
            {"image_id": n, "category_id": c, "score": s, "bbox": [left, top, right - left, bottom - top]}
            for predictions, batch in batches
            for n, *rows in zip(map(int, batch["id"]), *(predictions[name].tolist() for name in tensors), strict=True)
            for (left, top, right, bottom), s, c in zip(*rows, strict=True)
        ]
        categories = [{"id": number, "name": str(number)} for number in range(CLASSES)]
        sizes = [{"id": n, "height": 500, "width": 500} for n in range(images)]
        return {"info": {}, "images": sizes, "annotations": annotations, "categories": categories}, results

    @library("faster_coco_eval")
    def faster_coco_eval() -> float:
        from faster_coco_eval import COCO, COCOeval_faster

        content, results = coco_content()
        with contextlib.redirect_stdout(io.StringIO()):
            ground_truth = COCO(content)
            evaluation = COCOeval_faster(ground_truth, ground_truth.loadRes(results), "bbox")
            evaluation.run()
        return float(evaluation.stats[0])

    @library("pycocotools")
    def pycocotools() -> float:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        content, results = coco_content()
        with contextlib.redirect_stdout(io.StringIO()):
            ground_truth = COCO()
            ground_truth.dataset = content
            ground_truth.createIndex()
            evaluation = COCOeval(ground_truth, ground_truth.loadRes(results), "bbox")
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        return float(evaluation.stats[0])

    info = DatasetInfo(images, channels=3, classes=tuple(map(str, range(CLASSES))), boxes=True)
    title = f"AP of boxes, {images} images with {objects} objects and {detections} detections"
    compare_scores(title, partial(Coco, info), batches, pycocotools=pycocotools, faster_coco_eval=faster_coco_eval)


def maps_scores() -> None:
    images, side = (4, 64) if QUICK else (60, 320)
    random = np.random.default_rng(0)
    ground_truth = random.integers(CLASSES, size=(images, side, side), dtype=np.uint8)
    ground_truth[random.random(ground_truth.shape) < 0.02] = 255
    predicted_map = np.where(
        random.random(ground_truth.shape) < 0.8,
        ground_truth % CLASSES,
        random.integers(CLASSES, size=ground_truth.shape),
    )
    predicted, target = torch.from_numpy(predicted_map.astype(np.uint8)), torch.from_numpy(ground_truth)
    batches = [
        ({"segmentation": predicted[part], "image_size": torch.tensor([[side, side]] * (part.stop - part.start))},
         {"id": list(map(str, range(part.start, part.stop))),
          "ground_truth_map": [GroundTruthMap(n, ground_truth[n]) for n in range(part.start, part.stop)]})
        for part in chunks(images, 4)
    ]  # fmt: skip

    def by_hand() -> float:
        """Compute the confusion matrix as in torchvision's segmentation reference."""
        matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
        for part in chunks(images, 4):
            a, b = target[part].flatten().long(), predicted[part].flatten().long()
            known = a < CLASSES
            matrix += torch.bincount(CLASSES * a[known] + b[known], minlength=CLASSES**2).view(CLASSES, CLASSES)
        hits = matrix.diag().double()
        return float((hits / (matrix.sum(0) + matrix.sum(1) - hits)).mean())

    @library("torchmetrics")
    def torchmetrics() -> float:
        from torchmetrics.classification import MulticlassJaccardIndex

        metric = MulticlassJaccardIndex(CLASSES, ignore_index=255, validate_args=False)
        for part in chunks(images, 4):
            metric.update(predicted[part].long(), target[part].long())
        return float(metric.compute())

    info = DatasetInfo(images, channels=3, classes=tuple(map(str, range(CLASSES))), maps=True)
    title = f"mIoU, {images} maps of {side} x {side}"
    compare_scores(title, partial(Semantic, info), batches, by_hand=by_hand, torchmetrics=torchmetrics)


def features(count: int, centers: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return embeddings around the centers of their classes, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(centers), (count,), generator=generator)
    return centers[labels] + 3.2 * torch.randn(count, centers.shape[1], generator=generator), labels


def neighbors_scores() -> None:
    bank_size, queries = (200, 50) if QUICK else (5000, 1000)
    centers = torch.randn(CLASSES, 256, generator=torch.Generator().manual_seed(0))
    (bank, bank_labels), (query_embeddings, labels) = features(bank_size, centers, 1), features(queries, centers, 2)
    batches = [
        ({"embedding": query_embeddings[part]}, {"id": list(range(part.start, part.stop)), "label": labels[part]})
        for part in chunks(queries)
    ]
    info = DatasetInfo(queries, channels=3, classes=tuple(map(str, range(CLASSES))))

    def make() -> Knn:
        evaluator = Knn(info)
        for part in chunks(bank_size):
            batch = {"id": list(range(part.start, part.stop)), "label": bank_labels[part]}
            evaluator.learn({"embedding": bank[part]}, batch)
        return evaluator

    def by_hand() -> float:
        """Classify as in DINO's k-NN evaluation."""
        a, b = F.normalize(query_embeddings, dim=1), F.normalize(bank, dim=1)
        similarities, nearest = (a @ b.T).topk(20)
        votes = torch.zeros(queries, 20, CLASSES).scatter_(2, bank_labels[nearest].unsqueeze(2), 1)
        classes = (votes * (similarities / 0.07).exp().unsqueeze(2)).sum(1).argmax(1)
        return float((classes == labels).float().mean())

    compare_scores(f"20 nearest neighbors, {queries} of {bank_size} x 256", make, batches, by_hand=by_hand)


def gallery_scores() -> None:
    sizes = (20, 200) if QUICK else (400, 4000)
    centers = torch.randn(100, 256, generator=torch.Generator().manual_seed(0))
    sides = [features(count, centers, seed) for seed, count in enumerate(sizes)]
    vectors, labels = (torch.cat(column) for column in zip(*sides, strict=True))
    cameras = torch.randint(6, labels.shape, generator=torch.Generator().manual_seed(2))
    queries = torch.arange(len(labels)) < sizes[0]
    batches = [
        ({"embedding": vectors[part]},
         {"id": list(map(str, range(part.start, part.stop))), "label": labels[part], "camera": cameras[part],
          "query": queries[part].tolist()})
        for part in chunks(len(labels))
    ]  # fmt: skip

    def by_hand() -> float:
        split = ((column[queries].numpy(), column[~queries].numpy()) for column in (vectors, labels, cameras))
        return by_sorting(*(side for pair in split for side in pair))

    info = DatasetInfo(len(labels), channels=3, classes=tuple(map(str, range(100))), cameras=6, queries=True)
    title = f"mAP of {sizes[0]} queries in a gallery of {sizes[1]} x 256"
    compare_scores(title, partial(Retrieval, info), batches, by_hand=by_hand)


def clips_scores() -> None:
    videos, views, classes = (20 if QUICK else 500), 10, 400
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (videos,), generator=generator).repeat_interleave(views)
    logits = torch.randn(len(labels), classes, generator=generator)
    logits[torch.arange(len(labels)), labels] += 1
    probabilities, ids = logits.softmax(1), [str(n // views) for n in range(len(labels))]
    batches = [
        ({"probabilities": probabilities[part]}, {"id": ids[part], "label": labels[part]})
        for part in chunks(len(labels))
    ]

    def by_hand() -> float:
        """Sum by video, as SlowFast's meter does."""
        sums: dict[str, Tensor] = {}
        video_labels = {}
        for part in chunks(len(labels)):
            for video, row, label in zip(ids[part], probabilities[part], labels[part].tolist(), strict=True):
                sums[video] = sums[video] + row if video in sums else row.clone()
                video_labels[video] = label
        correct = torch.stack(list(sums.values())).argmax(1) == torch.tensor(list(video_labels.values()))
        return float(correct.float().mean())

    title = f"top-1 of {videos} videos of {views} clips"
    compare_scores(title, lambda: PerVideo([TopK((1,))], Tensor.log), batches, by_hand=by_hand)


def main() -> None:
    torch.set_num_threads(1)
    parts = [word for word in sys.argv[1:] if word != "--quick"] or ["model", "scores"]
    if "model" in parts:
        model_evaluations()
    if "scores" in parts:
        for part in (boxes_scores, maps_scores, neighbors_scores, gallery_scores, clips_scores):
            part()


if __name__ == "__main__":
    main()
