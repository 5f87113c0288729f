"""Rules of all evaluators: the same digits on any number of processes, no scores without samples, plain tables, states
that keep no memory of predictions and batches (pinned, or a slot of a loader worker), and the data that they need."""

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from opabinia.contracts import DatasetInfo
from opabinia.evaluation.bootstrap import confidence_interval
from opabinia.evaluation.classification.confusion import Calibration, Confusion
from opabinia.evaluation.classification.multilabel import AttributeRecognition, MultiLabel
from opabinia.evaluation.classification.topk import TopK
from opabinia.evaluation.classification.video import PerVideo
from opabinia.evaluation.classification.worst_samples import WorstSamples
from opabinia.evaluation.detection.coco import Coco, ProposalRecall
from opabinia.evaluation.detection.lvis import Lvis
from opabinia.evaluation.detection.score_calibration import ScoreCalibration
from opabinia.evaluation.detection.voc import Voc
from opabinia.evaluation.mean_losses import MeanLosses
from opabinia.evaluation.representation.clustering import Clustering
from opabinia.evaluation.representation.collapse import Collapse
from opabinia.evaluation.representation.knn import Knn
from opabinia.evaluation.representation.linear_probe import LinearProbe
from opabinia.evaluation.representation.linear_svm import LinearSvm
from opabinia.evaluation.representation.low_shot import LowShot
from opabinia.evaluation.retrieval.retrieval_evaluators import (
    Expansion,
    InstanceRetrieval,
    Recall,
    RepeatedGallery,
    Rerank,
    Retrieval,
)
from opabinia.evaluation.segmentation.combined import Combined
from opabinia.evaluation.segmentation.panoptic import Panoptic
from opabinia.evaluation.segmentation.semantic import Semantic
from opabinia.tasks.classification_base import logits_from
from tests.evaluation import scenes, test_segmentation
from tests.evaluation.features import CLASSES, DATASET_INFO, batches, class_clusters, evaluate_batches, states

Batches = Sequence[tuple[Any, Any]]
QUERIES = replace(DATASET_INFO, queries=True)
BOXES = replace(scenes.DATASET_INFO, masks=False, keypoints=())
LABELS = torch.arange(60) % 3
MULTI_LABELS = torch.stack([LABELS == 0, LABELS < 2, torch.arange(60) % 5 == 0], 1).float()


def samples(labels: Tensor) -> Batches:
    """Return predictions of classifiers and embeddings, of 12 videos or of identities in three cameras."""
    logits = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    features = class_clusters(torch.eye(3, 6), 20, 0.6)[0]
    keys: dict[str, Tensor] = {"logits": logits, "probabilities": logits.softmax(1), "embedding": features}
    keys |= {"losses/loss": logits.exp().sum(1), "layers/wide": 3 * features}
    return [
        (
            {name: tensor[rows].clone() for name, tensor in keys.items()},
            {
                "id": [f"{row:02d}" for row in rows.tolist()],
                "label": labels[rows],
                "camera": rows % 4,
                "query": rows < 20,
            },
        )
        for rows in torch.split(torch.arange(60), 7)
    ]


def views_of_videos(labels: Tensor) -> Batches:
    return [
        (predictions, {**batch, "id": [str(int(name) % 12) for name in batch["id"]]})
        for predictions, batch in samples(labels)
    ]


def images(prefix: str = "", **kinds: Any) -> Batches:
    random = np.random.default_rng(2)
    ids: list[Any] = [f"{prefix}{number}" if prefix else number for number in range(3, 12)]
    all_scenes = [scenes.make_scene(name, random, int(random.integers(0, 8)), 15) for name in ids]
    return [scenes.batch_of(all_scenes[start : start + 2], **kinds) for start in range(0, len(ids), 2)]


def maps(rows: Sequence[Any]) -> Batches:
    return [test_segmentation.batch_of(rows[start : start + 2]) for start in range(0, len(rows), 2)]


TRAIN = batches(*class_clusters(torch.eye(3, 6), 30, 0.6, seed=7))
PROBE: dict[str, Any] = {"layers": ["embedding", "wide"], "epochs": 3, "learning_rates": [0.1, 1.0]}
RETRIEVAL: dict[str, Any] = {
    "rerank": Rerank(k1=6, k2=2),
    "query_expansion": Expansion(k=3),
    "roc": True,
    "precision_at": (5,),
}
SEMANTIC, PANOPTIC = test_segmentation.semantic_rows("usual"), test_segmentation.panoptic_rows("usual")[:6]
ONE_LABEL, SEVERAL_LABELS, IMAGES = samples(LABELS), samples(MULTI_LABELS), images()
VIDEOS = views_of_videos(torch.arange(60) % 12 % 3)
VIDEO_LOGITS = partial(logits_from, multi_label=False)

