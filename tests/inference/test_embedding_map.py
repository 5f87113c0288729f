"""Embeddings as an image: where points lie, which neighbours are shown, and what cannot be drawn."""

from __future__ import annotations

import json
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from opabinia.config import ConfigError, dump
from opabinia.contracts import DataMismatch, Sample
from opabinia.data.loader import DataError
from opabinia.data.sources import Digits
from opabinia.inference.embedding_map import (
    EmbeddingSet,
    Method,
    add_neighbors,
    choose_queries,
    draw_map,
    draw_scatter,
    project_to_plane,
    read_embeddings,
)
from opabinia.training.run_folder import resolve
from opabinia.visualization import drawing
from opabinia.visualization.drawing import MAX_MARKED_CLASSES, scatter_plot

Array = NDArray[Any]


def features_of(folder: Path, features: Array, labels: Array | None = None, **about: Any) -> Path:
    """As the extract command writes them."""
    folder.mkdir(parents=True)
    np.save(folder / "features.npy", features.astype(np.float32))
    if labels is not None:
        np.save(folder / "labels.npy", labels)
    (folder / "about.json").write_text(json.dumps({"run": "nowhere", "split": "val", **about}))
    return folder


def embedded(features: Array, labels: Array) -> EmbeddingSet:
    rows = F.normalize(torch.from_numpy(features).float(), dim=1)
    return EmbeddingSet(rows, labels, np.arange(len(rows)), len(rows), {"split": "val"})


def groups(count: int = 3, each: int = 12, width: int = 8) -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    labels = np.arange(count).repeat(each)
    return 5 * np.eye(width)[labels] + random.normal(size=(len(labels), width)) / 5, labels


# --- the plane --------------------------------------------------------------------------------------------------------


def test_principal_components_keep_what_lies_in_a_plane() -> None:
    random = np.random.default_rng(0)
    turn = np.linalg.qr(random.normal(size=(6, 6)))[0][:2]
    flat = random.normal(size=(30, 2)) * [3, 1]
    places = project_to_plane(torch.from_numpy(flat @ turn + 2).float(), "pca")
    apart = [np.linalg.norm(one[:, None] - one[None], axis=2) for one in (flat, places)]
    np.testing.assert_allclose(apart[1], apart[0], atol=1e-4)
    assert places[:, 0].std() > places[:, 1].std()


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_groups_lie_apart_and_the_same_on_every_call(method: Method) -> None:
    features, labels = groups()
    rows = F.normalize(torch.from_numpy(features).float(), dim=1)
    places = project_to_plane(rows, method)
    means = np.stack([places[labels == label].mean(0) for label in range(3)])
    nearest = np.linalg.norm(places[:, None] - means[None], axis=2).argmin(1)
    assert (nearest == labels).all()
    assert np.array_equal(places, project_to_plane(rows, method))


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_three_samples_are_enough(method: Method) -> None:
    assert project_to_plane(torch.eye(3), method).shape == (3, 2)


def test_what_varies_along_one_line_lies_on_a_line() -> None:
    places = project_to_plane(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]), "pca")
    assert places.shape == (3, 2) and not places[:, 1].any() and places[0, 0] != places[1, 0]


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_embeddings_that_are_all_the_same_are_reported(method: Method) -> None:
    with pytest.raises(DataMismatch, match="5 vectors are all the same"):
        project_to_plane(torch.ones(5, 4), method)


@pytest.mark.skipif(find_spec("umap") is not None, reason="umap is installed")
def test_umap_is_asked_for_where_it_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="umap needs umap-learn"):
        draw_map(tmp_path, method="umap")


# --- the drawing ------------------------------------------------------------------------------------------------------


def tints(image: Image.Image) -> set[int]:
    """Which of the colours are on it."""
    pixels = np.asarray(image)
    return {number for number, tint in enumerate(drawing._TINTS) if (pixels == tint).all(2).any()}


def test_each_class_has_its_colour_and_only_classes_that_are_there() -> None:
    points = np.random.default_rng(0).normal(size=(20, 2))
    names = [f"class {number}" for number in range(10)]
    assert tints(scatter_plot(points, [0, 3] * 10, names, title="t")) == {0, 3}
    assert tints(scatter_plot(points, [-1] * 20, names, title="t")) == set()
    assert scatter_plot(points, [0] * 20, names, title="t", size=(300, 200)).size == (300, 200)


def test_points_lie_the_same_way_up_as_their_numbers() -> None:
    """The first coordinate to the right, the second up, one unit as long as the other."""
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    pixels = np.asarray(scatter_plot(points, [0, 1, 2], ["", "", ""], title=""))[40:, :900].astype(int)
    rows = [np.argwhere((pixels == drawing._TINTS[number]).all(2)).mean(0) for number in range(3)]
    origin, right, up = rows
    assert right[1] - origin[1] == pytest.approx(origin[0] - up[0], abs=2) and right[1] - origin[1] > 100
    assert right[0] == pytest.approx(origin[0], abs=1) and up[1] == pytest.approx(origin[1], abs=1)


def test_marks_are_all_different() -> None:
    marks = set()
    for number in range(MAX_MARKED_CLASSES):
        pixels = np.asarray(
            scatter_plot(np.zeros((1, 2)), [number], [""] * MAX_MARKED_CLASSES, title="", size=(200, 120))
        )
        marks.add(pixels.tobytes())
    assert len(marks) == MAX_MARKED_CLASSES
    with pytest.raises(ValueError, match="51 classes, but there are 50 marks"):
        scatter_plot(np.zeros((1, 2)), [0], [""] * 51, title="")


