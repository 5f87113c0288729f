"""Images of identities in the layouts of published datasets."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts import Source
from opabinia.data.decoding.images import decode_sample
from opabinia.data.sources import (
    class_folders,
    cuhk03,
    dukemtmc,
    gallery_folders,
    identity_table,
    in_shop,
    market1501,
    msmt17,
    online_products,
    vehicleid,
    veri,
    veri_wild,
)
from opabinia.data.sources.reid_base import Split
from scripts import small_data


@pytest.fixture
def market(tmp_path: Path) -> Path:
    small_data.market1501(tmp_path)
    return tmp_path


def save_images(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 3)).save(root / name, "PNG")


# --- Market-1501 ------------------------------------------------------------------------------------------------------


def test_the_splits_of_market(market: Path) -> None:
    source = market1501(root=market)
    assert isinstance(source, Source)
    assert source.classes == tuple(f"{number:04d}" for number in range(1, 9))
    assert source.info.labels.tolist() == np.repeat(range(8), 4).tolist()
    assert source.info.cameras is not None and source.info.cameras.tolist() == [0, 0, 1, 1] * 8
    assert (source.info.camera_count, source.info.view_count) == (6, 0)
    assert source.info.views is source.info.queries is None
    sample = source[5]
    assert sample["image"].shape == (3, 32, 16) and sample["image"].dtype == torch.uint8
    assert sample["id"] == "bounding_box_train/0002_c1s1_000002_00.png"
    assert {key: sample[key] for key in sample.keys() - {"image", "id"}} == {"label": 1, "camera": 0}
    test, query, gallery = (market1501(root=market, split=split) for split in ("test", "query", "gallery"))
    assert query.classes == gallery.classes == test.classes == ("0000", "0009", "0010", "0011", "0012")
    assert test.info.queries is not None and test.info.queries.tolist() == [True] * 4 + [False] * 13
    assert test[0]["query"] is True and test[4]["query"] is False
    assert test[4]["id"].startswith("bounding_box_test/0000_c1")  # the distractor stays, the junk does not
    assert not any("-1" in test.id(index) for index in range(len(test)))
    assert [*query.info.labels, *gallery.info.labels] == test.info.labels.tolist()
    assert query.info.queries is not None and query.info.queries.all() and len(query) == 4
    assert gallery.info.queries is not None and not gallery.info.queries.any()
    everything = market1501(root=market, split="all")  # an identity of both splits counts as two
    assert everything.classes[7:] == ("0008", "test/0009", "test/0010", "test/0011", "test/0012")
    assert len(everything) == 48 and everything.info.queries is None
    assert np.bincount(everything.info.labels).tolist() == [4] * 12


def test_distractors_are_not_in_the_training_split(market: Path) -> None:
    save_images(market, "bounding_box_train/0000_c1s1.png", "images/0000_c3s1.png")
    assert "0000" not in market1501(root=market).classes
    assert len(market1501(root=market, split="gallery", more_distractors=True)) == 14


def test_images_are_sorted_by_name(market: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, scan = market1501(root=market).fingerprint(), os.scandir
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda path: nullcontext(sorted(scan(path), key=lambda entry: entry.name)[::-1]))
        assert market1501(root=market).fingerprint() == expected
    (market / "bounding_box_train/0001_c1s1_000000_00.png").rename(market / "bounding_box_train/0001_c2s1.png")
    assert market1501(root=market).fingerprint() != expected


def test_samples_are_encoded_and_pickled(market: Path) -> None:
    source = market1501(root=market, split="test", channels=1)
    unpickled = pickle.loads(pickle.dumps(source))
    for index in range(len(source)):
        decoded = decode_sample(unpickled.encoded(index))
        assert torch.equal(decoded.pop("image"), source[index]["image"]) and source[index]["image"].shape == (1, 32, 16)
        assert decoded == {key: value for key, value in source[index].items() if key != "image"}


def test_the_folder_of_the_archive_is_found(tmp_path: Path) -> None:
    small_data.market1501(tmp_path / "DukeMTMC-reID")
    source = dukemtmc(root=tmp_path)
    assert (len(source), source.info.camera_count) == (32, 8)
    assert source[0]["id"].startswith("bounding_box_train/")


@pytest.mark.shared
def test_photographs_of_groceries(shared_data: Path) -> None:
    root = shared_data / "grocery_reid"
    train, test = (market1501(root=root, split=split, cameras=3) for split in ("train", "test"))
    assert (len(train), len(train.classes)) == (1373, 41)
    assert (len(test), len(test.classes)) == (318 + 1024, 40)
    assert test.info.queries is not None and int(test.info.queries.sum()) == 318
    assert min(train[0]["image"].shape[1:]) == 128


# --- errors -----------------------------------------------------------------------------------------------------------


def replace_images(root: Path, folder: str, *names: str) -> None:
    """Save images in place of those of a folder."""
    for file in (root / folder).iterdir():
        file.unlink()
    save_images(root, *(f"{folder}/{name}" for name in names))


def remove_other_cameras(root: Path) -> None:
    for path in (root / "bounding_box_test").glob("*_c2*"):
        path.unlink()


TRAIN = "bounding_box_train"
ERRORS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "names": (
        "train",
        lambda root: save_images(root, *(f"{TRAIN}/holiday{number}.jpg" for number in range(5))),
        rf"{TRAIN}: 5 of 37 are not <identity>_c<camera, 1 to 6>.*: holiday0\.jpg, .* \.\.\.$",
    ),
    "one identity": (
        "train",
        lambda root: replace_images(root, TRAIN, "0007_c1s1.png", "0007_c2s1.png"),
        r"only the identity '0007' to train on; at least 2",
    ),
    "empty": ("train", lambda root: replace_images(root, TRAIN), rf"{TRAIN} has no images \(\.jpg, "),
    "camera 7": ("train", lambda root: save_images(root, f"{TRAIN}/0001_c7s1.png"), r"1 of 33 .*: 0001_c7s1\.png$"),
    "camera 0": ("train", lambda root: save_images(root, f"{TRAIN}/0001_c0s1.png"), r"1 of 33 .*: 0001_c0s1\.png$"),
    "missing": ("train", lambda root: (root / TRAIN).rename(root / "train"), rf"no folder .*{TRAIN}; the"),
    "junk": ("test query gallery", lambda root: replace_images(root, "query", "-1_c1s1.png"), "query has only junk"),
    "strangers": (
        "test query gallery",
        lambda root: replace_images(root, "query", *(f"{number:04d}_c1s1.png" for number in range(1, 6))),
        r"none of the identities of the queries \(0001, 0002, 0003 \.\.\.\) is in the gallery \(0000, ",
    ),
    "own cameras": ("test query gallery", remove_other_cameras, "of the queries by the query's own camera only"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_the_splits(market: Path, name: str) -> None:
    splits, break_data, message = ERRORS[name]
    break_data(market)
    for split in splits.split():
        with pytest.raises(ValueError, match=message):
            market1501(root=market, split=split)  # type: ignore[arg-type]


def test_a_file_as_root_raises(market: Path) -> None:
    with pytest.raises(ValueError, match=r"is a file; a folder is expected"):
        market1501(root=market / "query/0009_c1s1_000000_00.png")


# --- other layouts ----------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Any] = {
    "msmt17": (msmt17, small_data.msmt17, "MSMT17_V1", 15),
    "cuhk03": (cuhk03, small_data.cuhk03, "cuhk03", 2),
    "veri": (veri, small_data.veri, "VeRi", 20),
    "vehicleid": (vehicleid, small_data.vehicleid, "VehicleID_V1.0", 0),
    "veri_wild": (veri_wild, small_data.veri_wild, "VERI-Wild", 174),
    "in_shop": (in_shop, small_data.in_shop, "InShop", 0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_queries_and_gallery(name: str, tmp_path: Path) -> None:
    """Four queries, and three images of each of the same four identities in the gallery."""
    source, make, folder, cameras = LAYOUTS[name]
    make(tmp_path / folder)
    train, test = source(root=tmp_path), source(root=tmp_path, split="test")
    assert isinstance(test, Source)
    assert len(train.classes) == 8 and (len(test), len(test.classes)) == (16, 4)
    assert train.info.queries is None and "query" not in train[0]
    parts = source(root=tmp_path, split="query"), source(root=tmp_path, split="gallery")
    if name != "vehicleid":  # which has one gallery image and three queries of each identity
        assert np.bincount(parts[0].info.labels).tolist() == [1] * 4
    assert sorted(test.info.labels) == sorted([*parts[0].info.labels, *parts[1].info.labels])
    assert sum(test.info.queries) == len(parts[0])
    assert len(source(root=tmp_path, split="all").classes) == 12
    for split in (train, test):
        assert split.info.camera_count == cameras and ("camera" in split[0]) == bool(cameras)
        if cameras:
            assert sorted({int(camera) for camera in split.info.cameras}) == [0, 1]
    ids = [test[index]["id"] for index in range(len(test))]
    assert len(set(ids)) == 16 and (tmp_path / folder / ids[0]).is_file()


def test_veri_wild_needs_the_camera_of_every_image(tmp_path: Path) -> None:
    small_data.veri_wild(tmp_path)
    file = tmp_path / "train_test_split" / "vehicle_info.txt"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:5]))
    with pytest.raises(ValueError, match=r"train_list.txt: 28 of 32 are not images of vehicle_info.txt: 00002/000020"):
        veri_wild(root=tmp_path)
    file.write_text("".join([lines[0], "00001/000010;175;x\n"]))
    with pytest.raises(ValueError, match=r"1 of 1 are not vehicle/image;camera, 1 to 174;...: 00001/000010;175;x"):
        veri_wild(root=tmp_path)


def test_in_shop_has_three_splits(tmp_path: Path) -> None:
    small_data.in_shop(tmp_path)
    file = tmp_path / "list_eval_partition.txt"
    file.write_text(file.read_text() + "img/x.jpg id_1 test\n")
    with pytest.raises(ValueError, match=r"1 of 49 are not an image, its piece and train, query or gallery: line 51"):
        in_shop(root=tmp_path)


def test_msmt17_has_images_for_validation(tmp_path: Path) -> None:
    small_data.msmt17(tmp_path)
    train, with_val = msmt17(root=tmp_path), msmt17(root=tmp_path, with_val=True)
    assert (len(train), len(with_val), len(msmt17(root=tmp_path, split="all"))) == (24, 32, 48)
    assert train.classes == with_val.classes == tuple("01234567")
    assert np.bincount(with_val.info.labels).tolist() == [4] * 8


def test_the_second_version_of_msmt17(tmp_path: Path) -> None:
    small_data.msmt17(tmp_path / "MSMT17_V2")
    for name in ("train", "test"):
        (tmp_path / "MSMT17_V2" / name).rename(tmp_path / "MSMT17_V2" / f"mask_{name}_v2")
    assert msmt17(root=tmp_path)[0]["id"] == "mask_train_v2/0000/0000_000_01_0303morning_0000_0.png"
    assert len(msmt17(root=tmp_path / "MSMT17_V2", split="test")) == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a/b.png 0", r"list_train\.txt: 1 of 25 are not images named .*: b\.png \(line 25\)"),
        ("0000/0000_000_16_0303morning_0001_0.png 0", r"1 of 25 are not .*16_0303morning"),
        ("0000/0000_009_01_0303morning_0001_0.png 0", r"1 of 25 images are not in .*0000_009_01.* \(line 25\)"),
        ("0000/0000_000_01_0303morning_0000_0.png 0", r"1 image more than once: .* \(line 1, line 25\)"),
        ("only", r"list_train\.txt: 1 of 25 are not 2 fields \(path identity\): line 25 has 1 fields"),
        (b"\n", r"list_train\.txt is empty"),
        (b"\xff\xfe", r"list_train\.txt is not UTF-8: invalid start byte at byte 0"),
        (None, r"there is no file .*list_train\.txt"),
    ],
)
def test_bad_lists_are_reported(content: str | bytes | None, message: str, tmp_path: Path) -> None:
    """A text is added as the last line; bytes replace the list."""
    small_data.msmt17(tmp_path)
    file = tmp_path / "list_train.txt"
    if isinstance(content, str):
        file.write_text(file.read_text() + content)
    elif content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        msmt17(root=tmp_path)


def test_errors_of_cuhk03_are_reported(tmp_path: Path) -> None:
    small_data.cuhk03(tmp_path)
    assert cuhk03(root=tmp_path).classes[0] == "1_001"
    with pytest.raises(ValueError, match=r"no file .*splits_new_detected\.json; .*cuhk-03\.mat.*cuhk03_archive"):
        cuhk03(root=tmp_path, boxes="detected")
    file = tmp_path / "splits_new_labeled.json"
    content = json.loads(file.read_text())
    for broken in ("[", "{}", "[]", '[{"train": []}]', '[{"train": [[]], "query": [], "gallery": []}]', "[3]", "5"):
        file.write_text(broken)
        with pytest.raises(ValueError, match=r"splits_new_labeled\.json cannot be read .*; expected \[\{"):
            cuhk03(root=tmp_path)
    content[0]["train"].append(["images_labeled/1_001_3_01.png", 1, 0])
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"json, train: 1 of 33 are not named .*: 1_001_3_01\.png"):
        cuhk03(root=tmp_path)
    content[0]["train"][-1][0] = "images_labeled/1_001_1_09.png"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"1 of 33 images are not in .*1_001_1_09\.png \(train 32\)"):
        cuhk03(root=tmp_path)


def test_the_gallery_of_vehicles_depends_on_the_seed(tmp_path: Path) -> None:
    small_data.vehicleid(tmp_path)

    def gallery(seed: int) -> list[str]:
        source = vehicleid(root=tmp_path, split="gallery", gallery_seed=seed)
        assert source.info.labels.tolist() == [0, 1, 2, 3]
        return [source[index]["id"] for index in range(4)]

    assert gallery(0) == gallery(0)
    assert len({tuple(gallery(seed)) for seed in range(10)}) > 5
    assert vehicleid(root=tmp_path, split="test").info.queries.sum() == 12
    with pytest.raises(ValueError, match=r"no file .*test_list_1600\.txt"):
        vehicleid(root=tmp_path, split="test", test_size=1600)
    file = tmp_path / "train_test_split/test_list_800.txt"
    lines = file.read_text().splitlines()
    drawn = gallery(3)
    file.write_text("\n".join(reversed(lines)))
    assert gallery(3) == drawn, "the order of the list does not matter"
    file.write_text("\n".join([*lines, "0000001 a3"]))
    with pytest.raises(ValueError, match=r"1 of 17 are not vehicle numbers: a3 \(line 17\)"):
        vehicleid(root=tmp_path, split="test")


# --- products: every image is a query ---------------------------------------------------------------------------------


def test_online_products(tmp_path: Path) -> None:
    small_data.online_products(tmp_path / "Stanford_Online_Products")
    train, test, all_images = (online_products(root=tmp_path, split=split) for split in ("train", "test", "all"))
    assert (len(train), len(test), len(all_images)) == (32, 16, 48)
    assert train.classes == tuple("12345678") and test.classes == ("9", "10", "11", "12")
    assert all_images.classes == (*train.classes, *test.classes)
    assert test.info.queries is None and test.info.cameras is None and test[3].keys() == {"image", "label", "id"}
    assert test[4]["id"] == "chair_final/10_0.png" and test[4]["label"] == 1


def test_errors_of_products_are_reported(tmp_path: Path) -> None:
    small_data.online_products(tmp_path)
    header = "image_id class_id super_class_id path\n"
    (tmp_path / "Ebay_train.txt").write_text(header + "1 1 1 chair_final/1_0.png\n")
    (tmp_path / "Ebay_test.txt").write_text(header + "1 9 1 chair_final/9_0.png\n2 10 1 chair_final/10_0.png\n")
    with pytest.raises(ValueError, match=r"only the identity '1' to train on"):
        online_products(root=tmp_path)
    with pytest.raises(ValueError, match=r"none of 2 test identities has 2 images"):
        online_products(root=tmp_path, split="test")
    (tmp_path / "Ebay_test.txt").write_text(header + "1 9 1 chair_final/no.png\n")
    with pytest.raises(ValueError, match=r"Ebay_test\.txt: 1 of 1 images are not in .*no\.png \(line 2\)"):
        online_products(root=tmp_path, split="test")


def test_class_folders_are_split_by_class(tmp_path: Path) -> None:
    small_data.class_folders(tmp_path)
    train, test = (class_folders(root=tmp_path, split=split) for split in ("train", "test"))
    assert train.classes == tuple(f"{number:03d}.Bird" for number in range(1, 7))
    assert test.classes == tuple(f"{number:03d}.Bird" for number in range(7, 13))
    assert test[0].keys() == {"image", "label", "id"} and len(test) == 24
    assert len(class_folders(root=tmp_path, train_classes=10, split="test").classes) == 2
    assert len(class_folders(root=tmp_path, split="all")) == 48
    assert len(class_folders(root=tmp_path, train_classes=0, split="test")) == 48
    assert class_folders(root=tmp_path, split="all", classes=["002.Bird", "009.Bird"]).classes == (
        "002.Bird",
        "009.Bird",
    )
    with pytest.raises(ValueError, match=r"train_classes: 12 of the 12 classes in .* leave none to test"):
        class_folders(root=tmp_path, train_classes=12)
    with pytest.raises(ValueError, match=r"only the identity '001\.Bird' to train on"):
        class_folders(root=tmp_path, train_classes=1)
    for number in range(1, 4):
        (tmp_path / f"012.Bird/{number}.png").unlink()
    with pytest.raises(ValueError, match=r"none of 1 test identities has 2 images"):
        class_folders(root=tmp_path, train_classes=11, split="test")


# --- a list -----------------------------------------------------------------------------------------------------------


def test_a_list_of_identities(tmp_path: Path) -> None:
    small_data.identities(tmp_path)
    train, test = (identity_table(file=tmp_path / "list.csv", split=split) for split in ("train", "test"))
    assert train.classes == tuple("12345678") and (train.info.camera_count, train.info.view_count) == (2, 0)
    assert test.info.queries is not None and test.info.queries.tolist() == [True] * 4 + [False] * 12
    assert train.info.cameras is not None and train.info.cameras.tolist() == [0, 1, 0, 1] * 8
    without_cameras = identity_table(file=tmp_path / "list.csv", camera=None, view="camera")
    assert without_cameras[1].keys() == {"image", "label", "id", "view"} and without_cameras[1]["view"] == 1
    without_splits = identity_table(file=tmp_path / "list.csv", split_column=None)
    all_images = identity_table(file=tmp_path / "list.csv", split="all")
    assert len(without_splits) == len(all_images)
    assert all_images.classes == tuple(str(number) for number in range(1, 13)) and all_images.info.queries is None


def write_list(folder: Path, *more_lines: str) -> Path:
    """Write a list of two training identities and these lines."""
    lines = ["a.png,anna,door,train", "b.png,ben,yard,train", *more_lines]
    save_images(folder, *(line.split(",")[0] for line in lines))
    (folder / "rows.csv").write_text("\n".join(["path,identity,camera,split", *lines]))
    return folder / "rows.csv"


def test_a_camera_has_the_same_index_in_every_split(tmp_path: Path) -> None:
    file = write_list(tmp_path, "c.png,cleo,attic,query", "d.png,cleo,door,gallery")
    assert identity_table(file=file)[0]["camera"] == 1
    test = identity_table(file=file, split="test")
    assert [test[index]["camera"] for index in range(2)] == [0, 1] and test.info.camera_count == 3


def test_a_list_without_queries_uses_every_test_image_as_query(tmp_path: Path) -> None:
    file = write_list(tmp_path, "c.png,cleo,attic,test", "d.png,cleo,door,test")
    test = identity_table(file=file, split="test")
    assert test.info.queries is None and test.info.labels.tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"rows\.csv lists no image for query and gallery"):
        identity_table(file=file, split="query")


@pytest.mark.parametrize(
    ("lines", "split", "message"),
    [
        ("c.png,cleo,attic,val", "train", r"rows\.csv, line 4: split is 'val', none of train, query, gallery, test"),
        ("c.png,,attic,train", "train", r"rows\.csv, line 4: identity is empty"),
        ("c.png,cleo,,train", "train", r"rows\.csv, line 4: camera is empty"),
        ("c.png,cleo,attic,query", "test", r"rows\.csv lists no image for gallery"),
        ("c.png,cleo,a,query\nd.png,cleo,b,test", "test", r"listed as 'test', or as 'query' and 'gallery'"),
        ("c.png,cleo,attic,query\nd.png,dan,attic,gallery", "test", r"the queries \(cleo \.\.\.\) is in the gallery"),
        ("c.png,cleo,attic,test", "test", r"none of 1 test identities has 2 images"),
        ("a.png,cleo,attic,test", "train", r"1 image more than once: a\.png \(line 2, line 4\)"),
    ],
    ids=["part", "identity", "camera", "gallery", "both", "strangers", "alone", "twice"],
)
def test_errors_of_a_list_are_reported(lines: str, split: Split, message: str, tmp_path: Path) -> None:
    file = write_list(tmp_path, *lines.split("\n"))
    with pytest.raises(ValueError, match=message):
        identity_table(file=file, split=split)


def test_wrong_columns_of_a_list_are_reported(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,identity,cameras,split\na.png,anna,door,train\n")
    with pytest.raises(ValueError, match=r"no column 'camera'; did you mean 'cameras'\?"):
        identity_table(file=tmp_path / "list.csv")
    (tmp_path / "list.csv").write_text("path,identity,camera,split\n")
    with pytest.raises(ValueError, match=r"list\.csv lists no image"):
        identity_table(file=tmp_path / "list.csv")


@pytest.mark.parametrize(
    ("names", "cameras"),
    [
        (["train/{i}/1.png", "train/{i}/2.png", "query/{i}/1.png", "gallery/{i}/2.png"], 0),
        (["train/{i}_c1_1.png", "train/{i}_c2_1.png", "query/{i}_c1_1.png", "gallery/{i}_c2_1.png"], 3),
    ],
)
def test_folders_of_queries_and_a_gallery(names: list[str], cameras: int, tmp_path: Path) -> None:
    save_images(tmp_path, *(name.format(i=f"000{number}") for name in names for number in (1, 2)))
    train, test = (gallery_folders(root=tmp_path, split=split) for split in ("train", "test"))
    assert (len(train), train.classes, train.info.camera_count) == (4, ("0001", "0002"), cameras)
    assert test.info.queries is not None and test.info.queries.tolist() == [True, True, False, False]
    save_images(tmp_path, "gallery/anna.png")
    with pytest.raises(ValueError, match=r"gallery: .*anna\.png"):
        gallery_folders(root=tmp_path)
