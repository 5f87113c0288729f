"""Embedding maps: positions of points, neighbours shown, and errors."""

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
from opabinia.data.errors import DataError
from opabinia.data.sources import Digits
from opabinia.inference.embedding_map import (
    EmbeddingSet,
    Method,
    add_neighbors,
    check_method,
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


def features_of(folder: Path, features: Array, labels: Array | None = None, **metadata: Any) -> Path:
    """Write features in the format of the extract command."""
    folder.mkdir(parents=True)
    np.save(folder / "features.npy", features.astype(np.float32))
    if labels is not None:
        np.save(folder / "labels.npy", labels)
    (folder / "about.json").write_text(json.dumps({"run": "nowhere", "split": "val", **metadata}))
    return folder


def embedded(features: Array, labels: Array) -> EmbeddingSet:
    rows = F.normalize(torch.from_numpy(features).float(), dim=1)
    return EmbeddingSet(rows, labels, np.arange(len(rows)), len(rows), {"split": "val"})


def groups(count: int = 3, size: int = 12, width: int = 8) -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    labels = np.arange(count).repeat(size)
    return 5 * np.eye(width)[labels] + random.normal(size=(len(labels), width)) / 5, labels


# --- the plane --------------------------------------------------------------------------------------------------------


def test_principal_components_preserve_distances_of_points_in_a_plane() -> None:
    random = np.random.default_rng(0)
    rotation = np.linalg.qr(random.normal(size=(6, 6)))[0][:2]
    plane_points = random.normal(size=(30, 2)) * [3, 1]
    projected = project_to_plane(torch.from_numpy(plane_points @ rotation + 2).float(), "pca")
    distances = [np.linalg.norm(points[:, None] - points[None], axis=2) for points in (plane_points, projected)]
    np.testing.assert_allclose(distances[1], distances[0], atol=1e-4)
    assert projected[:, 0].std() > projected[:, 1].std()


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_groups_are_separated_and_the_projection_is_deterministic(method: Method) -> None:
    features, labels = groups()
    rows = F.normalize(torch.from_numpy(features).float(), dim=1)
    points = project_to_plane(rows, method)
    means = np.stack([points[labels == label].mean(0) for label in range(3)])
    nearest = np.linalg.norm(points[:, None] - means[None], axis=2).argmin(1)
    assert (nearest == labels).all()
    assert np.array_equal(points, project_to_plane(rows, method))


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_three_samples_are_enough(method: Method) -> None:
    assert project_to_plane(torch.eye(3), method).shape == (3, 2)


def test_collinear_embeddings_are_projected_onto_a_line() -> None:
    points = project_to_plane(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]), "pca")
    assert points.shape == (3, 2) and not points[:, 1].any() and points[0, 0] != points[1, 0]


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_embeddings_that_are_all_the_same_are_reported(method: Method) -> None:
    with pytest.raises(DataMismatch, match="5 vectors are all the same"):
        project_to_plane(torch.ones(5, 4), method)


@pytest.mark.skipif(find_spec("umap") is not None, reason="umap is installed")
def test_the_error_without_umap_names_its_package() -> None:
    with pytest.raises(ConfigError, match="umap needs umap-learn"):
        check_method("umap")


# --- the drawing ------------------------------------------------------------------------------------------------------


def class_colors(image: Image.Image) -> set[int]:
    """Return the classes whose color is in the image."""
    pixels = np.asarray(image)
    return {number for number, color in enumerate(drawing._TINTS) if (pixels == color).all(2).any()}


def test_only_classes_with_samples_are_drawn_each_in_its_color() -> None:
    points = np.random.default_rng(0).normal(size=(20, 2))
    names = [f"class {number}" for number in range(10)]
    assert class_colors(scatter_plot(points, [0, 3] * 10, names, title="t")) == {0, 3}
    assert class_colors(scatter_plot(points, [-1] * 20, names, title="t")) == set()


def test_points_are_drawn_with_x_to_the_right_and_y_up() -> None:
    """One unit has the same length on both axes."""
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    pixels = np.asarray(scatter_plot(points, [0, 1, 2], ["", "", ""], title=""))[40:, :900].astype(int)
    rows = [np.argwhere((pixels == drawing._TINTS[number]).all(2)).mean(0) for number in range(3)]
    origin, right_point, upper_point = rows
    assert right_point[1] - origin[1] == pytest.approx(origin[0] - upper_point[0], abs=2)
    assert right_point[1] - origin[1] > 100
    assert right_point[0] == pytest.approx(origin[0], abs=1) and upper_point[1] == pytest.approx(origin[1], abs=1)


def test_all_marks_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "SCATTER_SIZE", (200, 120))
    marks = set()
    for number in range(MAX_MARKED_CLASSES):
        marks.add(scatter_plot(np.zeros((1, 2)), [number], [""] * MAX_MARKED_CLASSES, title="").tobytes())
    assert len(marks) == MAX_MARKED_CLASSES
    with pytest.raises(ValueError, match="51 classes, but there are 50 marks"):
        scatter_plot(np.zeros((1, 2)), [0], [""] * 51, title="")