def test_of_too_many_classes_those_with_most_samples_have_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def seen(points: Array, classes: list[int], names: list[str], **keys: Any) -> Image.Image:
        given.update(classes=classes, names=names, **keys)
        return Image.new("RGB", (2, 2))

    monkeypatch.setattr("opabinia.inference.embedding_map.scatter_plot", seen)
    labels = np.array([*range(MAX_MARKED_CLASSES + 2), *range(2, MAX_MARKED_CLASSES + 2)])
    draw_scatter(
        embedded(np.random.default_rng(0).normal(size=(len(labels), 4)), labels), [f"c{n}" for n in range(52)], "pca"
    )
    assert given["names"] == [f"c{n}" for n in range(2, 52)]
    assert given["classes"][:4] == [-1, -1, 0, 1] and given["title"] == "val: 102 samples, principal components"


# --- neighbours -------------------------------------------------------------------------------------------------------


class Asked(Digits):
    """Remembers which samples were asked for."""

    def __init__(self) -> None:
        super().__init__(split="val")
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> Sample:
        self.asked.append(index)
        return super().__getitem__(index)


def test_the_nearest_by_cosine_stand_beside_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    sheets: list[Any] = []
    monkeypatch.setattr("opabinia.inference.embedding_map.NEIGHBORS", 3)
    real = drawing.contact_sheet
    monkeypatch.setattr(
        "opabinia.inference.embedding_map.contact_sheet",
        lambda *given, **keys: sheets.append((given, keys)) or real(*given, **keys),
    )
    angles = np.array([0.0, 0.1, 0.3, 1.5, 1.4, 1.0])
    found = embedded(
        np.stack([np.cos(angles), np.sin(angles)], 1) * [[2], [1], [9], [1], [3], [1]], np.array([0, 0, 1] * 2)
    )
    found = found._replace(numbers=np.array([5, 7, 9, 11, 13, 15]))
    source = Asked()
    above = Image.new("RGB", (50, 30))
    image = add_neighbors(above, found, source, ["cat", "dog"])
    assert source.asked == [5, 7, 9, 15, 9, 7, 5, 15], "the first cat, the first dog, and theirs"
    ((_, captions), keys) = sheets[0]
    assert captions[:2] == ["cat", f"cat\n{np.cos(0.1):.2f}"] and captions[4] == "dog"
    assert keys["frames"] == [None, "right", "wrong", "wrong", None, "wrong", "wrong", "right"]
    assert image.height > above.height + 2 * 94


def test_samples_of_many_classes_and_of_none() -> None:
    assert choose_queries(np.arange(100)).tolist() == list(range(0, 100, 10))
    assert choose_queries(np.array([3, 3, 1, 1, 2])).tolist() == [2, 4, 0], "one of each class, in the order of classes"
    assert choose_queries(np.full(40, -1)).tolist() == list(range(0, 40, 4))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Pixels as features, of a run that was never trained."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump(resolve("classification/digits").config))
    source = Digits(split="val")
    pixels = np.stack([np.asarray(source[number]["image"]).reshape(-1) for number in range(len(source))])
    return features_of(tmp_path / "features", pixels, source.labels, run=str(run))


def test_a_map_with_names_and_images(digits: Path, tmp_path: Path) -> None:
    out = draw_map(digits, tmp_path / "deep" / "map.png")
    assert out == tmp_path / "deep" / "map.png"
    with Image.open(out) as image:
        assert image.width == 1080 and image.height > 720 + 10 * 94
    assert draw_map(digits, max_samples=50).name == "map-pca.png"


def test_without_the_run_there_is_a_map_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = features_of(tmp_path / "features", *groups())
    with caplog.at_level(logging.WARNING):
        out = draw_map(folder)
    with Image.open(out) as image:
        assert image.size == (1080, 720) and tints(image) == {0, 1, 2}
    assert "no class names and no images: nowhere is not a run any more" in caplog.text


def test_data_that_has_changed_shows_no_images(digits: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(digits / "features.npy", np.load(digits / "features.npy")[:300])
    np.save(digits / "labels.npy", np.load(digits / "labels.npy")[:300])
    with caplog.at_level(logging.WARNING), Image.open(draw_map(digits)) as image:
        assert image.height == 720
    assert "has 360 samples, but the features are of 300" in caplog.text


def test_samples_are_taken_at_even_distances(tmp_path: Path) -> None:
    folder = features_of(tmp_path / "features", np.arange(40.0).reshape(10, 4), np.arange(10))
    found = read_embeddings(folder, "features", 4)
    assert found.numbers.tolist() == found.labels.tolist() == [0, 2, 5, 7] and found.total == 10
    torch.testing.assert_close(found.features[1], F.normalize(torch.arange(8.0, 12.0), dim=0))
    assert [len(read_embeddings(folder, "features", most).numbers) for most in (3, 6, 9, 10, 11)] == [3, 6, 9, 10, 10]


def test_several_labels_or_none_are_no_class(tmp_path: Path) -> None:
    features, _ = groups()
    several = features_of(tmp_path / "several", features, np.ones((36, 2), np.float32))
    assert (read_embeddings(several, "features", 100).labels == -1).all()
    with Image.open(draw_map(features_of(tmp_path / "none", features))) as image:
        assert tints(image) == set()


def test_what_cannot_be_drawn_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a run nor a folder of features"):
        draw_map(tmp_path)
    folder = features_of(tmp_path / "few", np.eye(2))
    with pytest.raises(DataError, match="has 2 samples; a map needs three or more"):
        draw_map(folder)
    with pytest.raises(ConfigError, match=r"there is no .*head.npy; arrays there: features"):
        draw_map(folder, column="head")
