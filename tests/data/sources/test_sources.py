import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from opabinia.contracts import Source
from opabinia.data.sources import Digits, ImageFolder, named_images
from opabinia.data.sources.digits import load_digits, split_digits
from opabinia.data.sources.labels import select_classes

# --- digits -----------------------------------------------------------------------------------------------------------


def test_the_split_never_changes() -> None:
    """Metrics on different splits are not comparable."""
    numbers = split_digits(load_digits()[1])["val"]
    assert numbers[:6].tolist() == [20, 21, 23, 28, 34, 37]
    assert hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest().startswith("8b6e938c356b44648b6bf535c1024e0f")
    train, val = Digits(), Digits(split="val")
    assert (len(train), len(val)) == (1437, 360)
    assert sorted([*train.numbers, *val.numbers]) == list(range(1797))
    shares = np.bincount(val.info.labels) / (np.bincount(val.info.labels) + np.bincount(train.info.labels))
    assert np.abs(shares - 360 / 1797).max() < 0.005, "stratified"


def test_a_sample_of_digits() -> None:
    source = Digits(split="val")
    assert isinstance(source, Source)
    sample = source[3]
    assert sample["id"] == "digits/0028"
    assert (sample["label"], type(sample["label"])) == (8, int)
    assert isinstance(sample["image"], tv_tensors.Image)
    assert (sample["image"].shape, sample["image"].dtype) == ((1, 8, 8), torch.uint8)
    sample["image"].zero_()
    assert source[3]["image"].max() == 255


def test_digits_are_cached_and_a_broken_cache_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_digits()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_digits()
    (file,) = (tmp_path / "opabinia").iterdir()
    content = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("opabinia.data.sources.digits._read_sklearn", lambda: pytest.fail("the cache was not read"))
        assert np.array_equal(load_digits()[0], expected[0])
    for broken in (b"", content[:1000], content.replace(content[5000:5010], b"0123456789"), b"\x80\x04no"):
        file.write_bytes(broken)
        assert np.array_equal(load_digits()[0], expected[0])
        assert file.read_bytes() == content


def test_digits_without_a_writable_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(Digits()) == 1437


# --- image_folder -----------------------------------------------------------------------------------------------------


def save(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (5, 4), (value, 0, 0)).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for number, name in enumerate(["dog/b.png", "dog/a.PNG", "cat/z/1.png", "cat/y.png", "cat/é.png", "Zebra/1.png"]):
        save(tmp_path / name, number * 10)
    save(tmp_path / "cat/.hidden.png")
    save(tmp_path / ".trash/1.png")
    (tmp_path / "dog/notes.txt").write_text("no picture")
    (tmp_path / "README.md").write_text("no class")
    return tmp_path


