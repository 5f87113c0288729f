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
from opabinia.data.sources import Concat, ConcatIdentities, Digits, ImageFolder, Synthetic
from opabinia.data.sources.reid_base import IdentityFiles, ReidImage, ReidSplit


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
