"""Retrieval: predictions with a gallery, verdicts from file names, heat maps."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from opabinia.config import ConfigError
from opabinia.contracts import Batch, DatasetInfo, Predictions, Presenter, Task
from opabinia.data.errors import DataError
from opabinia.data.sources import Digits
from opabinia.evaluation.retrieval.distances import nearest
from opabinia.evaluation.retrieval.rerank import k_reciprocal
from opabinia.inference import predict
from opabinia.inference.predictor import Predictor
from opabinia.inference.retrieval.gallery import Gallery, Identity, identity_from_path
from opabinia.visualization.drawing import FRAME_COLORS, contact_sheet, overlay_heatmap


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images: ``gallery`` with a folder for each digit, and ``queries`` with three images."""
    folder = tmp_path_factory.mktemp("images")
    source = Digits(split="val")
    for number in range(43):
        sample = source[number]
        path = folder / "gallery" / str(sample["label"]) / f"{number:02d}.png"
        if number >= 40:
            path = folder / "queries" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(sample["image"][0].numpy()).save(path)
    return folder


def make_gallery(paths: list[Path], features: Tensor, root: Path) -> Gallery:
    return Gallery(paths, root, lambda embeddings, k: nearest(embeddings, features, k), features.__getitem__)


# --- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("g/0002_c1s1_000451_03.jpg", Identity("0002", "1")),
        ("g/x/-1_c3s2_1.jpg", Identity("-1", "3")),
        ("g/0005_C12.png", Identity("0005", "12")),
        ("g/anna/12_cat.png", Identity("anna")),
        ("g/12_cat.png", Identity(None)),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_identities_are_read_from_paths(path: str, expected: Identity) -> None:
    assert identity_from_path(Path(path), Path("g")) == expected


def test_verdicts() -> None:
    names = ["0001_c1_0.jpg", "0001_c2_0.jpg", "0002_c1_0.jpg", "-1_c2_0.jpg", "0000_c2_0.jpg", "holiday.jpg"]
    features = torch.eye(6)
    features[:, 0] += torch.linspace(1, 0, 6)  # sorted by similarity to the first one
    gallery = make_gallery([Path("g", name) for name in names], features, Path("g"))

    def verdicts(query: str) -> list[str | None]:
        (matches,) = gallery.nearest([Path("q", query)], torch.eye(6)[:1], 6)
        distances = [match.distance for match in matches]
        assert distances == sorted(distances) and [match.number for match in matches] == list(range(6))
        return [match.verdict for match in matches]

    assert verdicts("0001_c1_9.jpg") == ["junk", "right", "wrong", "junk", "wrong", None]
    assert verdicts("0003_c1_9.jpg") == [None] * 6, "the gallery has no image of this identity"
    assert verdicts("photo.jpg") == [None] * 6


def test_a_query_is_not_its_own_match(tmp_path: Path) -> None:
    names = [tmp_path / "a.jpg", tmp_path / "b.jpg", tmp_path / "c.jpg"]
    gallery = make_gallery(names, torch.eye(3), tmp_path)
    (matches,) = gallery.nearest([tmp_path / "x" / ".." / "b.jpg"], torch.eye(3)[1:2], 2)
    assert [match.number for match in matches] == [0, 2], "equal distances keep the order of the gallery"
    assert [match.number for match in gallery.nearest([Path("other.jpg")], torch.eye(3)[1:2], 9)[0]] == [1, 0, 2]


# --- embeddings -----------------------------------------------------------------------------------------------------


class Toy(Task):
    """Returns the mean color under given names."""

    def __init__(self, predicted: str, features: str = "embedding") -> None:
        super().__init__()
        self.scale = nn.Conv2d(3, 3, 1)
        self.scale.weight.data[:, :, 0, 0], self.scale.bias.data[:] = torch.eye(3), 0  # type: ignore[index]
        self._names = predicted, features
        self.predictions = 0

    def predict(self, batch: Batch) -> Predictions:
        self.predictions += 1
        return {self._names[0]: self._mean(batch)}

    def features(self, batch: Batch) -> dict[str, Tensor]:
        return {self._names[1]: self._mean(batch) * 2}

    def _mean(self, batch: Batch) -> Tensor:
        maps: Tensor = self.scale(batch["image"].float())
        return maps.mean((2, 3))


def samples(*colors: tuple[float, float, float]) -> list[dict[str, Any]]:
    return [
        {"image": torch.tensor(color)[:, None, None].expand(3, 4, 4), "id": f"{number}"}
        for number, color in enumerate(colors)
    ]


