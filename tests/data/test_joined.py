"""Several sources as one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opabinia.config import build, check, compose, live_catalog
from opabinia.config.catalog import Catalog
from opabinia.config.families import Entry, Parameter
from opabinia.data.sources import Digits, Joined, Synthetic


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
    joined = Joined(sources=[first, second])
    assert len(joined) == len(first) + len(second) and joined.starts == [0, len(first)]
    assert joined[len(first) + 2]["id"] == f"1/{second[2]['id']}"
    assert joined[len(first) - 1]["label"] == first[len(first) - 1]["label"]
    assert joined.labels.tolist() == [*first.labels, *second.labels]
    assert joined.fingerprint() != Joined(sources=[second, first]).fingerprint()
    with pytest.raises(IndexError, match="index 1797 of 1797"):
        joined[len(joined)]


def test_sources_that_do_not_fit_are_told() -> None:
    with pytest.raises(ValueError, match=r"sources\.1 has other classes .*new: 10"):
        Joined(sources=[Synthetic(channels=1), Synthetic(channels=1, classes=11)])
    with pytest.raises(ValueError, match=r"sources\.1 has 3 channels, the first one 1"):
        Joined(sources=[Digits(), Synthetic()])


def test_every_difference_is_told_shortly() -> None:
    with pytest.raises(
        ValueError, match=r"sources\.2 has 1 channels, .*; it has other classes .*new: 10, 11, 12, 13, 14 a"
    ):
        Joined(sources=[Synthetic(), Synthetic(), Synthetic(channels=1, classes=500)])
    several: Any = Plain()
    several.multi_label = True
    with pytest.raises(ValueError, match=r"sources\.1 has another kind of labels"):
        Joined(sources=[Plain(), several])
    with pytest.raises(ValueError, match="at least one"):
        Joined(sources=[])


def test_a_batch_is_its_samples() -> None:
    joined: Any = Joined(sources=[Synthetic(samples=5, seed=1), Synthetic(samples=3, seed=2), Synthetic(samples=9)])
    for indices in ([7, 0, 16, 4, 5, 8], [6], [16, 16, 0]):
        batch = joined.batch(np.array(indices))
        samples = [joined[index] for index in indices]
        assert torch.equal(batch["image"], torch.stack([sample["image"] for sample in samples]))
        assert batch["label"].tolist() == [sample["label"] for sample in samples]
        assert batch["id"] == [sample["id"] for sample in samples]
    again = pickle.loads(pickle.dumps(joined))
    assert torch.equal(again.batch(np.array([7]))["image"], joined.batch(np.array([7]))["image"])


def test_what_one_source_lacks_is_lacking() -> None:
    joined = Joined(sources=[Synthetic(), Plain()])
    assert not hasattr(joined, "batch") and not hasattr(joined, "labels") and not joined.multi_label
    assert joined[1025]["id"] == "1/1" and joined.fingerprint()


def test_sources_nest_in_a_config(tmp_path: Path) -> None:
    door = Entry("command", "door", lambda part: part, (Parameter("part", {"kind": "part", "family": "source"}),))
    catalog = Catalog({**live_catalog().entries, "command": {"door": door}})
    (tmp_path / "a.yaml").write_text("part: {name: joined, sources: [digits, {name: digits, split: val}]}")
    part = build(check(compose(tmp_path / "a.yaml"), catalog, "door").config, catalog, "door")()
    assert (len(part), part.starts) == (1797, [0, len(Digits())])
