"""Parts of sources by a split file."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opabinia.contracts import RaggedArray, Source, SourceInfo
from opabinia.data.check.checks import run_checks
from opabinia.data.sources import (
    Concat,
    ConcatIdentities,
    Digits,
    DigitViews,
    ImageFolder,
    ImageLabels,
    Images,
    Indexed,
    ObjectMaps,
    Shards,
    Table,
    Unlabeled,
    Videos,
    VideoViews,
    class_folders,
    coco,
    random_part,
    subset,
)
from opabinia.data.sources.named import ImageFiles
from opabinia.data.sources.subset import choose_queries, write_split
from scripts import small_data
from tests.data.videos import write as write_video


def image_folder(root: Path) -> ImageFolder:
    for number in range(12):
        path = root / ("cat", "dog", "owl")[number % 3] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 3), (number * 20, 0, 0)).save(path)
    return ImageFolder(root=root)


def several_labels(root: Path) -> Table:
    image_folder(root)
    lines = [f"cat/{number}.png,{'a|b' if number % 2 else 'b'}" for number in range(0, 12, 3)]
    (root / "list.csv").write_text("\n".join(["path,label", *lines]))
    return Table(file=root / "list.csv", multi_label=True)


def annotated(root: Path, **options: Any) -> Source:
    small_data.coco(root)
    return coco(root=root, file=root / "annotations.json", **options)


def videos(root: Path) -> Videos:
    for name in ("jump/1.mp4", "jump/2.mp4", "run/1.mp4"):
        write_video(root / name, 2)
    return Videos(root=root)


def shards(root: Path) -> Shards:
    for shard in range(2):
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for number in range(6):
                content = io.BytesIO()
                Image.new("RGB", (4, 3), (number * 20, 0, 0)).save(content, "PNG")
                for name, value in ((f"{number}.png", content.getvalue()), (f"{number}.cls", b"0")):
                    member = tarfile.TarInfo(name)
                    member.size = len(value)
                    tar.addfile(member, io.BytesIO(value))
    return Shards(files=str(root / "*.tar"), index_dir=root / "index")


SOURCES: dict[str, Callable[[Path], Source]] = {
    "image_folder": image_folder,
    "images": lambda root: Images(root=image_folder(root).root),
    "multi_label": several_labels,
    "coco": lambda root: annotated(root, masks=True),
    "maps": lambda root: ObjectMaps(source=annotated(root, masks=True), panoptic=True),
    "image_labels": lambda root: ImageLabels(source=annotated(root)),
    "indexed": lambda root: Indexed(source=image_folder(root)),
    "concat": lambda root: Concat(sources=[image_folder(root), ImageFolder(root=root)]),
    "concat of objects": lambda root: Concat(sources=[annotated(root)] * 2),
    "videos": videos,
    "video_views": lambda root: VideoViews(source=videos(root), clips=1, crops=1),
    "shards": shards,
    "digits": lambda _: Digits(),
}


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("name", SOURCES)
def test_both_parts_have_the_samples_of_the_source(name: str, tmp_path: Path) -> None:
    source = SOURCES[name](tmp_path)
    keys = list(source.split_keys())
    assert len(set(keys)) == len(keys) == len(source)
    chosen = np.arange(1, len(source), 3)
    write_split(tmp_path / "split.json", [keys[index] for index in chosen.tolist()])
    val = subset(source=source, file=tmp_path / "split.json", split="val")
    train = subset(source=source, file=tmp_path / "split.json")
    assert (len(val), len(train)) == (len(chosen), len(source) - len(chosen))
    assert list(val.split_keys()) == [keys[index] for index in chosen.tolist()]
    assert len({source.fingerprint(), val.fingerprint(), train.fingerprint()}) == 3
    for own, index in enumerate(chosen[:3].tolist()):
        assert val.id(own) == source.id(index) == val[own]["id"] == val.encoded(own)["id"]
        assert list(val.paths(own)) == list(source.paths(index))
        if "ground_truth" in val[own]:
            assert np.array_equal(val[own]["ground_truth"].boxes, source[index]["ground_truth"].boxes)
    for column in ("labels", "sizes", "cameras", "queries"):
        expected = getattr(source.info, column)
        assert plain(getattr(val.info, column)) == plain(None if expected is None else expected[chosen])
    for own, expected in zip(val.info.present or (), chosen.tolist(), strict=bool(val.info.present)):
        assert source.info.present is not None and own.tolist() == source.info.present[expected].tolist()
    order = np.array([len(val) - 1, 0])
    batch, expected = val.batch(order), source.batch(chosen[order])
    assert (batch is None or batch["id"]) == (expected is None or expected["id"])


def test_objects_of_parts_are_checked_and_can_be_wrapped(tmp_path: Path) -> None:
    source = annotated(tmp_path, masks=True)
    write_split(tmp_path / "split.json", list(source.split_keys())[::2])
    parts = {split: subset(source=source, file=tmp_path / "split.json", split=split) for split in ("train", "val")}
    objects = {name: run_checks({name: part}).datasets[name].boxes for name, part in parts.items()}
    whole = run_checks({"train": source}).datasets["train"].boxes
    assert whole is not None and sum(part.objects for part in objects.values() if part) == whole.objects
    maps = ObjectMaps(source=parts["val"])
    assert maps[0]["id"] == source.id(0) and len(maps) == len(parts["val"])
    inner = Concat(sources=[parts["train"], parts["val"]], classes=list(source.classes[::-1]))
    write_split(tmp_path / "again.json", list(inner.split_keys())[:1])
    assert inner.info.starts == (0, len(parts["train"]))
    again = subset(source=inner, file=tmp_path / "again.json")
    assert again.info.starts == (0, len(parts["train"]) - 1) and again[0]["id"] == inner[1]["id"]


def test_parts_of_shards_know_their_shards(tmp_path: Path) -> None:
    source = shards(tmp_path)
    write_split(tmp_path / "split.json", list(source.split_keys())[:8])
    assert next(iter(source.split_keys())) == "0.tar@0"
    assert subset(source=source, file=tmp_path / "split.json", split="val").info.shards.tolist() == [6, 2]
    assert subset(source=source, file=tmp_path / "split.json").info.shards.tolist() == [0, 4]


def test_new_samples_are_trained_on(tmp_path: Path) -> None:
    source = image_folder(tmp_path)
    write_split(tmp_path / "split.json", ["cat/0.png", "dog/1.png"])
    Image.new("RGB", (4, 3)).save(tmp_path / "cat" / "new.png")
    source = ImageFolder(root=tmp_path)
    assert len(subset(source=source, file=tmp_path / "split.json")) == 11
    assert "cat/new.png" in subset(source=source, file=tmp_path / "split.json").split_keys()


@pytest.mark.parametrize(
    ("content", "split", "message"),
    [
        (None, "val", "split.json: No such file"),
        ({"version": 2, "val": []}, "val", r"split.json: version: expected 1 \(found 2\)"),
        ({"version": 1}, "val", r"split.json: val: field required"),
        ({"version": 1, "val": ["cat/0.png", "x"]}, "val", r"1 of its 2 validation samples is not in the data: x; rem"),
        ({"version": 1, "val": [*"abcdefg"]}, "val", "7 of its 7 .* are not in the data: a, b, c, d, e and 2 more"),
        ({"version": 1, "val": []}, "val", "split.json: none of 12 samples is for val"),
        ({"version": 1, "val": "all"}, "train", "split.json: none of 12 samples is for train"),
    ],
)
def test_wrong_files_raise(content: Any, split: Any, message: str, tmp_path: Path) -> None:
    source = image_folder(tmp_path)
    if content is not None:
        values = list(source.split_keys()) if content.get("val") == "all" else content.get("val")
        (tmp_path / "split.json").write_text(json.dumps(content | ({} if values is None else {"val": values})))
    with pytest.raises(ValueError, match=message):
        subset(source=source, file=tmp_path / "split.json", split=split)


def test_identities_have_labels_of_their_own(tmp_path: Path) -> None:
    small_data.class_folders(tmp_path)
    source = class_folders(root=tmp_path, split="all")
    labels = np.asarray(source.info.labels)
    keys = np.array(list(source.split_keys()))
    write_split(tmp_path / "split.json", keys[labels % 2 == 1].tolist())
    train = subset(source=source, file=tmp_path / "split.json", identities=True)
    val = subset(source=source, file=tmp_path / "split.json", split="val", identities=True)
    assert train.classes == source.classes[::2] and val.classes == source.classes[1::2]
    assert train.info.identities and np.unique(train.info.single_labels).tolist() == list(range(len(train.classes)))
    assert [train[0]["label"], train.encoded(0)["label"]] == [0, 0] and val.info.queries is None
    assert ConcatIdentities(sources=[train, val]).info.identities


def test_queries_of_identities_and_cameras() -> None:
    identities = [0, 0, 0, 0, 1, 1, 2, 2, 2, 3]
    cameras = [0, 0, 1, 1, 0, 1, 2, 2, 3, 0]
    info = SourceInfo(labels=np.array(identities), cameras=np.array(cameras), camera_count=4)
    queries = choose_queries(info)
    assert queries is not None
    # Identity 1 keeps an image in the gallery, camera 3 has one image of identity 2 only, identity 3 has no match.
    assert np.flatnonzero(queries).tolist() == [0, 2, 4, 6]
    many = SourceInfo(labels=np.array([1] * 12), cameras=np.array([0, 1] * 6), camera_count=2)
    queries = choose_queries(many)
    assert queries is not None and np.flatnonzero(queries).tolist() == [0, 1, 8, 9]
    assert choose_queries(SourceInfo(labels=np.array([0, 0]), cameras=np.array([1, 1]))) is None
    assert choose_queries(SourceInfo(labels=np.array([0, 0]))) is None


def test_validation_of_identities_has_queries(tmp_path: Path) -> None:
    source = DigitViews()
    labels, keys = np.asarray(source.info.labels), np.array(list(source.split_keys()))
    write_split(tmp_path / "split.json", keys[labels < 10].tolist())
    val = subset(source=source, file=tmp_path / "split.json", split="val")
    assert val.info.queries is not None and val.info.queries.sum() == 40  # two views by each of four cameras
    assert val[0]["query"] is True and len(val.classes) == 10
    batch = val.batch(np.array([3, 0]))
    assert batch is not None and batch["query"].tolist() == [val[3]["query"], True]


def test_a_million_keys_are_read_fast(tmp_path: Path) -> None:
    names = [b"folder/%07d.jpg" % number for number in range(200_000)]
    source = ImageFiles(tmp_path, names, SourceInfo(present=RaggedArray([0] for _ in names)))
    write_split(tmp_path / "split.json", list(source.split_keys())[::10])
    start = time.process_time()
    assert len(subset(source=source, file=tmp_path / "split.json", split="val")) == 20_000
    assert time.process_time() - start < 4  # measured: 0.5


# --- a part drawn at random -------------------------------------------------------------------------------------------


def test_the_same_number_of_samples_of_each_class_is_drawn() -> None:
    source = Digits()
    chosen, rest = (random_part(source=source, per_class=4, part=part) for part in ("chosen", "rest"))  # type: ignore[arg-type]
    assert np.bincount(np.array(chosen.info.single_labels)).tolist() == [4] * 10
    ids = [[part.id(index) for index in range(len(part))] for part in (chosen, rest)]
    assert sorted(ids[0] + ids[1]) == sorted(source.id(index) for index in range(len(source)))
    more = random_part(source=source, per_class=5)
    assert set(ids[0]) < {more.id(index) for index in range(len(more))}
    other = random_part(source=source, per_class=4, seed=1)
    assert set(ids[0]) != {other.id(index) for index in range(len(other))}
    assert random_part(source=source, per_class=4).fingerprint() == chosen.fingerprint() != rest.fingerprint()


def test_a_fraction_has_the_shares_of_the_classes() -> None:
    source = Digits()
    part = random_part(source=source, fraction=0.2)
    assert len(part) == round(0.2 * len(source))
    expected = np.bincount(np.array(source.info.single_labels)) * 0.2
    assert np.abs(np.bincount(np.array(part.info.single_labels)) - expected).max() <= 1


def test_identities_are_in_one_of_both_parts() -> None:
    source = DigitViews()
    chosen, rest = (random_part(source=source, fraction=0.0154, part=part) for part in ("chosen", "rest"))  # type: ignore[arg-type]
    assert len(chosen.classes) == 15 and len(rest.classes) == 985 and not {*chosen.classes} & {*rest.classes}
    assert np.bincount(np.array(chosen.info.single_labels)).tolist() == [8] * 15 and len(rest) == 985 * 8
    sample = rest[11]
    assert rest.classes[sample["label"]] == sample["id"].split("/")[1][:4]
    assert {*chosen.classes} < {*random_part(source=source, fraction=0.02).classes}
    with pytest.raises(ValueError, match="none of 8000 samples is chosen"):
        random_part(source=source, fraction=0.0001)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"source": Digits(), "per_class": 1000}, "1000 samples of each class; . has 1"),
        ({"source": Digits(), "fraction": 0.0001}, "none of 1437 samples is chosen"),
        ({"source": Unlabeled(source=Digits()), "per_class": 1}, "not have one label per sample; take fraction"),
    ],
)
def test_parts_that_cannot_be_drawn(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_part(**keys)
