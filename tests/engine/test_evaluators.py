"""Optional inputs of evaluators: layer outputs, embeddings and training data."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, Clock, DataMismatch, Evaluator, Predictions, Task
from opabinia.data.sampling.batches import evaluation_batches
from opabinia.engine.loop.evaluate import ValidationSet, evaluate, needs_training_data, requested_layers
from tests.engine.toys import CPU, Line, Rows, validation


class Embedding(Line):
    """Has features, but does not predict an embedding."""

    def features(self, batch: Batch) -> dict[str, Tensor]:
        return {"embedding": 2 * batch["image"]}


class LayerEvaluator(Evaluator):
    """Keeps the outputs of some layers."""

    better = {"kept": "max"}  # noqa: RUF012

    def __init__(self, *layers: str) -> None:
        self.layers = layers
        self.predictions: list[Predictions] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        self.predictions.append({**predictions, "image": batch["image"]})

    def state(self) -> int:
        return len(self.predictions)

    def compute(self, states: Sequence[int]) -> dict[str, float]:
        return {"kept": float(sum(states))}


class Learning(LayerEvaluator):
    """Also counts the training batches."""

    def __init__(self) -> None:
        super().__init__()
        self.learned = 0

    def learn(self, predictions: Predictions, batch: Batch) -> None:
        assert not self.predictions, "the training data comes first"
        self.learned += 1

    def compute(self, states: Sequence[int]) -> dict[str, float]:
        return {"kept": float(self.learned)}


def evaluated_by(*evaluators: Evaluator, training: Rows | None = None) -> ValidationSet:
    return replace(validation(), evaluators=lambda task, dataset_info: list(evaluators), training=training)


def rows(samples: int, seed: int = 2) -> Rows:
    batches = list(evaluation_batches(samples, 3, 0, 1))
    return Rows(lambda start: batches[start:], seed)


def test_an_embedding_that_is_not_predicted_comes_from_features() -> None:
    evaluator = LayerEvaluator("embedding", "layer")
    task = Embedding()
    evaluate(task, evaluated_by(evaluator), CPU)
    assert len(evaluator.predictions) == 3
    for predictions in evaluator.predictions:
        torch.testing.assert_close(predictions["embedding"], 2 * predictions["image"])
        torch.testing.assert_close(predictions["layers/layer"], task.layer(predictions["image"]))
        assert set(predictions) == {"logits", "embedding", "layers/layer", "image"}


def test_a_predicted_embedding_is_used() -> None:
    class Predicts(Embedding):
        def predict(self, batch: Batch) -> Predictions:
            return {"embedding": batch["image"]}

    evaluator = LayerEvaluator("embedding")
    evaluate(Predicts(), evaluated_by(evaluator), CPU)
    assert all(torch.equal(predictions["embedding"], predictions["image"]) for predictions in evaluator.predictions)


def test_layers_that_no_evaluator_reads_are_not_computed() -> None:
    class Costly(Embedding):
        def features(self, batch: Batch) -> dict[str, Tensor]:
            raise AssertionError("no evaluator reads it")

    evaluator = LayerEvaluator()
    evaluate(Costly(), evaluated_by(evaluator), CPU)
    assert set(evaluator.predictions[0]) == {"logits", "image"}


@pytest.mark.parametrize(
    ("task", "name", "near"),
    [(Embedding(), "embeding", "embedding"), (Embedding(), "lay", "layer"), (Line(), "embedding", "none")],
    ids=["an embedding", "a module", "a task without features"],
)
def test_the_error_for_an_unknown_layer_lists_similar_names(task: Task, name: str, near: str) -> None:
    with pytest.raises(DataMismatch, match=f"there is no layer '{name}'; near: {near}"):
        requested_layers(task, [LayerEvaluator(name)])


def test_a_layer_that_predict_does_not_use_is_an_error() -> None:
    class Idle(Line):
        def __init__(self) -> None:
            super().__init__()
            self.projector = nn.Linear(4, 2)

        def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
            return {"loss": self.projector(batch["image"]).sum()}

    with pytest.raises(DataMismatch, match="the task does not use layer 'projector' in predict"):
        evaluate(Idle(), evaluated_by(LayerEvaluator("projector")), CPU)


def test_the_training_data_is_learned_first_and_its_loader_is_closed() -> None:
    training, learning = rows(8), Learning()
    val_set = evaluated_by(learning, training=training)
    assert evaluate(Line(), val_set, CPU).scores == {"val/kept": 3.0}
    assert training.closed == 1
    assert evaluate(Line(), evaluated_by(Learning(), training=training), CPU).scores == {"val/kept": 3.0}
    assert training.closed == 2
    val_set.close()
    assert training.closed == 3


def test_evaluators_that_do_not_learn_do_not_read_the_training_data() -> None:
    class Closed(Rows):
        def iterate(self, start: int = 0) -> Any:
            raise AssertionError("no evaluator learns from it")

    val_set = evaluated_by(LayerEvaluator(), training=Closed(lambda start: []))
    assert not needs_training_data(Line(), val_set)
    assert needs_training_data(Line(), evaluated_by(Learning()))
    evaluate(Line(), val_set, CPU)
