"""Evaluations on several gloo processes: rank 0 computes, all ranks have the scores or the error."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import distributed_c10d

from opabinia.contracts import Batch, DataMismatch, DatasetInfo, Evaluator, Predictions
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.requests import evaluation_requests
from opabinia.engine.loop.evaluate import ValidationSet, evaluate
from opabinia.evaluation.classification.topk import TopK
from opabinia.evaluation.representation.knn import Knn
from opabinia.evaluation.representation.linear_probe import LinearProbe
from opabinia.evaluation.retrieval.retrieval_evaluators import Recall
from opabinia.runtime.processes import rank, world_size
from tests.engine.toys import CPU, FACTS, Line, Vectors
from tests.faults.programs import Server
from tests.runtime.ranks import run_on_ranks

SAMPLES, TRAINING, BATCH_SIZE = 31, 64, 4  # the last round has fewer batches than ranks
FEW = {"few": 2, "none": 0}
"""Samples of evaluations with fewer than there are ranks."""


class Embedding(Line):
    def features(self, batch: Batch) -> dict[str, Tensor]:
        return {"embedding": batch["image"]}

    def predict(self, batch: Batch) -> Predictions:
        return {**super().predict(batch), **self.features(batch)}


class Largest(Evaluator):
    """The largest logit of each sample, as a tensor in the state; tables and files have the rank that computes them."""

    better = {"largest": "max"}  # noqa: RUF012

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def update(self, predictions: Predictions, batch: Batch) -> None:
        self.values.append(predictions["logits"].amax(1))

    def state(self) -> list[Tensor]:
        return self.values

    def compute(self, states: Sequence[list[Tensor]]) -> dict[str, float]:
        return {"largest": max(float(values.max()) for state in states for values in state)}

    def details(self, states: Sequence[list[Tensor]]) -> dict[str, Any]:
        return {"rank": rank()}

    def files(self, states: Sequence[list[Tensor]]) -> dict[str, Any]:
        return {"ranks.json": [len(state) for state in states]}


class Slow(TopK):
    """Computes for longer than other ranks usually wait."""

    def state(self) -> Any:
        distributed_c10d._set_pg_timeout(timedelta(seconds=2))  # type: ignore[no-untyped-call]
        return super().state()

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        time.sleep(2.5)
        return super().compute(states)


class Mismatch(TopK):
    """Fails where it computes, on rank 0."""

    def compute(self, states: Sequence[Any]) -> dict[str, float]:
        raise DataMismatch(f"broken on rank {rank()}")


class Unready(TopK):
    """Fails on rank 1."""

    def state(self) -> Any:
        if rank() == 1:
            raise KeyError("lost")
        return super().state()


EVALUATORS: dict[str, Callable[[DatasetInfo], list[Evaluator]]] = {
    "scores": lambda info: [
        *(TopK((1, 2)), Largest(), Knn(info, k=5), Recall(info, ks=[1])),
        LinearProbe(info, epochs=3, learning_rates=[0.1, 1.0]),
    ],
    "mismatch": lambda info: [Mismatch()],
    "unready": lambda info: [Unready()],
    "few": lambda info: [TopK((1,))],
    "none": lambda info: [TopK((1,))],
    "slow": lambda info: [Slow()],  # the last one: it changes the timeout
}


def validation_set(name: str) -> ValidationSet:
    def loader(samples: int) -> Loader:
        requests = evaluation_requests(samples, BATCH_SIZE, rank(), world_size())
        return Loader(BatchReader(Vectors(samples, spread=1.0), dataset_info=FACTS), requests)

    validation = ValidationSet(
        "val", loader(FEW.get(name, SAMPLES)), FACTS, evaluators=lambda task, info: EVALUATORS[name](info)
    )
    return replace(validation, training=loader(TRAINING), training_samples=TRAINING)


def run_evaluation(name: str) -> dict[str, Any]:
    torch.manual_seed(3)
    try:
        result = evaluate(Embedding(), validation_set(name), CPU)
    except (DataMismatch, KeyError) as error:
        return {type(error).__name__: str(error)}
    return {"scores": result.scores, "details": result.details, "files": result.files}


def run_all() -> dict[str, dict[str, Any]]:
    return {name: run_evaluation(name) for name in EVALUATORS}


@pytest.fixture(scope="module", params=[2, 3])
def ranks(
    request: pytest.FixtureRequest, warm_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, dict[str, Any]]]:
    """The results of all evaluations on each rank, by name."""
    folder = tmp_path_factory.mktemp("ranks")
    return run_on_ranks(warm_server, folder, f"{__name__}:run_all", request.param)


def test_all_ranks_have_the_scores_of_one_process(ranks: list[dict[str, Any]]) -> None:
    expected = run_evaluation("scores")["scores"]
    assert {"val/top1", "val/largest", "val/knn_top1", "val/recall1", "val/linear_top1"} <= expected.keys()
    assert [results["scores"]["scores"] for results in ranks] == [expected] * len(ranks)
    assert list(ranks[-1]["scores"]["scores"]) == list(expected), "in the same order"


def test_fewer_samples_than_ranks(ranks: list[dict[str, Any]]) -> None:
    for name in FEW:
        expected = run_evaluation(name)["scores"]
        assert [results[name]["scores"] for results in ranks] == [expected] * len(ranks)
        assert (expected == {}) == (name == "none")


def test_tables_and_files_are_computed_on_rank_zero(ranks: list[dict[str, Any]]) -> None:
    first, *others = (results["scores"] for results in ranks)
    assert first["details"]["rank"] == 0 and sum(first["files"]["ranks.json"]) == 8
    assert [(results["details"], results["files"]) for results in others] == [({}, {})] * len(others)


def test_other_ranks_wait_as_long_as_rank_zero_computes(ranks: list[dict[str, Any]]) -> None:
    assert all(set(results["slow"]) == {"scores", "details", "files"} for results in ranks)


def test_an_error_of_one_rank_is_raised_on_all(ranks: list[dict[str, Any]]) -> None:
    for results in ranks:
        assert results["mismatch"] == {"DataMismatch": "val: broken on rank 0"}
        assert results["unready"] == {"KeyError": "'lost'"}