CASES: dict[str, tuple[Callable[[], Any], Batches]] = {
    "top-k": (TopK, ONE_LABEL),
    "confusion": (lambda: Confusion(CLASSES), ONE_LABEL),
    "calibration": (Calibration, ONE_LABEL),
    "worst samples": (lambda: WorstSamples(CLASSES), ONE_LABEL),
    "multi-label": (lambda: MultiLabel(CLASSES), SEVERAL_LABELS),
    "attributes": (lambda: AttributeRecognition(CLASSES), SEVERAL_LABELS),
    "videos": (lambda: PerVideo([TopK(), Confusion(CLASSES)], VIDEO_LOGITS), VIDEOS),
    "largest of videos": (lambda: PerVideo([TopK()], VIDEO_LOGITS, "max"), VIDEOS),
    "losses": (MeanLosses, ONE_LABEL),
    "knn": (lambda: Knn(DATASET_INFO, k=5), ONE_LABEL),
    "linear probe": (lambda: LinearProbe(DATASET_INFO, **PROBE), ONE_LABEL),
    "linear svm": (lambda: LinearSvm(DATASET_INFO, costs=[0.1, 1.0]), ONE_LABEL),
    "low shot": (lambda: LowShot(DATASET_INFO), ONE_LABEL),
    "clustering": (lambda: Clustering(DATASET_INFO), ONE_LABEL),
    "collapse": (lambda: Collapse(DATASET_INFO), ONE_LABEL),
    "retrieval": (lambda: Retrieval(QUERIES, **RETRIEVAL), ONE_LABEL),
    "single shot": (lambda: RepeatedGallery(QUERIES), ONE_LABEL),
    "random gallery": (lambda: RepeatedGallery(QUERIES, protocol="random_gallery"), ONE_LABEL),
    "recall": (lambda: Recall(DATASET_INFO, ks=(1, 4)), ONE_LABEL),
    "instances": (lambda: InstanceRetrieval(DATASET_INFO), ONE_LABEL),
    "coco": (lambda: Coco(scenes.DATASET_INFO), IMAGES),
    "coco, ids as texts": (lambda: Coco(scenes.DATASET_INFO), images(prefix="p")),
    "proposals": (lambda: ProposalRecall(BOXES), IMAGES),
    "voc": (lambda: Voc(BOXES), IMAGES),
    "lvis": (lambda: Lvis(replace(BOXES, frequencies=tuple("rccff"))), images(kinds=())),
    "scores of detections": (lambda: ScoreCalibration(BOXES), IMAGES),
    "semantic": (lambda: Semantic(test_segmentation.info(7), boundary=True), maps(SEMANTIC)),
    "panoptic": (lambda: Panoptic(test_segmentation.info(8, [0, 2, 3, 5]), boundary=True), maps(PANOPTIC)),
    "combined": (lambda: Combined([Panoptic(test_segmentation.info(8))]), maps(PANOPTIC)),
}  # fmt: skip
every_evaluator = pytest.mark.parametrize(("make", "data"), CASES.values(), ids=CASES)


@every_evaluator
def test_any_number_of_processes_gives_the_same_digits(make: Callable[[], Any], data: Batches) -> None:
    """Also if one of them has no batch."""
    scores, tables = evaluate_batches(make, TRAIN, data)
    for processes in (2, 3, len(data) + 1):
        assert evaluate_batches(make, TRAIN, data, processes) == (scores, tables)
    assert scores.keys() <= make().better.keys() and bool(scores) == bool(make().better)
    json.dumps(tables, allow_nan=False)
    assert make().files(states(make, TRAIN, data, 3)) == make().files(states(make, TRAIN, data))


WITHOUT_RESAMPLING = {
    *("calibration", "worst samples", "losses", "linear svm", "low shot", "clustering", "collapse"),
    *("single shot", "random gallery", "instances", "proposals", "scores of detections"),
}
"""Cases without confidence intervals."""


