from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import DataMismatch, Evaluator
from opabinia.evaluation.classification.multilabel import MultiLabel
from opabinia.evaluation.classification.topk import TopK
from opabinia.evaluation.classification.video import PerVideo
from opabinia.tasks.classification_base import logits_from

LOGITS = partial(logits_from, multi_label=False)


def score(evaluator: PerVideo, *batches: dict[str, Any], processes: int = 1) -> dict[str, float]:
    """Return the scores of an evaluation in which processes take whole batches in turn."""
    parts = [PerVideo([], evaluator._logits_of, evaluator._merge) for _ in range(processes)]
    for number, batch in enumerate(batches):
        parts[number % processes].update(batch, batch)
    return evaluator.compute([part.state() for part in parts])


def views(videos: str, probabilities: list[list[float]], labels: list[Any]) -> dict[str, Any]:
    return {"id": list(videos), "probabilities": torch.tensor(probabilities), "label": torch.tensor(labels)}


def test_views_are_merged_before_videos_are_counted() -> None:
    # One view of a is wrong, one of b; the mean of b is right, its maximum wrong.
    batches = [
        views("aabb", [[0.8, 0.2], [0.4, 0.6], [0.9, 0.1], [0.45, 0.55]], [0, 0, 1, 1]),
        views("b", [[0.12, 0.88]], [1]),
    ]
    assert score(PerVideo([TopK((1,))], LOGITS), *batches) == {"top1": 1.0}
    assert score(PerVideo([TopK((1,))], LOGITS, "max"), *batches) == {"top1": 0.5}
    batches[1] = views("b", [[0.2, 0.8]], [1])
    assert score(PerVideo([TopK((1,))], LOGITS), *batches) == {"top1": 0.5}


def test_probabilities_are_averaged_not_logits() -> None:
    batch = views("aaa", [[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]], [2, 2, 2])
    recorder = Recorder()
    score(PerVideo([recorder], LOGITS), batch)
    torch.testing.assert_close(recorder.probabilities, batch["probabilities"].double().mean(0, keepdim=True))
    torch.testing.assert_close(recorder.logits.softmax(1), recorder.probabilities)


class Recorder(Evaluator):
    """An evaluator that keeps what it was updated with."""

    better = {"videos": "max"}  # noqa: RUF012

    def update(self, predictions: dict[str, Tensor], batch: dict[str, Any]) -> None:
        self.probabilities, self.logits, self.ids = predictions["probabilities"], predictions["logits"], batch["id"]

    def state(self) -> None: ...

    def compute(self, states: list[None]) -> dict[str, float]:
        return {"videos": float(len(self.ids))}


def test_multi_label_views_are_merged() -> None:
    batch = views("aabb", [[0.9, 0.2], [0.7, 0.4], [0.1, 0.9], [0.3, 0.3]], [[1.0, 0.0]] * 2 + [[0.0, 1.0]] * 2)
    merged = PerVideo([MultiLabel(("x", "y"))], partial(logits_from, multi_label=True))
    assert score(merged, batch)["mAP"] == 1.0
    assert [row["samples"] for row in merged.details([])["per_class"]] == [1, 1]


def test_a_video_without_finite_views_is_a_miss() -> None:
    batch = views("ab", [[float("nan"), float("nan")], [0.9, 0.1]], [0, 0])
    assert score(PerVideo([TopK((1,))], LOGITS), batch) == {"top1": 0.5}


def test_views_of_one_video_with_different_labels_are_reported() -> None:
    with pytest.raises(DataMismatch, match="views of a have different labels: 0 and 1"):
        score(PerVideo([TopK((1,))], LOGITS), views("aa", [[0.5, 0.5]] * 2, [0, 1]))
    with pytest.raises(DataMismatch, match="views of a"):
        score(PerVideo([TopK((1,))], LOGITS), *(views("a", [[0.5, 0.5]], [label]) for label in (0, 1)), processes=2)
