import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.data.sources import Revisited as Source
from opabinia.evaluation.retrieval.retrieval_evaluators import Revisited as Evaluator


def annotations() -> dict[str, Any]:
    """Two queries and six images; the second query has no hard match."""
    first = {"bbx": [1.0, 2.2, 5.0, np.float64(9.6)], "easy": [0, 3], "hard": np.array([1]), "junk": [2]}
    second = {"bbx": [0, 0, 4, 4], "easy": [5], "hard": [], "junk": []}
    return {"imlist": [f"i{n}" for n in range(6)], "qimlist": ["q0", "q1"], "gnd": [first, second]}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    (tmp_path / "jpg").mkdir()
    for name in ("i0", "i1", "i2", "i3", "i4", "i5", "q0", "q1"):
        Image.new("RGB", (10, 12)).save(tmp_path / "jpg" / f"{name}.jpg")

    def write(content: Any) -> Path:
        file = tmp_path / "gnd_roxford5k.pkl"
        file.write_bytes(pickle.dumps(content))
        return file

    return write


def test_queries_are_cropped_and_labels_have_the_matches(write: Callable[[Any], Path]) -> None:
    source = Source(file=write(annotations()))
    assert (len(source), source[0]["image"].shape, source[2]["image"].shape) == (8, (3, 8, 4), (3, 12, 10))
    assert [source[index]["label"].tolist() for index in range(8)] == [
        [0, 0], [0, 0], [1, 0], [2, 0], [3, 0], [1, 0], [0, 0], [0, 1],
    ]  # fmt: skip
    assert [source[index]["query"] for index in (1, 2)] == [True, False] and source[7]["id"] == "jpg/i5.jpg"


def test_invalid_annotations_are_reported(write: Callable[[Any], Path]) -> None:
    for change, message in (
        ({"gnd": annotations()["gnd"][:1]}, "2 queries, 1 boxes"),
        ({"imlist": ["i0"]}, "has other annotations .IndexError"),
        ({"qimlist": ["q0", "q7"]}, r"1 of 8 images are not in .*q7\.jpg"),
        ({"gnd": [Path("/")]}, "refused: it asks for 'pathlib"),
    ):
        with pytest.raises(ValueError, match=message):
            Source(file=write({**annotations(), **change}))


def test_scores_equal_those_computed_by_hand(write: Callable[[Any], Path]) -> None:
    source = Source(file=write(annotations()))
    angles = torch.tensor([0, 3.0, 0.1, 0.3, 0.0, 0.4, 0.2, 2.9])  # nearest to query 0: i2, i0, i4, i1, i3, i5
    batch = {
        "id": [source.id(index) for index in range(8)],
        "label": torch.stack([source[index]["label"] for index in range(8)]),
        "query": torch.from_numpy(source.info.queries),
    }
    evaluator = Evaluator(DatasetInfo(samples=8, queries=True))
    evaluator.update({"embedding": torch.stack((angles.cos(), angles.sin()), 1)}, batch)
    scores = evaluator.compute([evaluator.state()])
    # Query 0. Medium: without i2 the matches have the ranks 1, 3, 4; hard: without i0, i2, i3 rank 2; easy: 1 and 3.
    medium, hard, easy = (
        (1 + (1 / 2 + 2 / 3) / 2 + (2 / 3 + 3 / 4) / 2) / 3,
        (0 + 1 / 2) / 2,
        (1 + (1 / 2 + 2 / 3) / 2) / 2,
    )
    assert scores == pytest.approx(
        {
            "medium_mAP": (medium + 1) / 2, "hard_mAP": hard, "easy_mAP": (easy + 1) / 2,
            "medium_mP@10": (3 / 4 + 1) / 2, "hard_mP@10": 1 / 2, "easy_mP@10": (2 / 3 + 1) / 2,
        }
    )  # fmt: skip
    with pytest.raises(DataMismatch, match="a label needs a value for each query"):
        evaluator.compute([[evaluator.state()[0]._replace(labels=np.zeros(8))]])
