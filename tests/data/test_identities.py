"""Pictures of identities in the layouts of published data sets."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts import Source
from opabinia.data.sources.people import dukemtmc, market1501
from scripts import small_data


@pytest.fixture
def market(tmp_path: Path) -> Path:
    small_data.market1501(tmp_path)
    return tmp_path


def saved(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 3)).save(root / name, "PNG")


# --- Market-1501 ------------------------------------------------------------------------------------------------------


def test_market_to_train(market: Path) -> None:
    source = market1501(root=market)
    assert isinstance(source, Source)
    assert source.classes == tuple(f"{number:04d}" for number in range(1, 9))
    assert source.labels.tolist() == np.repeat(range(8), 4).tolist()
    assert source.cameras is not None and source.cameras.tolist() == [0, 0, 1, 1] * 8
    assert (source.camera_count, source.view_count, source.views, source.queries) == (6, 0, None, None)
    sample = source[5]
    assert sample["image"].shape == (3, 32, 16) and sample["image"].dtype == torch.uint8
    assert sample["id"] == "bounding_box_train/0002_c1s1_000002_00.png"
    assert {key: sample[key] for key in sample.keys() - {"image", "id"}} == {"label": 1, "camera": 0}


def test_market_to_search(market: Path) -> None:
    source = market1501(root=market, split="test")
    assert source.classes == ("0000", "0009", "0010", "0011", "0012")
    assert source.queries is not None and source.queries.tolist() == [True] * 4 + [False] * 13
    assert source[0]["query"] is True and source[4]["query"] is False
    assert source[4]["id"].startswith("bounding_box_test/0000_c1")  # the distractor stays, the junk does not
    assert not any("-1" in source[index]["id"] for index in range(len(source)))


def test_parts_of_the_test_set_have_its_numbers(market: Path) -> None:
    whole, query, gallery = (market1501(root=market, split=split) for split in ("test", "query", "gallery"))
    assert query.classes == gallery.classes == whole.classes
    assert [*query.labels, *gallery.labels] == whole.labels.tolist()
    assert query.queries is not None and query.queries.all() and len(query) == 4
    assert gallery.queries is not None and not gallery.queries.any()


def test_everything_to_train_on(market: Path) -> None:
    """The same identity in both parts would be two: nobody says that they are numbered together."""
    source = market1501(root=market, split="all")
    assert source.classes[7:] == ("0008", "test/0009", "test/0010", "test/0011", "test/0012")
    assert len(source) == 48 and source.queries is None
    assert np.bincount(source.labels).tolist() == [4] * 12


def test_distractors_are_not_trained_on(market: Path) -> None:
    saved(market, "bounding_box_train/0000_c1s1.png", "images/0000_c3s1.png")
    assert "0000" not in market1501(root=market).classes
    assert len(market1501(root=market, split="gallery", more_distractors=True)) == 14


def test_the_order_is_that_of_the_names(market: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    expected = market1501(root=market).fingerprint()
    scan = os.scandir

    class Backwards:
        def __init__(self, path: bytes) -> None:
            with scan(path) as entries:
                self.entries = list(entries)[::-1]

        def __enter__(self) -> list[os.DirEntry[bytes]]:
            return self.entries

        def __exit__(self, *_: object) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", Backwards)
        assert market1501(root=market).fingerprint() == expected
    (market / "bounding_box_train/0001_c1s1_000000_00.png").rename(market / "bounding_box_train/0001_c2s1.png")
    assert market1501(root=market).fingerprint() != expected


def test_a_source_is_sent_to_workers(market: Path) -> None:
    source = market1501(root=market, split="test", channels=1)
    again = pickle.loads(pickle.dumps(source))
    assert torch.equal(again[3]["image"], source[3]["image"]) and again[3]["image"].shape == (1, 32, 16)


def test_the_archive_as_it_unpacks(tmp_path: Path) -> None:
    small_data.market1501(tmp_path / "DukeMTMC-reID")
    source = dukemtmc(root=tmp_path)
    assert (len(source), source.camera_count) == (32, 8)
    assert source[0]["id"].startswith("bounding_box_train/")


@pytest.mark.shared
def test_photographs_of_groceries(shared_data: Path) -> None:
    root = shared_data / "grocery_reid"
    train, test = (market1501(root=root, split=split, cameras=3) for split in ("train", "test"))
    assert (len(train), len(train.classes)) == (1373, 41)
    assert (len(test), len(test.classes)) == (318 + 1024, 40)
    assert test.queries is not None and int(test.queries.sum()) == 318
    assert min(train[0]["image"].shape[1:]) == 128


# --- what is wrong is told --------------------------------------------------------------------------------------------


def emptied(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def only_junk(root: Path) -> None:
    emptied(root / "query")
    saved(root, "query/-1_c1s1.png")


def bad_names(root: Path) -> None:
    saved(root, *(f"bounding_box_train/holiday{number}.jpg" for number in range(5)))


def one_identity(root: Path) -> None:
    emptied(root / "bounding_box_train")
    saved(root, "bounding_box_train/0007_c1s1.png", "bounding_box_train/0007_c2s1.png")


def strangers(root: Path) -> None:
    emptied(root / "query")
    saved(root, *(f"query/{number:04d}_c1s1.png" for number in range(1, 6)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (bad_names, r"bounding_box_train: 5 of 37 are not <identity>_c<camera, 1 to 6>.*: holiday0\.jpg, .* \.\.\.$"),
        (one_identity, r"only the identity '0007' to train on; .* at least 2"),
        (lambda root: emptied(root / "bounding_box_train"), r"bounding_box_train holds no picture \(\.jpg, "),
        (lambda root: saved(root, "bounding_box_train/0001_c7s1.png"), r"1 of 33 are not .*: 0001_c7s1\.png$"),
        (lambda root: saved(root, "bounding_box_train/0001_c0s1.png"), r"1 of 33 are not .*: 0001_c0s1\.png$"),
        (lambda root: (root / "bounding_box_train").rename(root / "train"), r"no folder .*bounding_box_train; what"),
    ],
    ids=["names", "one_identity", "empty", "camera_7", "camera_0", "missing"],
)
def test_what_is_wrong_to_train_on(market: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(market)
    with pytest.raises(ValueError, match=message):
        market1501(root=market)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (only_junk, r"query holds nothing but junk"),
        (
            strangers,
            r"none of the identities that are looked for \(0001, 0002, 0003 \.\.\.\) is in the gallery \(0000, ",
        ),
    ],
    ids=["junk", "strangers"],
)
def test_what_is_wrong_to_search(market: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(market)
    for split in ("test", "query", "gallery"):
        with pytest.raises(ValueError, match=message):
            market1501(root=market, split=split)


def test_a_file_is_no_root(market: Path) -> None:
    with pytest.raises(ValueError, match=r"is a file; a folder is expected"):
        market1501(root=market / "query/0009_c1s1_000000_00.png")
