"""Features on the disk: each sample once, in order, the numbers the model gives, and nothing half written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import opabinia
from opabinia import extract as extracting
from opabinia import launch
from opabinia.config import ConfigError
from opabinia.contracts import Task
from opabinia.data.loader import DataError
from opabinia.data.sources import Digits
from opabinia.extract import Layers, NpyFiles, Parquet, Piece, extract, write
from opabinia.predictor import Predictor

SMALL = ["train.length=3it", "data.workers=0", "writers=[]", "evaluate.batch_size=100"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch.train("classification/digits", SMALL, out=tmp_path_factory.mktemp("runs"))[0]


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return opabinia.load(run)


def features_of(predictor: Predictor, source: Digits) -> np.ndarray[Any, Any]:
    """The same in another way: one by one, through the transforms of the validation data."""
    samples = [predictor.sample(source[number]["image"]) for number in range(len(source))]
    with torch.no_grad():
        images = torch.stack([sample["image"] for sample in samples])
        return predictor.task.features({"image": images})["embedding"].numpy()


@pytest.mark.parametrize("split", ["val", "train"])
def test_every_sample_once_and_in_order(run: Path, predictor: Predictor, split: str, tmp_path: Path) -> None:
    """Also the training data goes through the transforms of evaluation: nothing is drawn."""
    out = extract(run, tmp_path / "out", split=split)
    source = Digits(split=split)
    features = np.load(out / "features.npy", mmap_mode="r")
    assert features.dtype == np.float32 and isinstance(features, np.memmap)
    np.testing.assert_allclose(features, features_of(predictor, source), rtol=1e-4, atol=1e-4)
    assert np.array_equal(np.load(out / "labels.npy"), source.labels)
    assert json.loads((out / "ids.json").read_text()) == [source[number]["id"] for number in range(len(source))]
    about = json.loads((out / "about.json").read_text())
    assert about["samples"] == len(source) and about["split"] == split and about["checkpoint"].startswith("step-")
    assert sorted(path.name for path in out.iterdir()) == ["about.json", "features.npy", "ids.json", "labels.npy"]


def test_layers_have_a_file_each(run: Path, predictor: Predictor, tmp_path: Path) -> None:
    layers = ["backbone.model.layer2", "embedding", "head.1"]
    out = extract(run, tmp_path / "out", layers=layers)
    found = {name: np.load(out / f"{name}.npy") for name in layers}
    assert not (out / "features.npy").exists()
    source = Digits(split="val")
    predictions = predictor([source[number]["image"] for number in range(9)])
    logits = torch.stack([one["logits"] for one in predictions])
    np.testing.assert_allclose(found["head.1"][:9], logits.numpy(), rtol=1e-4, atol=1e-4)
    samples = [predictor.sample(source[number]["image"])["image"] for number in range(2)]
    backbone: Any = predictor.task.backbone
    with torch.no_grad():
        maps = backbone.model.layer2(
            backbone.model.layer1(backbone.model.maxpool(backbone.model.act1(backbone.model.bn1(backbone.model.conv1(
                predictor.task.normalize(torch.stack(samples)))))))
        )  # fmt: skip
    np.testing.assert_allclose(found["backbone.model.layer2"][:2], maps.flatten(1).numpy(), rtol=1e-4, atol=1e-4)


def test_parquet_is_one_table(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    plain = extract(run, tmp_path / "plain")
    table = parquet.read_table(extract(run, tmp_path / "table", form="parquet") / "features.parquet")
    features = np.load(plain / "features.npy")
    assert str(table.schema.field("features").type) == f"fixed_size_list<element: float>[{features.shape[1]}]"
    assert np.array_equal(np.stack(table["features"].to_numpy()), features)
    assert np.array_equal(table["labels"].to_numpy(), np.load(plain / "labels.npy"))
    assert table["ids"].to_pylist() == json.loads((plain / "ids.json").read_text())


def pieces() -> list[Piece]:
    """Identities of two cameras, in pieces of 3 and 2."""
    numbers = np.arange(5)
    columns = {"features": numbers[:, None] * np.ones((5, 2), np.float32), "cameras": numbers % 2}
    ids = [f'"{number}\n' for number in range(5)]
    return [Piece({name: one[part] for name, one in columns.items()}, ids[part]) for part in (slice(3), slice(3, 5))]


@pytest.mark.parametrize("rows", [1, 7, 16_384])
def test_files_are_written_in_pieces(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(extracting, "_ROW_GROUP", rows)
    assert write(pieces(), NpyFiles(tmp_path)) == write(pieces(), Parquet(tmp_path)) == 5
    file = parquet.ParquetFile(tmp_path / "features.parquet")
    assert file.num_row_groups == (2 if rows == 1 else 1)
    features, cameras = np.load(tmp_path / "features.npy"), np.load(tmp_path / "cameras.npy")
    assert features.tolist() == [[number, number] for number in range(5)] == file.read()["features"].to_pylist()
    assert cameras.tolist() == [0, 1, 0, 1, 0] == file.read()["cameras"].to_pylist()
    assert json.loads((tmp_path / "ids.json").read_text()) == file.read()["ids"].to_pylist() == pieces_ids()


def pieces_ids() -> list[str]:
    return [one for piece in pieces() for one in piece.ids]


def test_what_was_extracted_is_replaced_and_nothing_else(run: Path, tmp_path: Path) -> None:
    out = extract(run, tmp_path / "out")
    (out / "features.npy").write_bytes(b"")
    assert len(np.load(extract(run, out) / "features.npy")) == len(Digits(split="val"))
    mine = tmp_path / "mine"
    mine.mkdir()
    assert extract(run, mine) == mine, "an empty folder is nobody's"
    (mine / "about.json").unlink()
    for other in (mine, mine / "labels.npy"):
        with pytest.raises(ConfigError, match=r"--out: .* is there already, and holds no features"):
            extract(run, other)


def test_without_a_place_it_is_written_into_the_run(run: Path) -> None:
    assert extract(run) == run / "features" / "val"


def test_nothing_is_left_of_an_extraction_that_fails(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [Digits(split="val")[number]["id"] for number in (205, 207)]

    def spoiled(self: Layers, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"embedding": torch.tensor([[float("nan") if one in ids else 1.0] for one in batch["id"]])}

    monkeypatch.setattr(Layers, "__call__", spoiled)
    with pytest.raises(DataError, match=f"features: not finite for {ids[0]}, {ids[1]}"):
        extract(run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"split": "vall"}, r"--split: there is no 'vall'; did you mean 'val'\? sets: train, val"),
        ({"layers": ["backbone.model.layer22"]}, r"no layer 'backbone.model.layer22'.*mean 'backbone.model.layer2'"),
        ({"layers": ["backbone.model.global_pool", "neck"]}, "--layers: .*no layer 'neck'"),
        ({"checkpoint": "best_"}, "--checkpoint: there is no 'best_'"),
    ],
    ids=["split", "layer", "layers", "checkpoint"],
)
def test_what_is_not_there_is_told(run: Path, tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        extract(run, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


class Parts(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"a": x, "b": (x * 2, [x[:, :1] * 3])}


class Nested(Task):
    def __init__(self) -> None:
        super().__init__()
        self.parts, self.idle, self.total = Parts(), Parts(), torch.nn.Flatten(0)

    def predict(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        self.parts(batch["image"] * 10)
        self.total(batch["image"])
        return {"embedding": self.parts(batch["image"])["a"]}


def test_what_a_layer_gives_becomes_one_row_a_sample() -> None:
    batch = {"image": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "id": ["a", "b"]}
    found = Layers(Nested(), ["parts"])(batch)["parts"]
    assert found.tolist() == [[10, 20, 20, 40, 30], [30, 40, 60, 80, 90]], "of its first call"
    with pytest.raises(ConfigError, match="makes no use of 'idle'"):
        Layers(Nested(), ["idle"])(batch)
    with pytest.raises(ConfigError, match="'total' does not give a row for each sample"):
        Layers(Nested(), ["total"])(batch)