@pytest.mark.parametrize("name", CASES)
def test_resampling_once_gives_the_score_and_intervals_do_not_depend_on_processes(name: str) -> None:
    make, data = CASES[name]
    intervals = []
    for processes in (1, 3):
        evaluator, rank_states = make(), states(make, TRAIN, data, processes)
        scores = evaluator.compute(rank_states)
        resamplings = evaluator.resamplings(rank_states)
        assert (not resamplings) == (name in WITHOUT_RESAMPLING)
        for number, resampling in enumerate(resamplings):
            assert number or resampling.name == next(iter(evaluator.better)), "the headline score first"
            once = resampling.scores(np.ones((2, resampling.count)))
            assert once.tolist() == pytest.approx([scores[resampling.name]] * 2, abs=1e-12)
        intervals.append([confidence_interval(resampling) for resampling in resamplings])
    assert intervals[0] == intervals[1] and None not in intervals[0]


@every_evaluator
def test_no_samples_give_no_scores(make: Callable[[], Any], data: Batches) -> None:
    evaluator = make()
    rank_states = states(make, TRAIN, [], 2)
    assert evaluator.compute(rank_states) == {}
    json.dumps(evaluator.details(rank_states), allow_nan=False)


@every_evaluator
def test_states_are_copies(make: Callable[[], Any], data: Batches) -> None:
    evaluator, (predictions, batch) = make(), data[0]
    predictions = {name: tensor.clone() for name, tensor in predictions.items()}
    batch = {name: value.clone() if isinstance(value, Tensor) else value for name, value in batch.items()}
    evaluator.learn(predictions, batch)
    evaluator.update(predictions, batch)
    before = pickle.dumps(evaluator.state())
    for tensor in (*predictions.values(), *batch.values()):
        if isinstance(tensor, Tensor):
            tensor.zero_()
    assert pickle.dumps(evaluator.state()) == before


NOTHING, ONE_CLASS = DatasetInfo(samples=1), DatasetInfo(samples=1, classes=("a",))
MULTI_LABEL = replace(DATASET_INFO, multi_label=True)
TWO_KEYPOINTS = replace(scenes.DATASET_INFO, keypoints=("tip", "base"))
REFUSED: list[tuple[Callable[..., Any], DatasetInfo, dict[str, Any], str]] = [
    *((Knn, info, {}, "knn: every image of the data needs one label") for info in (NOTHING, ONE_CLASS, MULTI_LABEL)),
    *((LowShot, info, {}, "low_shot: every image of the data needs one label") for info in (NOTHING, MULTI_LABEL)),
    (LowShot, DATASET_INFO, {"shots": []}, "shots is empty"),
    (Clustering, NOTHING, {}, "clustering: every image of the data needs one label"),
    (LinearSvm, NOTHING, {}, "linear_svm: every image of the data needs labels"),
    (LinearSvm, DATASET_INFO, {"costs": []}, "one cost or more, and two folds or more"),
    (LinearSvm, DATASET_INFO, {"folds": 1}, "one cost or more, and two folds or more"),
    (LinearProbe, NOTHING, {}, "linear_probe: every image of the data needs labels"),
    (LinearProbe, DATASET_INFO, {"layers": []}, "layers is empty"),
    (LinearProbe, DATASET_INFO, {"learning_rates": []}, "learning_rates is empty"),
    (LinearProbe, DATASET_INFO, {"validation_fraction": 0.0}, "validation_fraction is 0.0; it takes a share"),
    (LinearProbe, DATASET_INFO, {"validation_fraction": 1.0}, "validation_fraction is 1.0"),
    (Retrieval, DATASET_INFO, {}, "retrieval: the data has no queries and gallery"),
    (RepeatedGallery, DATASET_INFO, {}, "protocol single_shot: the data has no queries"),
    (Lvis, BOXES, {}, "rare, common or frequent"),
    (Coco, TWO_KEYPOINTS, {}, "sigmas: the data has 2 keypoints"),
    (Coco, TWO_KEYPOINTS, {"sigmas": [0.1]}, "sigmas: 1 numbers for 2 keypoints"),
    *((Coco, BOXES, {"max_detections": numbers}, "max_detections: .* must be ascending") for numbers in ([], [10, 10])),
    (Coco, replace(BOXES, oriented=True), {}, "boxes of the data are oriented: take dota_map"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "info", "options", "message"), REFUSED, ids=[case[-1][:40] for case in REFUSED])
def test_data_and_options_that_do_not_fit_are_refused(
    make: Callable[..., Any], info: DatasetInfo, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(info, **options)
