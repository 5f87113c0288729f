from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts import DatasetInfo, Source
from opabinia.data.sampling.samplers import mixed_sources
from opabinia.data.settings import Stream
from opabinia.data.sources import Concat, Digits, DigitScenes, DigitViews, ImageFolder, Images, Synthetic, Unlabeled
from opabinia.training.samples import read_dataset_info


def save(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (5, 4), (value, 0, 0)).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for number, name in enumerate(["b.png", "2024/may/é.jpeg", "2024/may/1.PNG", "a/b/c/d/deep.bmp"]):
        save(root / name, number * 10)
    save(root / ".thumbnails" / "1.png")
    save(root / "a" / ".hidden.png")
    (root / "a" / "notes.txt").write_text("no picture")
    return root


# --- images -----------------------------------------------------------------------------------------------------------


def test_images_at_any_depth_are_sorted(photos: Path) -> None:
    source = Images(root=photos)
    assert isinstance(source, Source) and source.classes == ()
    ids = ["2024/may/1.PNG", "2024/may/é.jpeg", "a/b/c/d/deep.bmp", "b.png"]
    assert [source[index]["id"] for index in range(len(source))] == ids == [source.id(index) for index in range(4)]
    before = source.fingerprint()
    (photos / "b.png").rename(photos / "c.png")
    assert Images(root=photos).fingerprint() != before
    (photos / "c.png").rename(photos / "b.png")
    assert source[0].keys() == {"image", "id"}
    assert [int(source[index]["image"][0, 0, 0]) for index in (0, 2, 3)] == [20, 30, 0]
    assert Images(root=photos, channels=1)[0]["image"].shape == (1, 4, 5)
    with pytest.raises(IndexError, match="index 4 of 4"):
        source[4]
    train, val = (Images(root=photos, split=split, val_fraction=0.9) for split in ("train", "val"))  # type: ignore[arg-type]
    assert [val.id(0), val.id(1), train.id(0), train.id(1)] == [ids[0], ids[2], ids[1], ids[3]], "half at most"


def test_symbolic_links_are_followed_once(photos: Path, tmp_path: Path) -> None:
    save(tmp_path / "elsewhere" / "more" / "new.png")
    (photos / "linked").symlink_to(tmp_path / "elsewhere")
    (photos / "a" / "b" / "top").symlink_to(photos)
    (tmp_path / "elsewhere" / "more" / "self").symlink_to(tmp_path / "elsewhere" / "more")
    names = [Images(root=photos).id(index) for index in range(len(Images(root=photos)))]
    assert names == ["2024/may/1.PNG", "2024/may/é.jpeg", "a/b/c/d/deep.bmp", "b.png", "linked/more/new.png"]


def test_a_link_from_a_class_to_the_root_does_not_add_other_classes(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png")
    save(tmp_path / "dog" / "1.png")
    (tmp_path / "cat" / "all").symlink_to(tmp_path)
    source = ImageFolder(root=tmp_path)
    assert [source[index]["id"] for index in range(len(source))] == ["cat/1.png", "dog/1.png"]


@pytest.mark.parametrize(
    ("root", "options", "message"),
    [
        ("photos", {"split": "val", "val_fraction": 0}, "val_fraction: 0 leaves no image for val"),
        ("empty", {}, r"empty has no image at any depth \(\.jpg, "),
        ("nowhere", {}, "the nearest existing folder is"),
        ("photos/b.png", {}, r"b\.png is a file"),
    ],
)
def test_folders_without_images_are_reported(photos: Path, root: str, options: dict[str, Any], message: str) -> None:
    (photos.parent / "empty" / "deep").mkdir(parents=True)
    with pytest.raises(ValueError, match=message):
        Images(root=photos.parent / root, **options)


# --- unlabeled --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Digits, id="classes"),
        pytest.param(lambda: DigitScenes(split="val", masks=True, keypoints=True), id="boxes"),
        pytest.param(lambda: DigitViews(split="test"), id="identities"),
    ],
)
def test_samples_have_only_image_and_id(make: Any) -> None:
    labelled = make()
    source = Unlabeled(source=labelled)
    assert isinstance(source, Source) and len(source) == len(labelled)
    assert source[3].keys() == {"image", "id"}
    assert torch.equal(source[3]["image"], labelled[3]["image"]) and source[3]["id"] == labelled[3]["id"]
    dataset_info = read_dataset_info(Stream(source=source))
    assert dataset_info == DatasetInfo(len(source), channels=1)
    assert source.info.labels is None and source.info.present is None and source.info.queries is None


def test_batches_are_those_of_the_source() -> None:
    labelled = Synthetic(samples=9)
    source: Any = pickle.loads(pickle.dumps(Unlabeled(source=labelled)))
    batch = source.batch([7, 0])
    assert batch.keys() == {"image", "id"} and batch["id"] == [source[7]["id"], source[0]["id"]]
    assert torch.equal(batch["image"][0], labelled[7]["image"])
    assert Unlabeled(source=Digits()).batch(np.arange(2)) is None
    concat = Concat(sources=[Synthetic(samples=6), Synthetic(samples=4)])
    assert Unlabeled(source=concat).info.starts == (0, 6), "samplers give weights to the sources"


def test_the_fingerprint_depends_on_the_source() -> None:
    assert Unlabeled(source=Digits()).fingerprint() == Digits().fingerprint()


# --- several datasets -------------------------------------------------------------------------------------------------


def test_unlabeled_sources_are_concatenated_with_weights(photos: Path) -> None:
    scenes = Unlabeled(source=DigitScenes(split="val"))
    concat = Concat(sources=[Images(root=photos, channels=1), scenes, Unlabeled(source=Digits())])
    assert concat.classes == () and concat.info.labels is None
    assert concat[4].keys() == {"image", "id"} and concat[4]["id"] == "1/val/000000.png"
    sampler = mixed_sources(concat, 0, 8, weights=[1, 3, 0], length=400)
    drawn = sampler.order(0)(np.arange(400))
    assert np.histogram(drawn, [0, 4, 404, len(concat)])[0].tolist() == [100, 300, 0]


def test_batches_of_concatenated_sources_without_labels() -> None:
    concat: Any = Concat(sources=[Unlabeled(source=Synthetic(samples=5, seed=seed)) for seed in (1, 2)])
    batch = concat.batch([7, 0, 9])
    assert batch.keys() == {"image", "id"} and batch["id"] == [concat[index]["id"] for index in (7, 0, 9)]
    assert torch.equal(batch["image"], torch.stack([concat[index]["image"] for index in (7, 0, 9)]))


def test_labelled_sources_must_be_wrapped_to_join_unlabeled_ones(photos: Path) -> None:
    with pytest.raises(ValueError, match=r"sources\.1 has other classes .*new: 0, 1.*unlabeled"):
        Concat(sources=[Images(root=photos), Synthetic()])
    assert len(Concat(sources=[Images(root=photos), Unlabeled(source=Synthetic(samples=3))])) == 7