@pytest.mark.parametrize(("predicted", "runs"), [("embedding", 2), ("logits", 1)])
def test_embeddings_are_predictions_or_else_features(predicted: str, runs: int) -> None:
    task = Toy(predicted)
    predictor = Predictor(task, [], DatasetInfo(samples=1))
    for _ in range(2):
        embeddings = predictor.embeddings(samples((3, 4, 0), (0, 0, 9)))
    torch.testing.assert_close(embeddings, torch.tensor([[0.6, 0.8, 0], [0, 0, 1]]))
    assert task.predictions == runs, "without an embedding in the first predictions later calls compute features only"


def test_non_finite_embeddings_are_an_error() -> None:
    predictor = Predictor(Toy("embedding"), [], DatasetInfo(samples=1))
    with pytest.raises(DataError, match=r"not finite for 1$"):
        predictor.embeddings(samples((1, 1, 1), (float("nan"), 1, 1)))


def test_the_heat_map_of_a_similarity_marks_its_pixels() -> None:
    predictor = Predictor(Toy("embedding"), [], DatasetInfo(samples=1))
    image = torch.zeros(3, 8, 8)
    image[0, :4], image[1, 4:] = 1.0, 1.0
    sample = [{"image": image, "id": ""}]
    red = predictor.explain(sample, torch.tensor([[1.0, 0, 0]]))[0]
    green = predictor.explain(sample, torch.tensor([[0, 1.0, 0]]))[0]
    assert red[:4].min() == 1 and red[4:].max() == 0
    assert green[:4].max() == 0 and green[4:].min() == 1
    assert predictor.explain(sample).max() == 1, "without a reference the norm of the embedding is explained"
    with pytest.raises(ValueError, match="give a gallery"):
        predictor.explain(samples((1, 0, 0)))
    with pytest.raises(ValueError, match="not several views"):
        predictor.explain([{"image": torch.zeros(2, 3, 4, 4), "id": ""}])


def test_a_task_may_have_its_own_heat_maps() -> None:
    task = Toy("logits")
    task.explain = lambda batch: batch["image"][:, 0].double()  # type: ignore[assignment]
    heatmap = Predictor(task, [], DatasetInfo(samples=1)).explain(samples((0.5, 0, 0)))
    assert heatmap.dtype == torch.float32 and torch.equal(heatmap, torch.full((1, 4, 4), 0.5))


