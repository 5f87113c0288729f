"""Choosing validation samples, and leaks between splits."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from opabinia.contracts import RaggedArray, SourceInfo
from opabinia.data.check.image_hash import connect
from opabinia.data.examination import Examination, examine
from opabinia.data.layouts.layout import TaskName
from opabinia.data.sources import ImageFolder, Images, ObjectMaps, class_folders, coco, subset
from opabinia.data.sources.named import ImageFiles
from opabinia.data.splitting import (
    choose_folds,
    choose_identities,
    choose_validation,
    class_quotas,
    find_leaks,
    split_dataset,
    split_into_folds,
    validation_size,
)
from scripts import small_data
from tests.data.check.images import save


def files(count: int, **facts: object) -> ImageFiles:
    info = SourceInfo(**{"classes": tuple("abcdefghij"), **facts})  # type: ignore[arg-type]
    return ImageFiles(Path("root"), [b"%d.jpg" % number for number in range(count)], info)


def apart(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(count)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [(2, 1), (5, 1), (100, 20), (5000, 1000), (8000, 1000), (20_000, 2000), (50_000, 5000), (10**6, 5000)],
)
def test_validation_size(samples: int, expected: int) -> None:
    assert validation_size(samples) == expected


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([100, 100], 40, [20, 20]),
        ([1000, 10, 5, 3, 2, 1], 204, [200, 2, 1, 1, 0, 0]),
        ([90, 6], 2, [2, 2]),
        ([2, 2, 2, 2, 2], 2, [1, 1, 0, 0, 0]),
        ([3] * 10, 2, [1, 1, *[0] * 8]),
        ([0, 50], 10, [0, 10]),
        ([1, 2], 1, [0, 1]),
    ],
)
def test_quotas_of_classes(counts: list[int], total: int, expected: list[int]) -> None:
    assert class_quotas(counts, total).tolist() == expected


def test_classes_have_their_shares_and_a_single_sample_is_trained_on() -> None:
    labels = np.repeat([0, 1, 2, 3, 4], [200, 50, 6, 2, 1])
    source = files(259, labels=labels)
    chosen = choose_validation(source, apart(259), seed=0)
    assert np.bincount(labels[chosen], minlength=5).tolist() == [40, 10, 2, 0, 0]
    assert np.array_equal(chosen, choose_validation(source, apart(259), seed=0))
    assert not np.array_equal(chosen, choose_validation(source, apart(259), seed=1))


def test_a_sample_with_several_classes_counts_for_the_rarest() -> None:
    classes = [[0]] * 60 + [[0, 1]] * 30 + [[0, 2]] * 9 + [[0, 3]] + [[]] * 20
    present = RaggedArray(classes)
    multi = np.zeros((120, 4), dtype=np.float32)
    for row, own in zip(multi, classes, strict=True):
        row[own] = 1
    for facts in ({"present": present, "boxes": True}, {"labels": multi, "multi_label": True}):
        chosen = choose_validation(files(120, **facts), apart(120), seed=3)
        parts = [sum(low <= index < high for index in chosen) for low, high in ((0, 60), (60, 90), (90, 99), (99, 100))]
        assert parts == [12, 6, 2, 0] and len(chosen) == 24
    unknown = choose_validation(files(120), apart(120), seed=3, present=present)
    assert np.array_equal(unknown, chosen)


def test_many_rare_classes_still_give_validation_samples() -> None:
    present = RaggedArray([[0, 1 + number % 20] for number in range(40)])
    assert len(choose_validation(files(40, present=present), apart(40), seed=0)) == 8


@pytest.mark.parametrize("size", [2, 7, 20])
def test_groups_stay_together(size: int) -> None:
    groups = np.arange(1000) // size
    labels = np.arange(1000) // 100
    chosen = choose_validation(files(1000, labels=labels), groups, seed=0)
    assert set(groups[chosen].tolist()).isdisjoint(groups[np.setdiff1d(np.arange(1000), chosen)].tolist())
    assert (np.bincount(labels[chosen], minlength=10) >= 14).all() and 150 <= len(chosen) <= 250


def test_one_group_cannot_be_divided_and_its_last_samples_are_held_out(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_validation(files(10), np.zeros(10, dtype=np.int64), seed=0).tolist() == [8, 9]
    assert "the samples belong together" in caplog.text
    labels = np.repeat([0, 1, 2], [10, 5, 1])
    together = np.zeros(16, dtype=np.int64)
    assert choose_validation(files(16, labels=labels), together, seed=0).tolist() == [8, 9, 14]


@pytest.mark.parametrize(
    ("count", "labels", "message"),
    [(1, [0], "^1 sample cannot be split"), (3, [0, 1, 2], "^each of the 3 classes has one sample: none can be held")],
)
def test_too_few_samples_raise(count: int, labels: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_validation(files(count, labels=np.array(labels)), apart(count), seed=0)


def test_identities_are_in_one_part_and_can_be_searched() -> None:
    labels = np.repeat(np.arange(10), 6)
    cameras = np.where(labels < 5, np.arange(60) % 2, 0)
    source = files(60, labels=labels, cameras=cameras, camera_count=2, identities=True)
    chosen = choose_identities(source, apart(60), seed=0)
    held_out = np.unique(labels[chosen])
    assert len(chosen) == 12 and len(held_out) == 2 and (held_out < 5).all()
    together = connect(np.array([[0, 6], [6, 12], [12, 18], [18, 24]]), 60)  # images of all that can be searched
    assert set(labels[choose_identities(source, together, seed=0)].tolist()) == {0, 1, 2, 3, 4}
    twenty = files(400, labels=np.arange(400) // 20, classes=tuple(map(str, range(20))))
    few = choose_identities(twenty, apart(400), seed=0)
    assert len(np.unique(few // 20)) == 4, "a fifth of 20"
    with pytest.raises(ValueError, match=r"^3 of 3 identities have two images: two and at most half"):
        choose_identities(files(9, labels=np.arange(9) // 3), apart(9), seed=0)
    with pytest.raises(ValueError, match=r"^0 of 60 identities have two images: two and at most half"):
        choose_identities(files(60, labels=np.arange(60), classes=tuple(map(str, range(60)))), apart(60), seed=0)


# --- folds ------------------------------------------------------------------------------------------------------------


def of_one_class(labels: np.ndarray[tuple[int], np.dtype[np.int64]]) -> RaggedArray:
    return RaggedArray(labels[:, None])


def test_each_fold_has_its_share_of_each_class() -> None:
    labels = np.repeat([0, 1, 2, 3], [200, 52, 7, 2])
    folds = choose_folds(apart(261), of_one_class(labels), 5, seed=0)
    counts = np.array([np.bincount(labels[folds == fold], minlength=4) for fold in range(5)])
    assert (counts.max(0) - counts.min(0)).tolist() == [0, 1, 1, 1]
    assert np.ptp(counts.sum(1)) <= 1, "rare classes are spread over folds, too"
    assert np.array_equal(folds, choose_folds(apart(261), of_one_class(labels), 5, seed=0))
    assert not np.array_equal(folds, choose_folds(apart(261), of_one_class(labels), 5, seed=1))


def test_a_sample_of_several_classes_is_dealt_with_its_rarest() -> None:
    classes = RaggedArray([[0]] * 60 + [[0, 1]] * 30 + [[0, 2]] * 10 + [[]] * 20)
    folds = choose_folds(apart(120), classes, 5, seed=3)
    for low, high, share in ((0, 60, 12), (60, 90, 6), (90, 100, 2), (100, 120, 4)):
        assert np.bincount(folds[low:high], minlength=5).tolist() == [share] * 5


def test_groups_are_in_one_fold() -> None:
    groups = np.repeat(np.arange(40), np.random.default_rng(0).integers(1, 30, 40))
    labels = np.random.default_rng(1).permutation(len(groups)) % 3
    folds = choose_folds(groups, of_one_class(labels), 4, seed=0)
    assert all(len(np.unique(folds[groups == group])) == 1 for group in range(40))
    sizes = np.bincount(folds)
    assert len(sizes) == 4 and np.ptp(sizes) < 0.1 * len(groups)


def test_every_fold_has_a_group_and_there_are_enough() -> None:
    groups = np.array([0] * 20 + [1, 2, 3, 4])
    classes = of_one_class(np.array([0] * 20 + [0, 0, 1, 2]))
    assert sorted(np.bincount(choose_folds(groups, classes, 5, seed=0)).tolist()) == [1, 1, 1, 1, 20]
    with pytest.raises(
        ValueError, match=r"^24 samples in 5 groups that belong together cannot be divided into 6 folds"
    ):
        choose_folds(groups, classes, 6, seed=0)
    with pytest.raises(ValueError, match=r"^3 samples cannot be divided into 5 folds"):
        choose_folds(apart(3), of_one_class(apart(3)), 5, seed=0)


def test_folds_are_split_files_that_hold_out_each_sample_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(24):
        # Number 20 looks like number 0, and is of another patient; the last one cannot be read.
        save(tmp_path / "data" / "ab"[number % 2] / f"p{number // 4}_{number}.png", 0 if number == 20 else number)
    (tmp_path / "data" / "a" / "p9_24.png").write_bytes(b"no image")
    source = ImageFolder(root=tmp_path / "data")
    files_of = [tmp_path / "folds" / f"fold{number}.json" for number in (1, 2, 3)]
    split_into_folds(source, files_of, group_by="(p[0-9]+)_", seed=0)
    held_out = [json.loads(file.read_text())["val"] for file in files_of]
    keys = list(source.split_keys())
    assert sorted(chain.from_iterable(held_out)) == [key for key in sorted(keys) if "p9" not in key]
    patients = [{key.split("/")[1].split("_")[0] for key in fold} for fold in held_out]
    assert sum(map(len, patients)) == 6, "each patient is in one fold"
    assert any({"p0", "p5"} <= fold for fold in patients), "near-duplicates are, too"
    for file, fold in zip(files_of, held_out, strict=True):
        assert len(subset(source=source, file=file, split="val")) == len(fold)
    again = [file.with_suffix(".again") for file in files_of]
    split_into_folds(source, again, group_by="(p[0-9]+)_", seed=0)
    assert [file.read_bytes() for file in files_of] == [file.read_bytes() for file in again]
    split_into_folds(source, files_of[:2], group_by="folder", seed=0)
    assert "all of whose samples are in one fold, so that its run cannot learn them: a, b" in caplog.text


def test_an_identity_is_in_one_fold(tmp_path: Path) -> None:
    for number in range(30):
        save(tmp_path / f"id{number // 3}" / f"x{number}.png", number)
    source = class_folders(root=tmp_path, split="all")
    files_of = [tmp_path / f"{number}.json" for number in (1, 2, 3)]
    split_into_folds(source, files_of, identities=True)
    owners = [{key.split("/")[0] for key in json.loads(file.read_text())["val"]} for file in files_of]
    assert sorted(map(len, owners)) == [3, 3, 4] and len(set.union(*owners)) == 10


@pytest.mark.parametrize("task", ["classification", "detection", "segmentation", "reid", "selfsup"])
def test_a_dataset_is_split_in_a_file(task: TaskName, tmp_path: Path) -> None:
    if task == "detection":
        small_data.coco(tmp_path)
        source = coco(root=tmp_path, file=tmp_path / "annotations.json")
    elif task == "segmentation":
        small_data.coco(tmp_path)
        source = ObjectMaps(source=coco(root=tmp_path, file=tmp_path / "annotations.json", masks=True))
    elif task == "reid":
        small_data.class_folders(tmp_path)
        source = class_folders(root=tmp_path, split="all")
    else:
        for number in range(20):
            save(tmp_path / "ab"[number % 2] / f"{number}.png", number)
            (tmp_path / "ab"[number % 2] / f"broken{number}.png").write_bytes(b"no image")
        source = ImageFolder(root=tmp_path) if task == "classification" else Images(root=tmp_path)
    train, val = split_dataset(source, tmp_path / "split.json", task=task, limit=50)
    content = (tmp_path / "split.json").read_text()
    split_dataset(source, tmp_path / "split.json", task=task, limit=50)
    assert (tmp_path / "split.json").read_text() == content and json.loads(content)["val"]
    parts = [
        subset(source=source, file=tmp_path / "split.json", split=split, identities=task == "reid")
        for split in ("train", "val")
    ]
    assert len(parts[0]) + len(parts[1]) == len(source)
    assert all(scan.error is None for scan in val.scans)
    for part, examination in zip(parts, (train, val), strict=True):
        assert [part.id(index) for index in examination.indices.tolist()] == [scan.id for scan in examination.scans]
    if task == "reid":
        assert not set(parts[0].classes) & set(parts[1].classes)


@pytest.mark.parametrize(
    ("name", "numbers", "count"),
    [
        ("n01440764_{}.jpg", ([7, 4001, 912, 3], [8002, 45]), 0),  # of a class
        ("n01440764_{}.jpg", ([7, 40, 12, 3], [8, 45]), 0),
        ("clip1_{}.jpg", ([7, 40, 12, 3], [8, 45]), 2),
        ("00001613_00{}.jpg", ([0, 3], [8]), 1),  # of a subject
    ],
)
def test_leaks_by_names(name: str, numbers: tuple[list[int], list[int]], count: int) -> None:
    others = [f"{letter}.jpg" for letter in "abcd"] if count else []
    unread = Examination(np.zeros(0, dtype=np.int64), [], is_complete=False)
    splits = {}
    for split, own in zip(("train", "val"), numbers, strict=True):
        names = [*map(name.format, own), *others]
        info = SourceInfo(classes=("a",), labels=np.zeros(len(names), dtype=np.int64))
        splits[split] = ImageFiles(Path(split), [file.encode() for file in names], info), unread
    assert [leak.count for leak in find_leaks(splits)] == ([count] if count else [])


def test_leaks_are_counted_and_named(tmp_path: Path) -> None:
    for number in range(8):
        save(tmp_path / "train" / f"{number}.png", number)
    save(tmp_path / "val" / "same.png", 1)
    save(tmp_path / "val" / "near.jpg", 2, quality=60)
    save(tmp_path / "val" / "other.png", 20)
    save(tmp_path / "train" / "x_jpg.rf.0123abcd.png", 21)
    save(tmp_path / "val" / "x_jpg.rf.4567abcd.png", 22)
    save(tmp_path / "test" / "other.png", 20)
    for number, split in enumerate(("train", "val", "train", "test")):
        save(tmp_path / split / f"clip3_{number:04d}.png", 30 + number)
        save(tmp_path / split / f"IMG_{number:04d}.png", 40 + number)
        save(tmp_path / split / f"clip4_{number // 4:04d}.png", 50 + number)  # a number of all: three recordings
    sources = {name: Images(root=tmp_path / name) for name in ("train", "val", "test")}
    leaks = find_leaks({name: (source, examine(source, workers=0)) for name, source in sources.items()})
    assert [str(leak) for leak in leaks] == [
        "identical in train and val: 1 sample of val (1.png and same.png)",
        "nearly identical in train and val: 1 sample of val (2.png and near.jpg)",
        "augmented copies of one original in train and val: 1 sample of val "
        "(x_jpg.rf.0123abcd.png and x_jpg.rf.4567abcd.png)",
        "frames of one recording in train and val: 1 sample of val (clip3_0000.png and clip3_0001.png)",
        "frames of one recording in train and test: 1 sample of test (clip3_0000.png and clip3_0003.png)",
        "identical in val and test: 1 sample of test (other.png and other.png)",
        "frames of one recording in val and test: 1 sample of test (clip3_0001.png and clip3_0003.png)",
    ]
    unread = Examination(np.zeros(0, dtype=np.int64), [], is_complete=False)
    kinds = [leak.kind for leak in find_leaks({name: (source, unread) for name, source in sources.items()})]
    assert kinds.count("identical") == 2 and "nearly identical" not in kinds
