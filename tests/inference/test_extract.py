"""Extracted features: each sample once and in order, exact values, and no incomplete files."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.config import ConfigError
from opabinia.data.decoding import images as decode
from opabinia.data.errors import DataError
from opabinia.data.sources import Digits
from opabinia.inference import extract as extracting
from opabinia.inference.layer_names import LayerFeatures
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor


def extract(
    run: Path, out: Path | None = None, overrides: Sequence[str] = (), *, checkpoint: str = "best", **options: Any
) -> list[Path]:
    return extracting.extract(RunModel(run, ["evaluate.batch_size=100", *overrides], checkpoint), out, **options)


def features_of(predictor: Predictor, source: Digits) -> np.ndarray[Any, Any]:
    """Compute features of single samples with the transforms of the validation data."""
    samples = [predictor.sample(source[number]["image"]) for number in range(len(source))]
    with torch.no_grad():
        images = torch.stack([sample["image"] for sample in samples])
        return predictor.task.features({"image": images})["embedding"].numpy()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("split", ["val", "train"])
def test_each_sample_is_extracted_once_and_in_order(
    run: Path, predictor: Predictor, split: str, tmp_path: Path
) -> None:
    """Training data, too, goes through the validation transforms, without random augmentation."""
    batch_size = ["evaluate.batch_size=7"] if split == "train" else []  # 206 batches: the last shard has two of four
    (out,) = extract(run, tmp_path / "out", batch_size, splits=[split])
    assert out == tmp_path / "out" and list(tmp_path.iterdir()) == [out]
    source = Digits(split=split)
    features = np.load(out / "features.npy", mmap_mode="r")
    assert features.dtype == np.float32 and isinstance(features, np.memmap)
    np.testing.assert_allclose(features, features_of(predictor, source), rtol=1e-4, atol=1e-4)
    assert np.array_equal(np.load(out / "labels.npy"), source.info.labels)
    assert json.loads((out / "ids.json").read_text()) == [source[number]["id"] for number in range(len(source))]
    about = json.loads((out / "about.json").read_text())
    assert (about["samples"], about["skipped"], about["split"]) == (len(source), 0, split)
    assert about["checkpoint"].startswith("step-") and about["layers"] == {"features": "embedding"}
    assert json.loads((out / "classes.json").read_text()) == list("0123456789")
    names = ["about.json", "classes.json", "features.npy", "ids.json", "labels.npy"]
    assert sorted(path.name for path in out.iterdir()) == names


def test_each_layer_has_a_file(run: Path, predictor: Predictor, tmp_path: Path) -> None:
    layers = ["backbone.model.layer2", "embedding", "head", "layer3", "trunk"]
    (out,) = extract(run, tmp_path / "out", layers=layers)
    outputs = {name: np.load(out / f"{name}.npy") for name in layers}
    assert not (out / "features.npy").exists()
    source = Digits(split="val")
    predictions = predictor([source[number]["image"] for number in range(9)])
    logits = torch.stack([prediction["logits"] for prediction in predictions])
    np.testing.assert_allclose(outputs["head"][:9], logits.numpy(), rtol=1e-4, atol=1e-4)
    assert np.array_equal(outputs["trunk"], outputs["embedding"])
    samples = [predictor.sample(source[number]["image"])["image"] for number in range(2)]
    model: Any = predictor.task.backbone.model  # type: ignore[union-attr]
    with torch.no_grad():
        stem = model.maxpool(model.act1(model.bn1(model.conv1(predictor.task.normalize(torch.stack(samples))))))  # type: ignore[operator]
        layer2_maps = model.layer2(model.layer1(stem))
        layer3_maps = model.layer3(layer2_maps)
    for name, maps in (("backbone.model.layer2", layer2_maps), ("layer3", layer3_maps)):
        np.testing.assert_allclose(outputs[name][:2], maps.flatten(1).numpy(), rtol=1e-4, atol=1e-4)


def test_parquet_writes_a_table(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (npy_dir,), (parquet_dir,) = extract(run, tmp_path / "plain"), extract(run, tmp_path / "table", form="parquet")
    content = parquet.read_table(parquet_dir / "features.parquet")
    features = np.load(npy_dir / "features.npy")
    assert str(content.schema.field("features").type) == f"fixed_size_list<element: float>[{features.shape[1]}]"
    assert np.array_equal(np.stack(content["features"].to_numpy()), features)
    assert np.array_equal(content["labels"].to_numpy(), np.load(npy_dir / "labels.npy"))
    assert content["ids"].to_pylist() == json.loads((npy_dir / "ids.json").read_text())


def test_without_its_library_parquet_is_refused_at_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extracting, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--format: parquet needs pyarrow: pip install 'opabinia\[tables\]'"):
        extract(run, tmp_path / "out", form="parquet")
    assert not list(tmp_path.iterdir())


def test_each_split_has_a_folder(run: Path, tmp_path: Path) -> None:
    folders = extract(run, tmp_path / "out", splits=["val", "all", "train"])
    assert folders == [tmp_path / "out" / "val", tmp_path / "out" / "train"]
    assert sorted(folders, reverse=True) == sorted((tmp_path / "out").iterdir(), reverse=True)
    assert [len(np.load(folder / "labels.npy")) for folder in folders] == [360, 1437]


def test_cached_images_are_read(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "images" / "all").mkdir(parents=True)
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / "all" / f"{number}.png")
    source = f"data.val.source={{name: image_folder, root: {tmp_path / 'images'}, channels: 1}}"
    extract(run, tmp_path / "decoded", [source])
    extract(run, tmp_path / "caching", [source, "data.cache=disk"])
    monkeypatch.setattr(decode, "decode_bytes", None)
    extract(run, tmp_path / "cached", [source, "data.cache=disk"])
    features = [files(tmp_path / name)["features.npy"] for name in ("decoded", "caching", "cached")]
    assert features[0] == features[1] == features[2]


@pytest.mark.parametrize(
    ("samples", "batch_size", "batches"),
    [(1437, 7, 4), (360, 100, 1), (1_281_167, 256, 4), (1_281_167, 32, 32), (50_000, 4096, 1), (0, 32, 1)],
)
def test_the_number_of_batches_in_a_shard(samples: int, batch_size: int, batches: int) -> None:
    reader: Any = extracting.BatchReader(range(samples))  # type: ignore[arg-type]
    nothing: Any = None
    job = extracting.ExtractJob(Path("out"), {}, nothing, nothing, reader, batch_size, 0)
    assert job.batches_per_shard == batches


def test_finished_features_are_not_extracted_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (out,) = extract(run, tmp_path / "out")
    contents = files(out)
    with monkeypatch.context() as patch:
        patch.setattr(LayerFeatures, "__call__", None)
        assert extract(run, out) == [out] and files(out) == contents
    assert f"{out} is finished: nothing to do" in capfd.readouterr().err
    (out / "features.npy").write_bytes(b"")
    assert extract(run, out) == [out] and files(out) == contents, "a damaged file is extracted again"
    extract(run, out, layers=["trunk"])
    assert sorted(files(out)) == ["about.json", "classes.json", "ids.json", "labels.npy", "trunk.npy"]
    assert list(tmp_path.iterdir()) == [out]


def test_folders_with_other_files_are_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    assert extract(run, folder) == [folder], "an empty folder is used"
    (folder / "about.json").unlink()
    for target in (folder, folder / "labels.npy"):
        with pytest.raises(ConfigError, match=r"--out: .* exists already, and holds no features"):
            extract(run, target)


def spoil_features(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> list[str]:
    """Replace the features of some samples by NaN; return the ids of these samples."""
    ids, real = [Digits(split="val")[number]["id"] for number in numbers], LayerFeatures.__call__

    def spoiled(self: LayerFeatures, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        invalid = torch.tensor([sample_id in ids for sample_id in batch["id"]])
        return {name: value.masked_fill(invalid[:, None], float("nan")) for name, value in real(self, batch).items()}

    monkeypatch.setattr(LayerFeatures, "__call__", spoiled)
    return ids


def test_non_finite_features_are_an_error_and_finished_shards_are_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (expected,) = extract(run, tmp_path / "good")
    with monkeypatch.context() as patch:
        ids = spoil_features(patch, 205, 207)
        with pytest.raises(DataError, match=f"features: not finite for {ids[0]}, {ids[1]}"):
            extract(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    capfd.readouterr()
    (out,) = extract(run, tmp_path / "out")
    assert "2 shards of 1 batches are finished" in capfd.readouterr().err
    assert files(out) == files(expected) and len(list(tmp_path.iterdir())) == 2


@pytest.fixture(scope="module")
def unfinished(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the first three shards of features."""
    folder = tmp_path_factory.mktemp("unfinished")
    with pytest.MonkeyPatch.context() as patch:
        spoil_features(patch, 305)
        with pytest.raises(DataError):
            extract(run, folder / "out")
    return folder


