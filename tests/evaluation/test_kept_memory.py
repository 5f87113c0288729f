"""Evaluators keep no memory of predictions and batches, which is pinned or a slot of a loader worker."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from opabinia.contracts import DatasetInfo
from opabinia.evaluation.classification.multilabel import MultiLabel
from opabinia.evaluation.classification.topk import TopK
from opabinia.evaluation.classification.video import PerVideo
from opabinia.evaluation.representation.knn import Knn
from opabinia.evaluation.retrieval.retrieval_evaluators import InstanceRetrieval, Retrieval
from opabinia.tasks.classification_base import logits_from

DATASET_INFO = DatasetInfo(samples=8, classes=("a", "b", "c"), queries=True)
SEVERAL = torch.tensor([[0, 1, 1], [1, 0, 1]] * 4)

EVALUATORS: dict[str, tuple[Callable[[], Any], Tensor]] = {
    "feature bank": (lambda: Knn(DATASET_INFO), torch.arange(8) % 3),
    "retrieval": (lambda: Retrieval(DATASET_INFO), torch.arange(8) % 3),
    "instance retrieval": (lambda: InstanceRetrieval(DATASET_INFO), torch.arange(8) % 3),
    "several labels": (lambda: MultiLabel(DATASET_INFO.classes), SEVERAL),
    "videos": (lambda: PerVideo([TopK()], partial(logits_from, multi_label=True)), SEVERAL),
}


@pytest.mark.parametrize(("make", "labels"), EVALUATORS.values(), ids=EVALUATORS.keys())
def test_states_are_copies(make: Callable[[], Any], labels: Tensor) -> None:
    evaluator, features = make(), torch.rand(8, 3)
    predictions = {"embedding": features, "logits": features.clone(), "probabilities": features.clone()}
    tensors = {"label": labels.clone(), "camera": torch.arange(8), "query": torch.arange(8) < 4}
    batch = {**tensors, "id": list("abcdefgh")}
    for add in (getattr(evaluator, "learn", None), evaluator.update):
        if add is not None:
            add(predictions, batch)
    before = pickle.dumps(evaluator.state())
    for tensor in (*predictions.values(), *tensors.values()):
        tensor.zero_()
    assert pickle.dumps(evaluator.state()) == before
