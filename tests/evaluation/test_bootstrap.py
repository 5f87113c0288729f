"""Confidence intervals: known cases, their coverage, and scores of resampled data against the real evaluators."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.contracts import DatasetInfo, Evaluator, Resampling
from opabinia.evaluation.bootstrap import Interval, confidence_interval
from opabinia.evaluation.classification.confusion import Confusion
from opabinia.evaluation.classification.multilabel import AttributeRecognition, MultiLabel
from opabinia.evaluation.detection.coco import Coco
from opabinia.evaluation.detection.lvis import Lvis
from opabinia.evaluation.detection.voc import Voc
from opabinia.evaluation.retrieval.retrieval_evaluators import Recall, Retrieval
from opabinia.evaluation.segmentation.panoptic import Panoptic
from opabinia.evaluation.segmentation.semantic import Semantic
from tests.evaluation import scenes, test_segmentation

BOXES = replace(scenes.DATASET_INFO, masks=False, keypoints=())
MASKS = replace(scenes.DATASET_INFO, keypoints=())
THREE = ("a", "b", "c")

KNOWN: list[tuple[int, int, float, float]] = [  # right, samples, bounds; the last two are those of Clopper and Pearson
    (90, 100, 0.84, 0.95),
    (500, 1000, 0.469, 0.531),
    (20, 20, 0.832, 1.0),
    (0, 20, 0.0, 0.168),
]  # fmt: skip


@pytest.mark.parametrize(("right", "samples", "low", "high"), KNOWN)
def test_accuracy(right: int, samples: int, low: float, high: float) -> None:
    interval = confidence_interval(Resampling.share("top1", right, samples))
    assert interval == Interval(interval.low, interval.high, 0.95, "images", samples, 1000) if interval else False
    assert interval is not None and (interval.low, interval.high) == pytest.approx((low, high), abs=0.011)


def test_samples_of_a_group_are_drawn_together() -> None:
    """Copies of the same samples add no information."""
    values, groups = np.random.default_rng(1).random(50), np.arange(50)
    alone, copied = (Resampling.mean("mAP", np.repeat(values, n), "identities", np.repeat(groups, n)) for n in (1, 4))
    first, second = confidence_interval(alone), confidence_interval(copied)
    assert first is not None and second is not None and second.count == 50
    assert (first.low, first.high) == pytest.approx((second.low, second.high))


def test_intervals_hold_the_expected_score() -> None:
    random, held = np.random.default_rng(2), 0
    for _ in range(100):
        interval = confidence_interval(Resampling.mean("score", random.beta(4, 2, 60)))
        held += interval is not None and interval.low <= 4 / 6 <= interval.high
    assert 88 <= held <= 99


def test_an_interval_holds_the_score_where_resampling_is_biased() -> None:
    """The maximum, like average precision, is not unbiased: no resample has a higher one."""
    values = np.random.default_rng(3).random(40)

    def largest(weights: Any) -> Any:
        return np.where(weights > 0, values, 0).max(1)

    interval = confidence_interval(Resampling("largest", "images", 40, largest, 40))
    assert interval is not None and interval.low < values.max() < interval.high <= 1


def test_expensive_scores_get_fewer_resamples_and_scores_of_nothing_no_interval() -> None:
    sizes: list[int] = []

    def scores(weights: Any) -> Any:
        sizes.append(len(weights))
        return np.full(len(weights), np.nan)

    assert confidence_interval(Resampling("AP", "images", 5, scores, 10**9)) is None
    assert sum(sizes) == 100 and max(sizes) == 1
    assert confidence_interval(Resampling("AP", "images", 0, scores, 0)) is None


def scene_rows(**changes: Any) -> list[scenes.Scene]:
    """Return images whose detections all have different scores: among equal ones the order of copies would matter."""
    random = np.random.default_rng(3)
    rows = []
    for number in range(8):
        scene = scenes.make_scene(number, random, int(random.integers(0, 7)), 15)
        scores = np.sort(random.random(15))[::-1].copy()
        truth = replace(scene.ground_truth, **changes)
        rows.append(scene._replace(ground_truth=truth, scores=torch.from_numpy(scores).float()))
    return rows


def without_mask(rows: Sequence[scenes.Scene]) -> list[scenes.Scene]:
    """Return the images; the second object of each has no mask."""
    changed = []
    for row in rows:
        segments = list(row.ground_truth.segments or [])
        segments[1:2] = [None] * len(segments[1:2])
        changed.append(row._replace(ground_truth=replace(row.ground_truth, segments=segments)))
    return changed


def classified(multi_label: bool) -> list[Any]:
    """Return predictions and batches of one sample, in the order in which evaluators resample them."""
    random = np.random.default_rng(4)
    if multi_label:
        logits, labels = random.normal(size=(30, 3)).round(1), (random.random((30, 3)) < 0.4).astype(np.float32)
        order = np.lexsort((*labels.T, *logits.T))
        logits, labels = logits[order], labels[order]
    else:
        pairs = sorted(random.integers(0, 3, (30, 2)).tolist(), key=lambda pair: (pair[0], pair[0] != pair[1]))
        logits, labels = np.eye(3)[[pair[1] for pair in pairs]], np.array([pair[0] for pair in pairs])
    columns = torch.from_numpy(logits).split(1), torch.from_numpy(labels).split(1)
    return [({"logits": row}, {"label": label, "id": ["a"]}) for row, label in zip(*columns, strict=True)]


def boxes(rows: Sequence[Any]) -> Any:
    return scenes.batch_of(rows, kinds=())


def single(rows: Sequence[Any]) -> Any:
    (row,) = rows
    return row


CASES: dict[str, tuple[Callable[[], Evaluator], Sequence[Any], Callable[[Any], Any]]] = {
    "coco": (lambda: Coco(BOXES), scene_rows(), boxes),
    "coco, masks": (lambda: Coco(MASKS), without_mask(scene_rows()), lambda rows: scenes.batch_of(rows, ["masks"])),
    "coco, few detections": (lambda: Coco(BOXES, max_detections=[1, 3]), scene_rows(), boxes),
    "lvis": (
        lambda: Lvis(replace(BOXES, frequencies=tuple("rccff")), max_detections=9),
        scene_rows(absent=(4,), not_exhaustive=(1, 2)),
        boxes,
    ),
    "voc 2007": (lambda: Voc(BOXES, year=2007), scene_rows(), boxes),
    "voc 2012": (lambda: Voc(BOXES), scene_rows(), boxes),
    "semantic": (
        lambda: Semantic(test_segmentation.info(7)),
        test_segmentation.semantic_rows("usual"),
        test_segmentation.batch_of,
    ),
    "panoptic": (
        lambda: Panoptic(test_segmentation.info(8)),
        test_segmentation.panoptic_rows("usual"),
        test_segmentation.batch_of,
    ),
    "multi-label": (lambda: MultiLabel(THREE), classified(True), single),
    "attributes": (lambda: AttributeRecognition(THREE), classified(True), single),
    "mean recall": (lambda: Confusion(THREE), classified(False), single),
}  # fmt: skip


@pytest.mark.parametrize(("make", "rows", "batch_of"), CASES.values(), ids=CASES)
def test_scores_of_resampled_data(make: Any, rows: Sequence[Any], batch_of: Callable[[Any], Any]) -> None:
    """The evaluator itself, given each sample as often as it is drawn, computes the same."""

    def state_of(counts: Sequence[int]) -> list[Any]:
        evaluator = make()
        for row, count in zip(rows, counts, strict=True):
            for _ in range(count):
                evaluator.update(*batch_of([row]))
        return [evaluator.state()]

    draws = np.random.default_rng(5).integers(0, len(rows), (6, len(rows)))
    weights = np.stack([np.bincount(row, minlength=len(rows)) for row in draws])
    evaluator, states = make(), state_of([1] * len(rows))
    evaluator.compute(states)
    expected = [make().compute(state_of(row.tolist())) for row in weights]
    for resampling in evaluator.resamplings(states):
        real = [scores[resampling.name] for scores in expected]
        assert resampling.scores(weights.astype(np.float64)).tolist() == pytest.approx(real, abs=1e-12)


@pytest.mark.parametrize("make", [Retrieval, lambda info: Recall(info, ks=(2,))])
def test_identities_are_resampled(make: Any) -> None:
    generator = torch.Generator().manual_seed(6)
    labels, queries = torch.arange(40) % 8, torch.arange(40) < 16
    features = torch.eye(8)[labels] + 0.5 * torch.randn(40, 8, generator=generator)
    evaluator = make(DatasetInfo(samples=40, queries=True))
    batch = {"label": labels, "query": queries, "id": list(map(str, range(40)))}
    evaluator.update({"embedding": features}, batch)
    scores = evaluator.compute([evaluator.state()])
    for resampling in evaluator.resamplings([]):
        interval = confidence_interval(resampling)
        assert interval is not None and (interval.unit, interval.count) == ("identities", 8)
        assert interval.low <= scores[resampling.name] <= interval.high