class Compared(str):
    """A name that counts its comparisons."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_choosing_among_many_classes_compares_each_a_few_times() -> None:
    names = [Compared(number) for number in range(3000)]
    for chosen, expected in (
        (None, range(3000)),
        ([str(number) for number in range(2999, -1, -1)], range(2999, -1, -1)),
    ):
        Compared.count = 0
        assert select_classes("x", names, chosen) == [*expected]
        assert Compared.count < 10 * len(names), "the work must not grow with the square of the classes"
    with pytest.raises(ValueError, match="x has no class '3000'"):
        select_classes("x", names, ["1", "3000"])
    with pytest.raises(ValueError, match="classes: '1' is listed twice"):
        select_classes("x", names, ["1", "2", "1"])


def test_samples_are_sorted(pets: Path) -> None:
    source = ImageFolder(root=pets)
    assert isinstance(source, Source)
    assert source.classes == ("Zebra", "cat", "dog")
    ids = ["Zebra/1.png", "cat/y.png", "cat/z/1.png", "cat/é.png", "dog/a.PNG", "dog/b.png"]
    assert [source[i]["id"] for i in range(len(source))] == ids
    assert [source[i]["label"] for i in range(len(source))] == source.info.labels.tolist() == [0, 1, 1, 1, 2, 2]
    assert [int(source[i]["image"][0, 0, 0]) for i in range(len(source))] == [50, 30, 20, 40, 10, 0]
    assert source[0]["image"].shape == (3, 4, 5) and isinstance(source[0]["image"], tv_tensors.Image)
    gray = ImageFolder(root=pets, channels=1)
    assert gray.channels == 1 and gray[0]["image"].shape == (1, 4, 5)
    for index in (-1, 6):
        with pytest.raises(IndexError, match="of 6 images"):
            source[index]


def test_classes_select_and_order_folders(pets: Path) -> None:
    source = ImageFolder(root=pets, classes=["dog", "cat"])
    assert source.classes == ("dog", "cat")
    assert [source[i]["label"] for i in range(len(source))] == [0, 0, 1, 1, 1]


def test_a_list_selects_images(pets: Path) -> None:
    names = [str(name, "utf-8") for name in ImageFolder(root=pets).names]
    lines = [f"photos/{names[0]} 1", "", names[-1].rpartition(".")[0]]
    (pets.parent / "list.txt").write_text("\n".join(lines))
    source = ImageFolder(root=pets, list_file=pets.parent / "list.txt")
    assert [source.id(index) for index in range(len(source))] == [names[0], names[-1]]
    assert source.classes == ImageFolder(root=pets).classes
    (pets.parent / "list.txt").write_text("cat/no.png 1\n")
    with pytest.raises(ValueError, match=r"list\.txt: 1 of 1 are not files in class folders: cat/no\.png \(line 1\)"):
        ImageFolder(root=pets, list_file=pets.parent / "list.txt")


def test_the_fingerprint_depends_on_files_and_classes(pets: Path) -> None:
    before = ImageFolder(root=pets).fingerprint()
    assert ImageFolder(root=pets, classes=["dog", "cat", "Zebra"]).fingerprint() != before
    (pets / "dog/b.png").rename(pets / "dog/c.png")
    assert ImageFolder(root=pets).fingerprint() != before


def test_a_file_name_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    save(tmp_path / "cat/a.png")
    os.rename(tmp_path / "cat/a.png", os.fsencode(tmp_path) + b"/cat/\xff.png")
    assert ImageFolder(root=tmp_path)[0]["id"] == "cat/\\xff.png"


@pytest.mark.parametrize(
    ("root", "classes", "message"),
    [
        ("no/train", None, "no folder {pets}/no/train; the nearest existing folder is {pets}"),
        ("README.md", None, "README.md is a file"),
        ("dog", None, "has no folders"),
        ("", ["cat", "dgo"], "no class 'dgo'; there is dog"),
        ("", ["cat", "cat"], "'cat' is listed twice"),
        ("", ["emu"], r"class folder {pets}/emu has no image \(.jpg, "),
    ],
)
def test_folder_errors(pets: Path, root: str, classes: list[str] | None, message: str) -> None:
    (pets / "emu").mkdir()
    with pytest.raises(ValueError, match=message.format(pets=pets)):
        ImageFolder(root=pets / root, classes=classes)


def test_coco_data_is_no_folder_per_class(pets: Path) -> None:
    (pets / "annotations").mkdir()
    (pets / "annotations" / "instances_val.json").write_text("{}")
    with pytest.raises(ValueError, match=rf"{pets} holds COCO data .*`opabinia train {pets}` reads it"):
        ImageFolder(root=pets)


@pytest.fixture
def named(tmp_path: Path) -> Path:
    for name in ("cat.1.png", "cat.12.png", "Leaf smut (3).png", "x1_left7.png"):
        save(tmp_path / name, 3)
    return tmp_path


def test_classes_in_names(named: Path) -> None:
    source = named_images(root=named)
    assert source.classes == ("Leaf smut", "cat", "x1_left")
    assert [(source.id(index), source[index]["label"]) for index in range(4)] == [
        ("Leaf smut (3).png", 0),
        ("cat.1.png", 1),
        ("cat.12.png", 1),
        ("x1_left7.png", 2),
    ]
    assert [named_images(root=named, classes=["cat"]).id(index) for index in range(2)] == ["cat.1.png", "cat.12.png"]


def test_classes_at_the_end_of_names(tmp_path: Path) -> None:
    for name in ("img1_cat.png", "x y 12-cat.png", "ab3.Leaf smut.png"):
        save(tmp_path / name)
    source = named_images(root=tmp_path, position="end")
    assert (source.classes, source.info.labels.tolist()) == (("Leaf smut", "cat"), [0, 1, 1])
    save(tmp_path / "img.png")
    with pytest.raises(ValueError, match=r"img\.png does not end with a class after a number"):
        named_images(root=tmp_path, position="end")


@pytest.mark.parametrize(
    ("name", "classes", "message"),
    [
        ("12.png", None, "12.png does not begin with a class"),
        ("cat.png", None, "cat.png does not begin with a class"),
        ("dog.1.png", ["cat", "cow"], "has no image of cow; classes: Leaf smut"),
    ],
)
def test_names_without_classes(named: Path, name: str, classes: list[str] | None, message: str) -> None:
    save(named / name)
    with pytest.raises(ValueError, match=message):
        named_images(root=named, classes=classes)


def test_a_relative_root(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pets.parent)
    assert len(ImageFolder(root=Path(pets.name))) == 6
    with pytest.raises(ValueError, match=f"the nearest existing folder is {pets.parent}"):
        ImageFolder(root=Path("nowhere"))


def test_real_photographs(shared_data: Path) -> None:
    source = ImageFolder(root=shared_data / "clothing_small" / "train")
    assert (len(source), len(source.classes)) == (3068, 10)
    assert source[5]["image"].shape == (3, 213, 160)