def test_reranking_compares_each_query_alone_with_its_neighbors() -> None:
    features = F.normalize(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    queries, images = features[:4], features[4:]
    paths = [Path(f"{number}.png") for number in range(56)]
    plain = make_gallery(paths, images, Path())
    query_paths = [Path(f"query{number}.png") for number in range(4)]
    reranked = plain.with_reranking().nearest(query_paths, queries, 5)
    for number, matches in enumerate(reranked):
        distances = [match.distance for match in matches]
        near = (images @ queries[number]).argsort(descending=True)
        values, indices = k_reciprocal(queries[number : number + 1], images[near]).nearest(5)
        assert [match.number for match in matches] == near[indices[0]].tolist()
        assert distances == pytest.approx(values[0].tolist())
        (single,) = plain.with_reranking().nearest(query_paths[number : number + 1], queries[number : number + 1], 5)
        assert single == matches
    assert [[match.number for match in row] for row in reranked] != [
        [match.number for match in row] for row in plain.nearest(query_paths, queries, 5)
    ]


def test_only_candidates_are_reranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opabinia.inference.retrieval.gallery.CANDIDATES", 6)
    features = F.normalize(torch.randn(61, 4, generator=torch.Generator().manual_seed(1)), dim=1)
    plain = make_gallery([Path(f"{number}.png") for number in range(60)], features[1:], Path())
    (candidates,) = plain.nearest([Path("query.png")], features[:1], 6)
    (reranked,) = plain.with_reranking().nearest([Path("query.png")], features[:1], 5)
    assert len(reranked) == 5 and {match.number for match in reranked} <= {match.number for match in candidates}


# --- the command ----------------------------------------------------------------------------------------------------


def test_nearest_images_are_written_and_drawn(predictor: Predictor, images: Path, tmp_path: Path) -> None:
    gallery = sorted((images / "gallery").rglob("*.png"))
    query = images / "queries" / "41.png"
    predict.retrieve(predictor, [query, gallery[5]], images / "gallery", tmp_path, nearest=4)
    query_line, gallery_line = (json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines())
    query_embedding, gallery_embeddings = (
        predictor.embeddings([predictor.sample(path) for path in paths]) for paths in ([query], gallery)
    )
    similarity, order = (gallery_embeddings @ query_embedding[0]).sort(descending=True, stable=True)
    assert [match["path"] for match in query_line["nearest"]] == [str(gallery[number]) for number in order[:4]]
    assert [match["distance"] for match in query_line["nearest"]] == pytest.approx(
        (1 - similarity[:4]).tolist(), abs=2e-6
    )
    assert {match["verdict"] for match in query_line["nearest"]} == {None}, "its identity is unknown"
    assert gallery_line["path"] not in [match["path"] for match in gallery_line["nearest"]]
    digit = Path(gallery_line["path"]).parent.name
    expected = ["right" if Path(match["path"]).parent.name == digit else "wrong" for match in gallery_line["nearest"]]
    assert [match["verdict"] for match in gallery_line["nearest"]] == expected and "right" in expected
    with Image.open(tmp_path / "sheets" / f"00001-{gallery[5].stem}.png") as sheet:
        assert sheet.size == (5 * 132, 132 + 3 + 2 * 14)
        colors = {color for _, color in sheet.getcolors(1 << 20) or []}
    assert {FRAME_COLORS[verdict] in colors for verdict in expected} == {True}


def test_sheets_are_reranked(predictor: Predictor, images: Path, tmp_path: Path) -> None:
    lines = []
    for rerank in (False, True):
        predict.retrieve(predictor, [images / "queries"], images / "gallery", tmp_path, nearest=5, rerank=rerank)
        lines.append((tmp_path / "predictions.jsonl").read_text())
        assert len(list((tmp_path / "sheets").iterdir())) == 3
    assert lines[0] != lines[1]


def test_heat_maps_are_drawn(
    predictor: Predictor, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = sorted((images / "queries").glob("*.png"))
    predict.predict(predictor, queries, tmp_path / "classes", explain=True)
    predict.retrieve(predictor, queries[:1], images / "gallery", tmp_path / "near", explain=True)
    drawn = sorted((tmp_path / "classes" / "explained").iterdir())
    assert [path.name for path in drawn] == ["00000-40.png", "00001-41.png", "00002-42.png"]
    with (
        Image.open(drawn[0]) as class_heatmap,
        Image.open(tmp_path / "near" / "explained" / "00000-40.png") as similarity_heatmap,
    ):
        assert class_heatmap.size == similarity_heatmap.size == (256, 256)
        assert any(red != blue for _, (red, _, blue) in class_heatmap.getcolors(1 << 20) or []), (
            "the heat map has colors"
        )
        assert class_heatmap.tobytes() != similarity_heatmap.tobytes()


def test_broken_images_are_reported_and_skipped(predictor: Predictor, images: Path, tmp_path: Path) -> None:
    (tmp_path / "gallery").mkdir()
    (tmp_path / "gallery" / "broken.png").write_text("no image")
    query = images / "queries" / "41.png"
    with pytest.raises(DataError, match=r"none of 1 file in .*gallery can be read; .*broken.png cannot"):
        predict.retrieve(predictor, [query], tmp_path / "gallery", tmp_path / "out")
    (tmp_path / "gallery" / "whole.png").write_bytes(query.read_bytes())
    with pytest.raises(DataError, match="1 of 3 files were skipped"):
        predict.retrieve(predictor, [query], tmp_path / "gallery", tmp_path / "out")
    (line,) = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    (match,) = json.loads(line)["nearest"]
    assert match["distance"] == pytest.approx(0, abs=1e-5) and match["path"].endswith("whole.png")
    with pytest.raises(ConfigError, match="no image but the query itself"):
        predict.retrieve(predictor, [query], query, tmp_path / "out", explain=True)


def test_captions_shorten_long_lists() -> None:
    readable = {"embedding": [0.1] * 128, "count": 2, "box": [1, 2]}
    assert Presenter(DatasetInfo(samples=1)).caption(readable) == ["embedding: 128 values", "count: 2", "box: [1, 2]"]


# --- drawing --------------------------------------------------------------------------------------------------------


def test_frames_have_the_color_of_the_verdict() -> None:
    images = [Image.new("RGB", (20, 10), (1, 2, 3))] * 4
    sheet = contact_sheet(images, [("one", "two")] * 4, columns=4, size=20, frames=["right", "wrong", "junk", None])
    colors = [sheet.getpixel((number * 32 + 6, 6 + 4)) for number in range(4)]  # right above each image
    assert colors[:3] == list(FRAME_COLORS.values()) and colors[3] not in FRAME_COLORS.values()
    assert {sheet.getpixel((number * 32 + 16, 16)) for number in range(4)} == {(1, 2, 3)}


@pytest.mark.parametrize("channels", [1, 3])
def test_heat_maps_are_gray_at_0_and_red_at_1(channels: int) -> None:
    heatmap = overlay_heatmap(torch.full((channels, 1, 3), 100, dtype=torch.uint8), torch.tensor([[0, 0.5, 1.0]]))
    (cold, middle, hot) = (heatmap.getpixel((column, 0)) for column in range(3))
    assert cold == (100, 100, 100)
    assert middle[1] == max(middle) and hot[0] == max(hot)  # type: ignore[index, type-var, arg-type]
