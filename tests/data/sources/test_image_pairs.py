from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.data.sources import ImagePairs
from opabinia.evaluation.retrieval.retrieval_evaluators import Verification


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("Ann/Ann_0001", "Ann/Ann_0002", "Bo/Bo_0001"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / f"{name}.jpg")
    return tmp_path


def test_lists_of_pairs(folder: Path) -> None:
    (folder / "pairs.txt").write_text("1\t1\nAnn\t1\t2\nAnn\t2\tBo\t1\n")
    (folder / "pairs.csv").write_text(
        "first,second,same\nAnn/Ann_0001.jpg,Ann/Ann_0002.jpg,1\nAnn/Ann_0002.jpg,Bo/Bo_0001.jpg,False\n"
    )
    lfw, table = (ImagePairs(file=folder / name) for name in ("pairs.txt", "pairs.csv"))
    assert lfw.fingerprint() == table.fingerprint() and len(lfw) == 4
    assert lfw.info.labels.tolist() == [0, 0, 2, 3]
    assert [lfw[index]["id"] for index in (1, 2)] == ["1b/Ann/Ann_0002.jpg", "2a/Ann/Ann_0002.jpg"]
    for name, text, message in (
        ("a.csv", "first,second,same\na,b,maybe\n", "line 2: same is 'maybe', expected 1 or 0"),
        ("a.csv", "first,second,same\nAnn/Ann_0001.jpg,b.jpg,1\n", r"images are not in .*: b\.jpg \(line 2\)"),
        ("a.csv", "first,second,same\n", "lists no pairs"),
        ("a.txt", "10 300\nAnn 1\n", "line 2: expected <name> <number>"),
    ):
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=message):
            ImagePairs(file=folder / name)


def test_accuracy_of_pairs_of_the_source() -> None:
    evaluator = Verification(DatasetInfo(samples=8), folds=2)
    features = torch.tensor([[3.0, 0], [1, 0], [1, 0], [0, 2], [0, 1], [0, 1], [1, 0], [0, 5]])
    labels = torch.tensor([0, 0, 2, 3, 4, 4, 6, 6])  # each fold has one error
    for start in (0, 4):  # batches may end within a fold
        rows = slice(start, start + 4)
        evaluator.update({"embedding": features[rows]}, {"label": labels[rows], "id": list("abcd")})
    assert evaluator.compute([evaluator.state()]) == {"verification_accuracy": 0.5}
    with pytest.raises(DataMismatch, match="4 pairs do not make 10 folds"):
        Verification(DatasetInfo(samples=8)).compute([evaluator.state()])
    state = [batch._replace(labels=np.zeros(4, np.int64)) for batch in evaluator.state()]
    with pytest.raises(DataMismatch, match="must be pairs; the source is image_pairs"):
        evaluator.compute([state])