def test_with_too_many_classes_the_largest_have_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {}

    def record(points: Array, classes: list[int], names: list[str], **keys: Any) -> Image.Image:
        arguments.update(classes=classes, names=names, **keys)
        return Image.new("RGB", (2, 2))

    monkeypatch.setattr("opabinia.inference.embedding_map.scatter_plot", record)
    labels = np.array([*range(MAX_MARKED_CLASSES + 2), *range(2, MAX_MARKED_CLASSES + 2)])
    draw_scatter(
        embedded(np.random.default_rng(0).normal(size=(len(labels), 4)), labels), [f"c{n}" for n in range(52)], "pca"
    )
    assert arguments["names"] == [f"c{n}" for n in range(2, 52)]
    assert arguments["classes"][:4] == [-1, -1, 0, 1] and arguments["title"] == "val: 102 samples, principal components"


# --- neighbours -------------------------------------------------------------------------------------------------------


class RecordingDigits(Digits):
    """Records the indices of samples that are read."""

    def __init__(self) -> None:
        super().__init__(split="val")
        self.indices: list[int] = []

    def __getitem__(self, index: int) -> Sample:
        self.indices.append(index)
        return super().__getitem__(index)


def test_a_query_is_shown_with_its_nearest_samples_by_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    sheets: list[Any] = []
    monkeypatch.setattr("opabinia.inference.embedding_map.NEIGHBORS", 3)
    real = drawing.contact_sheet
    monkeypatch.setattr(
        "opabinia.inference.embedding_map.contact_sheet",
        lambda *args, **keys: sheets.append((args, keys)) or real(*args, **keys),
    )
    angles = np.array([0.0, 0.1, 0.3, 1.5, 1.4, 1.0])
    embeddings = embedded(
        np.stack([np.cos(angles), np.sin(angles)], 1) * [[2], [1], [9], [1], [3], [1]], np.array([0, 0, 1] * 2)
    )
    embeddings = embeddings._replace(numbers=np.array([5, 7, 9, 11, 13, 15]))
    source = RecordingDigits()
    plot = Image.new("RGB", (50, 30))
    image = add_neighbors(plot, embeddings, source, ["cat", "dog"])
    assert source.indices == [5, 7, 9, 15, 9, 7, 5, 15], "the first cat, the first dog, and their neighbours"
    ((_, captions), keys) = sheets[0]
    assert captions[:2] == [["cat"], ["cat", f"{np.cos(0.1):.2f}"]] and captions[4] == ["dog"]
    assert keys["frames"] == [None, "right", "wrong", "wrong", None, "wrong", "wrong", "right"]
    assert image.height > plot.height + 2 * 94


def test_queries_are_spread_over_classes_or_samples() -> None:
    assert choose_queries(np.arange(100)).tolist() == list(range(0, 100, 10))
    assert choose_queries(np.array([3, 3, 1, 1, 2])).tolist() == [2, 4, 0], "one of each class, in the order of classes"
    assert choose_queries(np.full(40, -1)).tolist() == list(range(0, 40, 4))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Return a folder of features that are pixels, of an untrained run."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump(resolve("classification/digits").config))
    source = Digits(split="val")
    pixels = np.stack([np.asarray(source[number]["image"]).reshape(-1) for number in range(len(source))])
    return features_of(tmp_path / "features", pixels, source.info.labels, run=str(run))


def test_a_map_with_names_and_images(digits: Path, tmp_path: Path) -> None:
    out = draw_map(digits, tmp_path / "deep" / "map.png")
    assert out == tmp_path / "deep" / "map.png"
    with Image.open(out) as image:
        assert image.width == 1080 and image.height > 720 + 10 * 94
    assert draw_map(digits, max_samples=50).name == "map-pca.png"


def test_without_the_run_a_map_has_no_names_and_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = features_of(tmp_path / "features", *groups())
    with caplog.at_level(logging.WARNING):
        out = draw_map(folder)
    with Image.open(out) as image:
        assert image.size == (1080, 720) and class_colors(image) == {0, 1, 2}
    assert "no class names and no images: nowhere is not a run any more" in caplog.text


def test_a_map_of_changed_data_has_no_images(digits: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(digits / "features.npy", np.load(digits / "features.npy")[:300])
    np.save(digits / "labels.npy", np.load(digits / "labels.npy")[:300])
    with caplog.at_level(logging.WARNING), Image.open(draw_map(digits)) as image:
        assert image.height == 720
    assert "has 360 samples, but the features are of 300" in caplog.text


def test_samples_are_selected_at_equal_distances(tmp_path: Path) -> None:
    folder = features_of(tmp_path / "features", np.arange(40.0).reshape(10, 4), np.arange(10))
    embeddings = read_embeddings(folder, "features", 4)
    assert embeddings.numbers.tolist() == embeddings.labels.tolist() == [0, 2, 5, 7] and embeddings.total == 10
    torch.testing.assert_close(embeddings.features[1], F.normalize(torch.arange(8.0, 12.0), dim=0))
    assert [len(read_embeddings(folder, "features", limit).numbers) for limit in (3, 6, 9, 10, 11)] == [3, 6, 9, 10, 10]


def test_samples_with_several_labels_or_none_have_no_class(tmp_path: Path) -> None:
    features, _ = groups()
    several = features_of(tmp_path / "several", features, np.ones((36, 2), np.float32))
    assert (read_embeddings(several, "features", 100).labels == -1).all()
    with Image.open(draw_map(features_of(tmp_path / "none", features))) as image:
        assert class_colors(image) == set()


def test_errors_name_the_missing_features(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a run nor a folder of features"):
        draw_map(tmp_path)
    folder = features_of(tmp_path / "few", np.eye(2))
    with pytest.raises(DataError, match="has 2 samples; a map needs three or more"):
        draw_map(folder)
    with pytest.raises(ConfigError, match=r"there is no .*head.npy; arrays there: features"):
        draw_map(folder, column="head")
