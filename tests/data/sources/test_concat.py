"""Concatenated sources."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.contracts import Source, SourceInfo
from opabinia.data import Stream
from opabinia.data.check.checks import run_checks
from opabinia.data.sources import Concat, ConcatIdentities, Digits, ImageFolder, Synthetic, coco, voc
from opabinia.data.sources.named import ImageFiles
from opabinia.data.sources.reid_base import ReidImage, ReidSplit, identity_files
from opabinia.training.samples import read_dataset_info
from scripts import small_data


class MinimalSource(Source):
    """A source with only the required attributes."""

    info = SourceInfo(channels=3, classes=tuple("0123456789"))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.zeros(3, 4, 4, dtype=torch.uint8), "label": index, "id": str(index)}


def test_concatenated_sources() -> None:
    first, second = Digits(split="train"), Digits(split="val")
    concat = Concat(sources=[first, second])
    assert len(concat) == len(first) + len(second) and concat.info.starts == (0, len(first))
    assert concat[len(first) + 2]["id"] == f"1/{second[2]['id']}"
    assert concat[len(first) - 1]["label"] == first[len(first) - 1]["label"]
    assert concat.info.labels.tolist() == [*first.info.labels, *second.info.labels]
    assert concat.fingerprint() != Concat(sources=[second, first]).fingerprint()
    with pytest.raises(IndexError, match="index 1797 of 1797"):
        concat[len(concat)]


def multi_label() -> MinimalSource:
    source = MinimalSource()
    source.info = replace(source.info, multi_label=True)
    return source


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        ([Synthetic(channels=1), Synthetic(channels=1, classes=11)], {}, r"sources\.1 has other classes .*new: 10"),
        ([Digits(), Synthetic()], {}, r"sources\.1 has 3 channels, the first one 1"),
        (
            [Synthetic(), Synthetic(), Synthetic(channels=1, classes=500)],
            {},
            r"sources\.2 has 1 channels, .*; it has other classes .*new: 10, 11, 12, 13, 14 a",
        ),
        ([MinimalSource(), multi_label()], {}, r"sources\.1 has another kind of labels"),
        ([], {}, "at least one"),
        ([Synthetic()], {"class_map": {"12": "0"}}, "class_map: the union of the sources has no class '12'; there is"),
        ([Synthetic()], {"classes": ["0", "1"]}, r"sources\.0 has other classes .*missing: none; new: 2, 3, 4, 5, 6"),
    ],
)
def test_incompatible_sources_are_reported(sources: list[Source], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Concat(sources=sources, **options)


def test_a_batch_consists_of_its_samples() -> None:
    concat: Any = Concat(sources=[Synthetic(samples=5, seed=1), Synthetic(samples=3, seed=2), Synthetic(samples=9)])
    for indices in ([7, 0, 16, 4, 5, 8], [6], [16, 16, 0]):
        batch = concat.batch(np.array(indices))
        samples = [concat[index] for index in indices]
        assert torch.equal(batch["image"], torch.stack([sample["image"] for sample in samples]))
        assert batch["label"].tolist() == [sample["label"] for sample in samples]
        assert batch["id"] == [sample["id"] for sample in samples]
    unpickled = pickle.loads(pickle.dumps(concat))
    assert torch.equal(unpickled.batch(np.array([7]))["image"], concat.batch(np.array([7]))["image"])


def test_attributes_missing_in_one_source_are_missing() -> None:
    concat = Concat(sources=[Synthetic(), MinimalSource()])
    assert concat.batch(np.array([0, 1025])) is None and concat.info.labels is None and not concat.info.multi_label
    assert concat[1025]["id"] == "1/1" and concat.fingerprint()


# --- union of classes -------------------------------------------------------------------------------------------------


def test_classes_are_merged_by_name_and_renamed() -> None:
    first, second = Synthetic(samples=6, classes=3), Synthetic(samples=6, classes=3)
    second.info = replace(second.info, classes=("2", "dog", "cat"))
    union: Any = Concat(sources=[first, second], classes="union", class_map={"dog": "0"})
    assert union.classes == ("0", "1", "2", "cat") and union.info.labels.tolist() == [0, 1, 2] * 2 + [2, 0, 3] * 2
    assert [union[index]["label"] for index in range(12)] == union.info.labels.tolist()
    assert union.batch(np.arange(12))["label"].tolist() == union.info.labels.tolist()
    assert union.fingerprint() != Concat(sources=[first, second], classes="union").fingerprint()
    assert torch.equal(pickle.loads(pickle.dumps(union))[7]["image"], union[7]["image"])
    reordered = Concat(sources=[second], classes=["cat", "dog", "1", "2"])
    assert reordered.info.labels.tolist() == [3, 1, 0] * 2 and reordered.classes == ("cat", "dog", "1", "2")
    merged = Concat(sources=[first], class_map={"1": "0", "2": "many"})
    assert merged.classes == ("0", "many") and merged.info.labels.tolist() == [0, 0, 1] * 2


def test_merged_multi_label_classes() -> None:
    source = Synthetic(samples=2, classes=3)
    labels = np.array([[1, 0, 0], [0, 1, 1]], dtype=np.float32)
    source.info = replace(source.info, multi_label=True, labels=labels)
    merged = Concat(sources=[source], classes=["b", "a"], class_map={"0": "a", "1": "a", "2": "b"})
    assert merged.info.labels.tolist() == [[0, 1], [1, 1]]


# --- objects ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    small_data.coco(tmp_path / "coco")
    small_data.voc(tmp_path / "voc")
    return tmp_path


def test_objects_of_several_formats_are_concatenated(scenes: Path) -> None:
    first = coco(root=scenes / "coco", file=scenes / "coco/annotations.json")
    second = voc(root=scenes / "voc")
    union = Concat(sources=[first, second], classes="union")
    assert union.classes == ("block", "bar") and union.info.boxes and not union.info.masks and not union.info.keypoints
    for index in range(4):
        first_sample, second_sample = union[index], union[4 + index]
        for key in ("boxes", "labels"):
            assert torch.equal(first_sample[key], second_sample[key])
        ground_truth = second_sample["ground_truth"]
        assert ground_truth.labels.tolist() == first_sample["ground_truth"].labels.tolist()
        assert ground_truth.image_id == second_sample["id"] == f"1/{second.id(index)}" == union.id(4 + index)
        for row in (index, 4 + index):
            assert union.info.present[row].tolist() == first_sample["labels"].unique().tolist()
    assert union.info.sizes.tolist() == [[48, 64]] * 8
    info = read_dataset_info(Stream(source=union))
    assert info.boxes and info.classes == ("block", "bar") and info.category_ids == (3, 7)
    concat_report, single_report = (run_checks({"train": source}).datasets["train"] for source in (union, first))
    assert concat_report.boxes is not None and single_report.boxes is not None
    assert concat_report.boxes.per_class == {name: 2 * count for name, count in single_report.boxes.per_class.items()}
    assert info.image_counts == tuple(concat_report.per_class.values())
    assert sum(info.image_counts) == 2 * sum(map(len, first.info.present))


def test_objects_with_and_without_masks_are_not_mixed(scenes: Path) -> None:
    with_masks = coco(root=scenes / "coco", file=scenes / "coco/annotations.json", masks=True)
    with pytest.raises(ValueError, match=r"sources\.1 has masks: False, the first one True"):
        Concat(sources=[with_masks, coco(root=scenes / "coco", file=scenes / "coco/annotations.json")])
    concat = Concat(sources=[with_masks, with_masks])
    assert concat.info.masks and concat.info.category_ids == (3, 7)
    assert concat[5]["masks"].shape == with_masks[1]["masks"].shape


# --- identities -------------------------------------------------------------------------------------------------------


def identities(root: Path, labels: list[tuple[str, int, int]], cameras: int, views: int = 0) -> ImageFiles:
    """Return a source of small images with these (identity, camera, view)."""
    images = []
    for number, (name, camera, view) in enumerate(labels):
        Image.new("RGB", (2, 3), (number, 0, 0)).save(root / f"{number}.png")
        images.append(ReidImage(f"{number}.png".encode(), name, camera, view))
    classes = sorted({name for name, _, _ in labels})
    return identity_files(root, ReidSplit(images, classes), cameras=cameras, views=views)


@pytest.fixture
def street(tmp_path: Path) -> ImageFiles:
    (tmp_path / "street").mkdir()
    return identities(tmp_path / "street", [("anna", 0, 0), ("ben", 2, 1), ("ben", 0, 1)], cameras=3, views=2)


@pytest.fixture
def yard(tmp_path: Path) -> ImageFiles:
    (tmp_path / "yard").mkdir()
    return identities(tmp_path / "yard", [("anna", 1, 0), ("carl", 0, 1)], cameras=2, views=4)


def test_identities_of_two_sources_are_different_people(street: ImageFiles, yard: ImageFiles) -> None:
    concat = ConcatIdentities(sources=[street, yard])
    assert concat.classes == ("0/anna", "0/ben", "1/anna", "1/carl")
    assert concat.info.labels.tolist() == [0, 1, 1, 2, 3]
    assert concat.info.cameras is not None and concat.info.cameras.tolist() == [0, 2, 0, 4, 3]
    assert concat.info.views is not None
    assert concat.info.views.tolist() == [0, 1, 1, 0, 1], "views have the same meaning in all sources"
    assert (concat.info.camera_count, concat.info.view_count) == (5, 4)
    assert concat.info.starts == (0, 3) and concat.info.queries is None
    sample = concat[3]
    assert sample["image"][0].unique().tolist() == [0]
    others = {key: sample[key] for key in sample if key != "image"}
    assert others == {"id": "1/0.png", "label": 2, "camera": 4, "view": 0}
    assert concat.fingerprint() != ConcatIdentities(sources=[yard, street]).fingerprint()


def test_identities_may_be_shared(street: ImageFiles, yard: ImageFiles) -> None:
    concat = ConcatIdentities(sources=[street, yard], shared_identities=True)
    assert concat.classes == ("anna", "ben", "carl") and concat.info.labels.tolist() == [0, 1, 1, 0, 2]
    assert concat.info.cameras is not None and concat.info.cameras.tolist() == [0, 2, 0, 4, 3]
    assert [concat[index]["label"] for index in range(5)] == concat.info.labels.tolist()


def test_concatenated_identities_are_concatenated_again(street: ImageFiles, yard: ImageFiles) -> None:
    concat = ConcatIdentities(sources=[yard, ConcatIdentities(sources=[street, yard])])
    assert concat.classes[2:] == ("1/0/anna", "1/0/ben", "1/1/anna", "1/1/carl")
    assert concat.info.camera_count == 7 and concat[5]["camera"] == 6 and concat[5]["id"] == "1/1/0.png"


def test_cameras_missing_in_one_source_are_missing(street: ImageFiles, tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / "folders" / name).mkdir(parents=True)
        Image.new("RGB", (2, 3)).save(tmp_path / "folders" / name / "1.png")
    concat = ConcatIdentities(sources=[street, ImageFolder(root=tmp_path / "folders")])
    assert concat.info.cameras is concat.info.views is None
    assert concat.info.camera_count == concat.info.view_count == 0
    assert concat[0].keys() == concat[4].keys() == {"image", "label", "id"}
    assert concat[4]["label"] == 3 and concat.classes[3] == "1/y"


def test_incompatible_identity_sources_are_reported(street: ImageFiles) -> None:
    with pytest.raises(ValueError, match=r"sources\.1 has 1 channels, the first one 3"):
        ConcatIdentities(sources=[street, Digits()])
    with pytest.raises(ValueError, match=r"sources\.1 has no identities"):
        ConcatIdentities(sources=[street, MinimalSource()])
    with_queries = MinimalSource()
    queries = np.array([True, False, False])
    with_queries.info = replace(with_queries.info, labels=np.arange(3), queries=queries)
    with pytest.raises(ValueError, match=r"sources\.0 has queries: .* data\.val"):
        ConcatIdentities(sources=[with_queries, street])
    with pytest.raises(ValueError, match="at least one"):
        ConcatIdentities(sources=[])
