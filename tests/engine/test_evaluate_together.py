"""Evaluations on several gloo processes: rank 0 computes, all ranks have the scores or the error."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import distributed_c10d

from opabinia.contracts import Batch, DataMismatch, DatasetInfo, Evaluator, Predictions, Source, SourceInfo
from opabinia.data.loader import BatchReader, Loader, evaluation_requests
from opabinia.engine.loop.evaluate import ValidationSet, evaluate
from opabinia.evaluation.classification.topk import TopK
from opabinia.evaluation.representation.knn import Knn
from opabinia.evaluation.representation.linear_probe import LinearProbe
from opabinia.evaluation.retrieval.retrieval_evaluators import Recall
from opabinia.runtime.processes import rank, world_size
from tests.engine.toys import CPU, FACTS, Line
from tests.faults.programs import Server
from tests.runtime.ranks import run_on_ranks

SAMPLES, TRAINING, BATCH_SIZE = 31, 64, 4  # the last round has fewer batches than ranks


class Vectors(Source):
    """Vectors around the center of their class."""

    info = SourceInfo(channels=1, classes=FACTS.classes)

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(samples)
        self.labels = torch.randint(3, (samples,), generator=generator).tolist()
        self.images = torch.randn(samples, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.images[index] + self.labels[index]
        return {"image": image, "label": self.labels[index], "id": str(index)}


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
    "slow": lambda info: [Slow()],
    "mismatch": lambda info: [Mismatch()],
    "unready": lambda info: [Unready()],
}


def validation_set(name: str) -> ValidationSet:
    def loader(samples: int) -> Loader:
        requests = evaluation_requests(samples, BATCH_SIZE, rank(), world_size())
        return Loader(BatchReader(Vectors(samples), dataset_info=FACTS), requests)

    validation = ValidationSet("val", loader(SAMPLES), FACTS, evaluators=lambda task, info: EVALUATORS[name](info))
    return replace(validation, training=loader(TRAINING), training_samples=TRAINING)


def run_evaluation(name: str) -> dict[str, Any]:
    torch.manual_seed(3)
    try:
        result = evaluate(Embedding(), validation_set(name), CPU)
    except (DataMismatch, KeyError) as error:
        return {type(error).__name__: str(error)}
    return {"scores": result.scores, "details": result.details, "files": result.files}


Run = Callable[[str, int], list[dict[str, Any]]]


@pytest.fixture
def run(warm_server: Server, tmp_path: Path) -> Run:
    return lambda name, world: run_on_ranks(warm_server, tmp_path, f"{__name__}:run_evaluation", world, name)


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_have_the_scores_of_one_process(run: Run, world: int) -> None:
    expected = run_evaluation("scores")
    assert {"val/top1", "val/largest", "val/knn_top1", "val/recall1", "val/linear_top1"} <= expected["scores"].keys()
    ranks = run("scores", world)
    assert [result["scores"] for result in ranks] == [expected["scores"]] * world
    assert list(ranks[-1]["scores"]) == list(expected["scores"]), "in the same order"


def test_tables_and_files_are_computed_on_rank_zero(run: Run) -> None:
    first, second = run("scores", 2)
    assert first["details"]["rank"] == 0 and first["files"] == {"ranks.json": [4, 4]}
    assert (second["details"], second["files"]) == ({}, {})


def test_other_ranks_wait_as_long_as_rank_zero_computes(run: Run) -> None:
    assert [set(result) for result in run("slow", 2)] == [{"scores", "details", "files"}] * 2


@pytest.mark.parametrize(
    ("name", "expected"), [("mismatch", {"DataMismatch": "val: broken on rank 0"}), ("unready", {"KeyError": "'lost'"})]
)
def test_an_error_of_one_rank_is_raised_on_all(run: Run, name: str, expected: dict[str, str]) -> None:
    assert run(name, 2) == [expected] * 2
