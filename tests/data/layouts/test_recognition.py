"""Folders in every layout are read as expected, and their sources open; others are one clear question or error."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import ConfigError, build, check, compose
from opabinia.config.catalog import Catalog, live_catalog
from opabinia.config.registry import Entry
from opabinia.config.types import Parameter
from opabinia.contracts import Source
from opabinia.data.layouts.layout import Section
from opabinia.data.layouts.recognition import recognize
from opabinia.training import builtin_parts as builtin_parts
from tests.data.layouts.cases import CASES, WRONG
from tests.data.layouts.folders import Case, Maker, Wrong, coco, encoded_image, images, text

CATALOG = live_catalog()
COMMAND = Entry("command", "open", lambda source: source, (Parameter("source", {"kind": "part", "family": "source"}),))


def open_source(section: Section) -> Source:
    """Check and build a section, as a command does."""
    catalog = Catalog({**CATALOG.entries, "command": {"open": COMMAND}})
    config = check(compose({"source": dict(section)}), catalog, "open").config
    source = build(config, catalog, "open")()
    assert isinstance(source, Source)
    return source


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layouts(case: Case, tmp_path: Path) -> None:
    root = tmp_path / "my data"
    root.mkdir()
    case.make(Maker(root))
    given: dict[str, Any] = dict(case.given)
    layout = recognize(root / case.file, **given)
    assert (layout.name, layout.task) == (case.layout, case.task)
    counts = {}
    for split in ("train", "val", "test"):
        section = getattr(layout, split)
        if section is not None:
            source = open_source(section)
            counts[split] = len(source)
            if case.classes is not None:
                assert list(source.classes) == list(case.classes)
    assert counts == {split: count for split in ("train", "val", "test") if (count := getattr(case, split)) is not None}
    notes = " ".join(layout.notes)
    assert all(part in notes for part in case.notes), notes
    if layout.classes:
        assert list(layout.classes) == list(open_source(layout.train).classes)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_questions_and_errors(case: Wrong, tmp_path: Path) -> None:
    root = tmp_path / "my data"
    root.mkdir()
    case.make(Maker(root))
    given: dict[str, Any] = dict(case.given)
    with pytest.raises(ConfigError) as caught:
        recognize(root / case.file, **given)
    message = str(caught.value)
    assert str(root) in message
    assert all(part in message for part in case.parts), message
    assert len(message.splitlines()) < 12


def test_images_that_are_read_are_not_called_unread(tmp_path: Path) -> None:
    names = ["pictures/1.jpg", "2.jpg"]
    images(*names)(Maker(tmp_path))
    Maker(tmp_path).json("a.json", coco(names))
    assert not recognize(tmp_path).notes
    images("other/1.jpg")(Maker(tmp_path))
    assert list(recognize(tmp_path).notes) == ["not read: other/"]


FEATURES = {"picture": {"_type": "Image"}, "kind": {"names": ["a"], "_type": "ClassLabel"}}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "dataset_dict.json": {"splits": ["train", "validation"]},
                "train/dataset_info.json": {"features": FEATURES},
                "validation/dataset_info.json": {"features": FEATURES},
            },
            {"name": "hugging_face", "dataset": "ROOT", "split": "train", "image": "picture", "label": "kind"},
        ),
        (
            {"state.json": {"_split": "train"}, "dataset_info.json": {"features": FEATURES}},
            {"name": "hugging_face", "dataset": "ROOT", "split": "train", "image": "picture", "label": "kind"},
        ),
        ({"train/films.json": {}, "val/films.json": {}}, {"name": "packed_videos", "root": "ROOT/train"}),
        (
            {"list_train.txt": "", "list_query.txt": "", "list_gallery.txt": "", "list_val.txt": ""},
            {"name": "msmt17", "root": "ROOT", "split": "train"},
        ),
        (
            {"images_labeled/1.png": "", "splits_new_labeled.json": []},
            {"name": "cuhk03", "root": "ROOT", "split": "train"},
        ),
        ({"Ebay_train.txt": "", "Ebay_test.txt": ""}, {"name": "online_products", "root": "ROOT", "split": "train"}),
    ],
)
def test_sections_of_files_that_need_more_to_be_opened(
    files: dict[str, Any], expected: dict[str, str], tmp_path: Path
) -> None:
    for name, value in files.items():
        Maker(tmp_path).json(name, value)
    assert recognize(tmp_path).train == {key: value.replace("ROOT", str(tmp_path)) for key, value in expected.items()}


def test_a_parquet_file_with_paths(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    images("{1..2}.jpg")(Maker(tmp_path))
    parquet.write_table(pyarrow.table({"path": ["1.jpg", "2.jpg"], "label": ["a", "b"]}), tmp_path / "x.parquet")
    assert len(open_source(recognize(tmp_path).train)) == 2


def test_parquet_files_with_images(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"bytes": encoded_image(".jpg"), "path": "1.jpg"}] * 2
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        table = pyarrow.table({"img": rows, "fine": [1, 2], "label": ["a", "b"]})
        parquet.write_table(table, tmp_path / "data" / f"{name}.parquet")
    layout = recognize(tmp_path)
    assert (layout.name, layout.task) == ("parquet", "classification") and layout.val is not None
    source = open_source(layout.train)
    assert (len(source), len(open_source(layout.val)), source.classes) == (4, 2, ("a", "b"))
    parquet.write_table(pyarrow.table({"image": rows}), tmp_path / "data" / "train-00000-of-00002.parquet")
    with pytest.raises(ConfigError, match=r"has images \(image\), and no column with labels"):
        recognize(tmp_path)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["cats", "./cats/", "~/cats", "."])
def test_paths_are_those_that_were_given(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images("{cats,.}/{train,val}/{a,b}/1.jpg")(Maker(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    layout = recognize(given)
    root = {"~/cats": f"{tmp_path}/cats/", ".": ""}.get(given, "cats/")
    assert layout.train == {"name": "image_folder", "root": f"{root}train"}
    assert layout.val == {"name": "image_folder", "root": f"{root}val"}
    assert len(open_source(layout.train)) == 2


def test_sections_keep_the_url_of_remote_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE", str(tmp_path / "cache"))
    images("data/{train,val}/{a,b}/1.jpg", "list/1.jpg")(Maker(tmp_path))
    text("list/a.csv", "path,label\n1.jpg,a\n")(Maker(tmp_path))
    layout = recognize(f"file://{tmp_path}/data")
    assert layout.train == {"name": "image_folder", "root": f"file://{tmp_path}/data/train"}
    assert len(open_source(layout.train)) == 2
    layout = recognize(f"file://{tmp_path}/list/a.csv")
    assert layout.train == {"name": "table", "file": f"file://{tmp_path}/list/a.csv"}
    assert len(open_source(layout.train)) == 1


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images("train/{a,b}/1.jpg")(Maker(tmp_path))
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("/b"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ConfigError, match=r"train/b cannot be searched: Permission denied"):
        recognize(tmp_path)


def test_a_disk_is_no_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"{number}" / "x").mkdir(parents=True)
    monkeypatch.setattr("opabinia.data.layouts.folder.MAX_FOLDERS", 20)
    with pytest.raises(ConfigError, match=r"has more than 20 folders; give one of them"):
        recognize(tmp_path)


def test_links_to_a_parent_are_not_followed(tmp_path: Path) -> None:
    images("{a,b}/1.jpg")(Maker(tmp_path))
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "b" / "gone.jpg").symlink_to("nowhere")
    layout = recognize(tmp_path)
    assert layout.description == "2 class folders of images in one folder"


@pytest.mark.shared
def test_real_data(shared_data: Path) -> None:
    tasks = {path.name: recognize(path).task for path in sorted(shared_data.iterdir()) if path.name in REAL}
    assert tasks == REAL


REAL = {
    "bccd": "detection",
    "clothing_small": "classification",
    "fashion_mnist": "classification",
    "grocery_reid": "reid",
    "omniglot_strokes_video": "video",
}
