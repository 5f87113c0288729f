"""Random images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opabinia.contracts import Source
from opabinia.data.sources import Synthetic


def test_images_depend_only_on_index_and_seed() -> None:
    source = Synthetic(samples=30, size=8, classes=4)
    assert torch.equal(source[7]["image"], Synthetic(samples=99, size=8, classes=4)[7]["image"])
    assert not torch.equal(source[7]["image"], Synthetic(samples=30, size=8, classes=4, seed=1)[7]["image"])
    batch = source.batch(np.array([3, 7]))
    assert torch.equal(batch["image"][1], source[7]["image"]) and batch["label"].tolist() == [3, 3]
    assert batch["id"] == ["3", "7"]


@pytest.mark.parametrize("channels", [1, 3])
def test_shapes_and_labels(channels: int) -> None:
    source = Synthetic(samples=5, size=6, classes=2, channels=channels)  # type: ignore[arg-type]
    assert isinstance(source, Source)
    assert source[3]["image"].shape == (channels, 6, 6) and source[3]["image"].dtype == torch.uint8
    assert source.info.labels.tolist() == [0, 1, 0, 1, 0] and source.classes == ("0", "1")
    for index in (-1, 5):
        with pytest.raises(IndexError, match=f"index {index} of 5 samples"):
            source[index]


def test_the_fingerprint_changes_with_the_images() -> None:
    sources = [Synthetic(), Synthetic(seed=1), Synthetic(size=33), Synthetic(samples=9), Synthetic(classes=3)]
    assert len({source.fingerprint() for source in sources}) == len(sources)
