"""Search in an index on the disk: exact results, and when the index is rebuilt."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from opabinia.config import ConfigError
from opabinia.data.errors import DataError
from opabinia.data.sources import Digits
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.retrieval.search import search, sort_matches

pytest.importorskip("faiss", reason="the extra opabinia[search] is not installed")


def write(path: Path, number: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(Digits(split="val")[number]["image"][0].numpy()).save(path)
    return path


@pytest.fixture
def gallery(tmp_path: Path) -> Path:
    for number in range(20):
        write(tmp_path / "gallery" / str(number % 3) / f"{number:02d}.png", number)
    return tmp_path / "gallery"


@pytest.fixture
def search_index(
    run: Path, gallery: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[dict[str, Any], int]]:
    """Search for a query; return the result and the number of images embedded for it."""
    embedded: list[int] = []
    compute = Predictor.embeddings

    def counted(self: Predictor, samples: list[dict[str, Any]]) -> torch.Tensor:
        embedded.append(len(samples))
        return compute(self, samples)

    monkeypatch.setattr(Predictor, "embeddings", counted)
    query = write(gallery.parent / "query.png", 30)
    index = gallery.parent / "index" / "gallery.faiss"

    def search_index(**options: Any) -> tuple[dict[str, Any], int]:
        embedded.clear()
        capsys.readouterr()
        model = RunModel(run, options.pop("overrides", ()), checkpoint=options.pop("checkpoint", "best"))
        search(model, gallery, [query], as_json=True, **{"index": index, "nearest": 5, **options})
        (line,) = capsys.readouterr().out.splitlines()
        return json.loads(line), sum(embedded)

    return search_index


SearchIndex = Callable[..., tuple[dict[str, Any], int]]


def test_results_equal_an_exact_search(search_index: SearchIndex, predictor: Predictor, gallery: Path) -> None:
    paths = sorted(gallery.rglob("*.png"))
    features = predictor.embeddings([predictor.sample(path) for path in paths])
    (query,) = predictor.embeddings([predictor.sample(gallery.parent / "query.png")])
    similarity, order = (features @ query).sort(descending=True)
    result, _ = search_index()
    assert [match["path"] for match in result["nearest"]] == [str(paths[number]) for number in order[:5]]
    assert [match["distance"] for match in result["nearest"]] == pytest.approx((1 - similarity[:5]).tolist(), abs=2e-6)
    assert len(search_index(nearest=99)[0]["nearest"]) == 20


def test_a_second_search_embeds_only_the_query(search_index: SearchIndex) -> None:
    result, embedded = search_index()
    assert embedded == 21
    assert search_index() == (result, 1)


INDEX = Path("index") / "gallery.faiss"
CHANGES: dict[str, Callable[[Path], object]] = {
    "touched": lambda gallery: os.utime(gallery / "0" / "00.png", ns=(1, 1)),
    "added": lambda gallery: write(gallery / "new.png", 40),
    "removed": lambda gallery: (gallery / "0" / "00.png").unlink(),
    "truncated": lambda gallery: (gallery.parent / INDEX).write_bytes((gallery.parent / INDEX).read_bytes()[:-1]),
    "no index": lambda gallery: (gallery.parent / INDEX).unlink(),
    "damaged": lambda gallery: (gallery.parent / "index" / "gallery.faiss.json").write_text("["),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_rebuilds_the_index(search_index: SearchIndex, gallery: Path, change: str) -> None:
    search_index()
    CHANGES[change](gallery)
    stored = len(list(gallery.rglob("*.png")))
    result, embedded = search_index(nearest=99)
    assert embedded == stored + 1 and len(result["nearest"]) == stored
    assert search_index(nearest=99) == (result, 1)


def test_by_default_the_index_is_in_the_run_and_rebuilt_for_another_checkpoint(
    search_index: SearchIndex, run: Path
) -> None:
    embedded = [search_index(index=None, checkpoint=name)[1] for name in ("last", "last", "step-00000030")]
    assert embedded == [21, 1, 21]
    assert len(list((run / "search").glob("gallery-*.faiss"))) == 1


def test_other_transforms_rebuild_the_index(search_index: SearchIndex) -> None:
    larger = ["data.val.transforms=[{name: Resize, size: 40}]"]
    assert [search_index(overrides=changes)[1] for changes in ([], larger, larger, [])] == [21, 21, 1, 21]


def test_another_file_is_not_overwritten(search_index: SearchIndex, gallery: Path) -> None:
    file = gallery.parent / "thesis.txt"
    file.write_text("years of work")
    with pytest.raises(ConfigError, match=r"--index: .*thesis.txt exists already"):
        search_index(index=file)
    assert file.read_text() == "years of work"


def test_broken_images(
    search_index: SearchIndex,
    run: Path,
    gallery: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (gallery / "broken.png").write_text("no image")
    assert len(search_index(nearest=99)[0]["nearest"]) == 20
    caplog.clear()
    assert search_index()[1] == 1, "an unchanged broken image is not read again"
    assert "1 of 21 images could not be read when" in caplog.text
    with pytest.raises(DataError, match="1 of 2 files were skipped"):
        search(RunModel(run), gallery, [gallery / "broken.png", gallery.parent / "query.png"], as_json=True)
    assert json.loads(capsys.readouterr().out)["path"].endswith("query.png")
    (gallery / "worse").mkdir()
    (gallery / "broken.png").rename(gallery / "worse" / "broken.png")
    with pytest.raises(DataError, match=r"none of 1 file in .*worse can be read"):
        search(RunModel(run), gallery / "worse", [gallery.parent / "query.png"])


def test_paths_are_relative_to_the_gallery_and_never_truncated(
    run: Path, gallery: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    query, name = write(gallery.parent / "query.png", 30), "a_long_name_of_an_image_" * 3 + "[red].png"
    write(gallery / "folder" / name, 30)
    search(RunModel(run), gallery, [query], nearest=3)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0] == str(query) and max(map(len, lines[1:])) <= 80 and "…" not in printed
    (folded,) = [row for row in printed.split("│ 1 ")[1:]]
    assert f"folder/{name}" in "".join(re.findall(r"[\w/.\[\]]+", re.sub(r"0\.\d{4}", "", folded.split("│ 2 ")[0])))
    search(RunModel(run), gallery, [query], nearest=3, rerank=True)
    assert capsys.readouterr().out != printed


def test_equal_distances_keep_the_order_of_the_gallery() -> None:
    distances, indices = torch.tensor([[0.1, 0.1, 0.2, 0.3, 0.3]]), torch.tensor([[7, 2, 9, 5, 0]])
    sorted_distances, order = sort_matches(distances, indices)
    assert order.tolist() == [[2, 7, 9, 0, 5]] and torch.equal(sorted_distances, distances)


def test_faiss_is_an_extra(search_index: SearchIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"search needs faiss: pip install 'opabinia\[search\]'"):
        search_index()