@pytest.mark.parametrize(
    ("overrides", "options", "changed"),
    [
        ([], {"layers": ["trunk"]}, "layers.features, layers.trunk"),
        ([], {"splits": ["train"]}, "data.source.split, fingerprint, split"),
        (["evaluate.batch_size=50"], {}, "batch_size"),
        (["task.dropout=0.5"], {}, "task.dropout"),
        (["data.on_error=skip"], {}, "on_error"),
        (["data.val.transforms.0.size=24"], {}, "data.transforms.0.size"),
    ],
    ids=["layers", "split", "batch", "task", "skip", "transforms"],
)
def test_shards_of_other_settings_are_discarded(
    run: Path, unfinished: Path, tmp_path: Path, capfd: Any, overrides: list[str], options: Any, changed: str
) -> None:
    shutil.copytree(unfinished, tmp_path, dirs_exist_ok=True)
    (out,) = extract(run, tmp_path / "out", overrides, **options)
    assert f"outdated ({changed}): restarting" in capfd.readouterr().err
    if options:
        (expected,) = extract(run, tmp_path / "alone", overrides, **options)
        assert files(out) == files(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": ["vall"]}, r"--split: there is no 'vall'; did you mean 'val'\? sets: train, val"),
        ({"splits": ["val", "test"]}, r"--split: there is no 'test'; sets: train, val"),
        ({"splits": []}, r"--split: there is no ''; sets: train, val"),
        ({"layers": ["backbone.model.layer22"]}, r"no layer 'backbone.model.layer22'; similar: backbone.model.layer2"),
        ({"layers": ["trunk", "layer9"]}, "--layers: there is no layer 'layer9'; similar: layer4, layer3, layer2"),
        ({"layers": ["labels"]}, "--layers: labels.npy is the file of something else"),
        ({"checkpoint": "best_"}, "--checkpoint: there is no 'best_'"),
    ],
    ids=["split", "splits", "none", "layer", "layers", "file", "checkpoint"],
)
def test_unknown_names_are_refused_before_samples_are_read(
    run: Path, tmp_path: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Digits, "__getitem__", None)
    with pytest.raises(ConfigError, match=message):
        extract(run, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())
