"""What evaluators are given beside predictions: layers, embeddings, and the training data to learn from."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, DataMismatch, Evaluator, Predictions, Task
from opabinia.data.sampling.batches import evaluation_rows
from opabinia.engine.loop.evaluate import Validation, evaluate, layers_of, needs_training_data
from opabinia.evaluation.representation.knn import Knn
from tests.engine.toys import CPU, FACTS, Line, Rows, validation


class Embedding(Line):
    """Predicts no embedding, but has one."""

    def features(self, batch: Batch) -> dict[str, Tensor]:
        return {"embedding": 2 * batch["image"]}


class Kept:
    """Keeps what it is given of some layers."""

    better = {"kept": "max"}  # noqa: RUF012

    def __init__(self, *layers: str) -> None:
        self.layers = layers
        self.seen: list[Predictions] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        self.seen.append({**predictions, "image": batch["image"]})

    def state(self) -> int:
        return len(self.seen)

    def compute(self, states: Sequence[int]) -> dict[str, float]:
        return {"kept": float(sum(states))}


class Learning(Kept):
    """Counts the training batches, too."""

    def __init__(self) -> None:
        super().__init__()
        self.learned = 0

    def learn(self, predictions: Predictions, batch: Batch) -> None:
        assert not self.seen, "the training data comes first"
        self.learned += 1

    def compute(self, states: Sequence[int]) -> dict[str, float]:
        return {"kept": float(self.learned)}


def judged_by(*evaluators: Evaluator, training: Rows | None = None) -> Validation:
    return replace(validation(), evaluators=lambda task, dataset_info: list(evaluators), training=training)


def rows(samples: int, seed: int = 2) -> Rows:
    found = list(evaluation_rows(samples, 3, 0, 1))
    return Rows(lambda start: found[start:], seed)


def test_an_embedding_that_the_task_does_not_predict_is_that_of_its_features() -> None:
    kept = Kept("embedding", "layer")
    task = Embedding()
    evaluate(task, judged_by(kept), CPU)
    assert len(kept.seen) == 3
    for said in kept.seen:
        torch.testing.assert_close(said["embedding"], 2 * said["image"])
        torch.testing.assert_close(said["layers/layer"], task.layer(said["image"]))
        assert set(said) == {"logits", "embedding", "layers/layer", "image"}


def test_an_embedding_that_the_task_predicts_is_taken_as_it_is() -> None:
    class Predicts(Embedding):
        def predict(self, batch: Batch) -> Predictions:
            return {"embedding": batch["image"]}

    kept = Kept("embedding")
    evaluate(Predicts(), judged_by(kept), CPU)
    assert all(torch.equal(said["embedding"], said["image"]) for said in kept.seen)


def test_nobody_asks_nobody_pays() -> None:
    class Costly(Embedding):
        def features(self, batch: Batch) -> dict[str, Tensor]:
            raise AssertionError("nobody has asked for it")

    kept = Kept()
    evaluate(Costly(), judged_by(kept), CPU)
    assert set(kept.seen[0]) == {"logits", "image"}


@pytest.mark.parametrize(
    ("task", "name", "near"),
    [(Embedding(), "embeding", "embedding"), (Embedding(), "lay", "layer"), (Line(), "embedding", "none")],
    ids=["an embedding", "a module", "a task without features"],
)
def test_layers_that_are_not_there_are_told_with_near_names(task: Task, name: str, near: str) -> None:
    with pytest.raises(DataMismatch, match=f"there is no layer '{name}'; near: {near}"):
        layers_of(task, [Kept(name)])


def test_a_layer_that_is_not_used_is_told() -> None:
    class Idle(Line):
        def __init__(self) -> None:
            super().__init__()
            self.projector = nn.Linear(4, 2)

        def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
            return {"loss": self.projector(batch["image"]).sum()}

    with pytest.raises(DataMismatch, match="the task makes no use of 'projector' when it predicts"):
        evaluate(Idle(), judged_by(Kept("projector")), CPU)


def test_the_training_data_is_learned_first_and_its_workers_end_then() -> None:
    training, learning = rows(8), Learning()
    one = judged_by(learning, training=training)
    assert evaluate(Line(), one, CPU).scores == {"val/kept": 3.0}
    assert training.closed == 1
    assert evaluate(Line(), judged_by(Learning(), training=training), CPU).scores == {"val/kept": 3.0}
    assert training.closed == 2
    one.close()
    assert training.closed == 3


def test_who_does_not_learn_leaves_the_training_data_alone() -> None:
    class Closed(Rows):
        def iterate(self, start: int = 0) -> Any:
            raise AssertionError("nobody learns from it")

    one = judged_by(Kept(), training=Closed(lambda start: []))
    assert not needs_training_data(Line(), one)
    assert needs_training_data(Line(), judged_by(Learning()))
    evaluate(Line(), one, CPU)


def test_neighbours_are_measured_for_any_task_with_an_embedding() -> None:
    scores = evaluate(Embedding(), judged_by(Knn(FACTS, k=1), training=rows(7, seed=1)), CPU).scores
    assert scores == {"val/knn_top1": 1.0}  # the same samples as those of the set
