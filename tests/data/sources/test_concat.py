"""Several sources as one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from opabinia.config import build, check, compose, live_catalog
from opabinia.config.catalog import Catalog
from opabinia.config.registry import Entry
from opabinia.config.types import Parameter
from opabinia.data import Stream
from opabinia.data.check.checks import run_checks
from opabinia.data.sources import Concat, ConcatIdentities, Digits, ImageFolder, Synthetic, coco, voc
from opabinia.data.sources.reid_base import IdentityFiles, ReidImage, ReidSplit
from opabinia.training.samples import read_dataset_info
from scripts import small_data


class Plain:
    """A source of nothing but what every source has."""

    channels = 3
    classes = tuple("0123456789")

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.zeros(3, 4, 4, dtype=torch.uint8), "label": index, "id": str(index)}


def test_joined_sources_are_one() -> None:
    first, second = Digits(split="train"), Digits(split="val")
    joined = Concat(sources=[first, second])
    assert len(joined) == len(first) + len(second) and joined.starts == [0, len(first)]
    assert joined[len(first) + 2]["id"] == f"1/{second[2]['id']}"
    assert joined[len(first) - 1]["label"] == first[len(first) - 1]["label"]
    assert joined.labels.tolist() == [*first.labels, *second.labels]
    assert joined.fingerprint() != Concat(sources=[second, first]).fingerprint()
    with pytest.raises(IndexError, match="index 1797 of 1797"):
        joined[len(joined)]


def test_sources_that_do_not_fit_are_reported() -> None:
    with pytest.raises(ValueError, match=r"sources\.1 has other classes .*new: 10"):
        Concat(sources=[Synthetic(channels=1), Synthetic(channels=1, classes=11)])
    with pytest.raises(ValueError, match=r"sources\.1 has 3 channels, the first one 1"):
        Concat(sources=[Digits(), Synthetic()])


def test_every_difference_is_reported_shortly() -> None:
    with pytest.raises(
        ValueError, match=r"sources\.2 has 1 channels, .*; it has other classes .*new: 10, 11, 12, 13, 14 a"
    ):
        Concat(sources=[Synthetic(), Synthetic(), Synthetic(channels=1, classes=500)])
    several: Any = Plain()
    several.multi_label = True
    with pytest.raises(ValueError, match=r"sources\.1 has another kind of labels"):
        Concat(sources=[Plain(), several])
    with pytest.raises(ValueError, match="at least one"):
        Concat(sources=[])


def test_a_batch_is_its_samples() -> None:
    joined: Any = Concat(sources=[Synthetic(samples=5, seed=1), Synthetic(samples=3, seed=2), Synthetic(samples=9)])
    for indices in ([7, 0, 16, 4, 5, 8], [6], [16, 16, 0]):
        batch = joined.batch(np.array(indices))
        samples = [joined[index] for index in indices]
        assert torch.equal(batch["image"], torch.stack([sample["image"] for sample in samples]))
        assert batch["label"].tolist() == [sample["label"] for sample in samples]
        assert batch["id"] == [sample["id"] for sample in samples]
    again = pickle.loads(pickle.dumps(joined))
    assert torch.equal(again.batch(np.array([7]))["image"], joined.batch(np.array([7]))["image"])


def test_what_one_source_lacks_is_lacking() -> None:
    joined = Concat(sources=[Synthetic(), Plain()])
    assert not hasattr(joined, "batch") and not hasattr(joined, "labels") and not joined.multi_label
    assert joined[1025]["id"] == "1/1" and joined.fingerprint()


def test_sources_nest_in_a_config(tmp_path: Path) -> None:
    door = Entry("command", "door", lambda part: part, (Parameter("part", {"kind": "part", "family": "source"}),))
    catalog = Catalog({**live_catalog().entries, "command": {"door": door}})
    (tmp_path / "a.yaml").write_text("part: {name: concat, sources: [digits, {name: digits, split: val}]}")
    part = build(check(compose(tmp_path / "a.yaml"), catalog, "door").config, catalog, "door")()
    assert (len(part), part.starts) == (1797, [0, len(Digits())])


# --- united classes ---------------------------------------------------------------------------------------------------


def test_classes_are_united_by_name_and_renamed() -> None:
    first, second = Synthetic(samples=6, classes=3), Synthetic(samples=6, classes=3)
    second.classes = ("2", "dog", "cat")
    united: Any = Concat(sources=[first, second], classes="union", class_map={"dog": "0"})
    assert united.classes == ("0", "1", "2", "cat") and united.labels.tolist() == [0, 1, 2] * 2 + [2, 0, 3] * 2
    assert [united[index]["label"] for index in range(12)] == united.labels.tolist()
    assert united.batch(np.arange(12))["label"].tolist() == united.labels.tolist()
    assert united.fingerprint() != Concat(sources=[first, second], classes="union").fingerprint()
    assert torch.equal(pickle.loads(pickle.dumps(united))[7]["image"], united[7]["image"])
    given = Concat(sources=[second], classes=["cat", "dog", "1", "2"])
    assert given.labels.tolist() == [3, 1, 0] * 2 and given.classes == ("cat", "dog", "1", "2")
    merged = Concat(sources=[first], class_map={"1": "0", "2": "many"})
    assert merged.classes == ("0", "many") and merged.labels.tolist() == [0, 0, 1] * 2


def test_united_labels_of_several_classes() -> None:
    source: Any = Synthetic(samples=2, classes=3)
    source.multi_label, source.labels = True, np.array([[1, 0, 0], [0, 1, 1]], dtype=np.float32)
    merged = Concat(sources=[source], classes=["b", "a"], class_map={"0": "a", "1": "a", "2": "b"})
    assert merged.labels.tolist() == [[0, 1], [1, 1]]


def test_names_that_are_no_class_are_reported() -> None:
    with pytest.raises(ValueError, match=r"class_map: the union of the sources has no class '12'; there is"):
        Concat(sources=[Synthetic()], class_map={"12": "0"})
    with pytest.raises(ValueError, match=r"sources\.0 has other classes .*missing: none; new: 2, 3, 4, 5, 6"):
        Concat(sources=[Synthetic()], classes=["0", "1"])


# --- objects ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    small_data.coco(tmp_path / "coco")
    small_data.voc(tmp_path / "voc")
    return tmp_path


def test_objects_of_several_formats_are_trained_together(scenes: Path) -> None:
    first = coco(root=scenes / "coco", file=scenes / "coco/annotations.json")
    second = voc(root=scenes / "voc")
    united = Concat(sources=[first, second], classes="union")
    assert united.classes == ("block", "bar") and united.has_boxes and not united.has_masks and not united.keypoints
    for index in range(4):
        own, other = united[index], united[4 + index]
        assert torch.equal(own["boxes"], other["boxes"]) and torch.equal(own["labels"], other["labels"])
        ground_truth = other["ground_truth"]
        assert ground_truth.labels.tolist() == own["ground_truth"].labels.tolist()
        assert ground_truth.image_id == other["id"] == f"1/{second.id(index)}" == united.id(4 + index)
        assert united.present[index].tolist() == united.present[4 + index].tolist() == own["labels"].unique().tolist()
    assert united.sizes.tolist() == [[48, 64]] * 8
    info = read_dataset_info(Stream(source=united))
    assert info.boxes and info.classes == ("block", "bar") and info.category_ids == (3, 7)
    both, alone = (run_checks({"train": source}).datasets["train"] for source in (united, first))
    assert both.boxes is not None and alone.boxes is not None
    assert both.boxes.per_class == {name: 2 * count for name, count in alone.boxes.per_class.items()}
    assert info.image_counts == tuple(both.per_class.values())
    assert sum(info.image_counts) == 2 * sum(map(len, first.present))


def test_objects_with_and_without_masks_are_not_mixed(scenes: Path) -> None:
    with_masks = coco(root=scenes / "coco", file=scenes / "coco/annotations.json", masks=True)
    with pytest.raises(ValueError, match=r"sources\.1 has masks: False, the first one True"):
        Concat(sources=[with_masks, coco(root=scenes / "coco", file=scenes / "coco/annotations.json")])
    both = Concat(sources=[with_masks, with_masks])
    assert both.has_masks and both[5]["masks"].shape == with_masks[1]["masks"].shape and both.category_ids == (3, 7)


# --- identities -------------------------------------------------------------------------------------------------------


def identities(root: Path, seen: list[tuple[str, int, int]], cameras: int, views: int = 0) -> IdentityFiles:
    """A source of small images, given who they show, by which camera and from which side."""
    pictures = []
    for number, (name, camera, view) in enumerate(seen):
        Image.new("RGB", (2, 3), (number, 0, 0)).save(root / f"{number}.png")
        pictures.append(ReidImage(f"{number}.png".encode(), name, camera, view))
    classes = sorted({name for name, _, _ in seen})
    return IdentityFiles(root, ReidSplit(pictures, classes), cameras=cameras, views=views)


@pytest.fixture
def street(tmp_path: Path) -> IdentityFiles:
    (tmp_path / "street").mkdir()
    return identities(tmp_path / "street", [("anna", 0, 0), ("ben", 2, 1), ("ben", 0, 1)], cameras=3, views=2)


@pytest.fixture
def yard(tmp_path: Path) -> IdentityFiles:
    (tmp_path / "yard").mkdir()
    return identities(tmp_path / "yard", [("anna", 1, 0), ("carl", 0, 1)], cameras=2, views=4)


def test_identities_of_two_sets_are_different_people(street: IdentityFiles, yard: IdentityFiles) -> None:
    joined = ConcatIdentities(sources=[street, yard])
    assert joined.classes == ("0/anna", "0/ben", "1/anna", "1/carl")
    assert joined.labels.tolist() == [0, 1, 1, 2, 3]
    assert joined.cameras is not None and joined.cameras.tolist() == [0, 2, 0, 4, 3]
    assert joined.views is not None and joined.views.tolist() == [0, 1, 1, 0, 1], "a front is a front everywhere"
    assert (joined.camera_count, joined.view_count, joined.starts, joined.queries) == (5, 4, [0, 3], None)
    sample = joined[3]
    assert sample["image"][0].unique().tolist() == [0]
    assert {key: sample[key] for key in sample if key != "image"} == {
        "id": "1/0.png",
        "label": 2,
        "camera": 4,
        "view": 0,
    }
    assert joined.fingerprint() != ConcatIdentities(sources=[yard, street]).fingerprint()


def test_identities_may_be_shared(street: IdentityFiles, yard: IdentityFiles) -> None:
    joined = ConcatIdentities(sources=[street, yard], shared_identities=True)
    assert joined.classes == ("anna", "ben", "carl") and joined.labels.tolist() == [0, 1, 1, 0, 2]
    assert joined.cameras is not None and joined.cameras.tolist() == [0, 2, 0, 4, 3]
    assert [joined[index]["label"] for index in range(5)] == joined.labels.tolist()


def test_joined_identities_are_joined_again(street: IdentityFiles, yard: IdentityFiles) -> None:
    joined = ConcatIdentities(sources=[yard, ConcatIdentities(sources=[street, yard])])
    assert joined.classes[2:] == ("1/0/anna", "1/0/ben", "1/1/anna", "1/1/carl")
    assert joined.camera_count == 7 and joined[5]["camera"] == 6 and joined[5]["id"] == "1/1/0.png"


def test_cameras_that_one_set_does_not_tell_are_not_reported(street: IdentityFiles, tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / "folders" / name).mkdir(parents=True)
        Image.new("RGB", (2, 3)).save(tmp_path / "folders" / name / "1.png")
    joined = ConcatIdentities(sources=[street, ImageFolder(root=tmp_path / "folders")])
    assert (joined.cameras, joined.views, joined.camera_count, joined.view_count) == (None, None, 0, 0)
    assert joined[0].keys() == joined[4].keys() == {"image", "label", "id"}
    assert joined[4]["label"] == 3 and joined.classes[3] == "1/y"


def test_what_cannot_be_trained_together_is_reported(street: IdentityFiles) -> None:
    with pytest.raises(ValueError, match=r"sources\.1 has 1 channels, the first one 3"):
        ConcatIdentities(sources=[street, Digits()])
    with pytest.raises(ValueError, match=r"sources\.1 has no identities"):
        ConcatIdentities(sources=[street, Plain()])
    searched: Any = Plain()
    searched.labels, searched.queries = np.arange(3), np.array([True, False, False])
    with pytest.raises(ValueError, match=r"sources\.0 has queries: .* data\.val"):
        ConcatIdentities(sources=[searched, street])
    with pytest.raises(ValueError, match="at least one"):
        ConcatIdentities(sources=[])
