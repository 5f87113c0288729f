"""The embedded dataset for classification: scikit-learn's 1,797 handwritten digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Indices
from opabinia.data.sampling.epoch_order import Permutation
from opabinia.data.sources.in_memory import ImageArray
from opabinia.runtime.array_files import Arrays as Arrays
from opabinia.runtime.array_files import cached_arrays
from opabinia.runtime.files import cache_folder
from opabinia.runtime.seeds import hash32

VALIDATION_SAMPLES = 360
_SPLIT_KEY = hash32(1797)  # fixed, so that a run's seed does not change the split

Split = Literal["train", "val"]


@register.source
class Digits(ImageArray):
    """scikit-learn's 1,797 handwritten digits, 8 x 8, gray; for trials and tests.

    The split is fixed and stratified: 1,437 for training and 360 for validation. From E. Alpaydin and C. Kaynak,
    Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998 (its test set).

    Args:
        split: train or val.
    """

    def __init__(self, *, split: Split = "train") -> None:
        images, labels = load_digits()
        self.numbers = split_digits(labels)[split]
        super().__init__(images[self.numbers], labels[self.numbers].astype(np.int64), tuple("0123456789"))

    def id(self, index: int) -> str:
        return f"digits/{self.numbers[index]:04d}"


def split_digits(labels: NDArray[np.uint8]) -> dict[str, Indices]:
    """Return the indices of the digits in ``train`` and ``val``, ascending, with the same share of each class."""
    shuffled = Permutation(len(labels), _SPLIT_KEY)(np.arange(len(labels)))
    rank = np.empty(len(labels))
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        rank[members] = (np.arange(len(members)) + 0.5) / len(members)  # 0 to 1 within its class
    by_rank = np.argsort(rank, kind="stable")
    return {"train": np.sort(by_rank[VALIDATION_SAMPLES:]), "val": np.sort(by_rank[:VALIDATION_SAMPLES])}


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return all images (uint8, 1797 x 8 x 8, 0 to 255) and labels (uint8, 1797), from the cache folder.

    Importing scikit-learn takes more than a second; reading the cached file takes a millisecond.
    """
    arrays = load_cached("digits-1.npz", _read_sklearn)
    return arrays["images"], arrays["labels"]


def _read_sklearn() -> Arrays:
    from sklearn import datasets

    digits = datasets.load_digits()
    return {"images": np.rint(digits.images * (255 / 16)).astype(np.uint8), "labels": digits.target.astype(np.uint8)}


def load_cached(file: str, compute: Callable[[], Arrays]) -> Arrays:
    """Read arrays from a file (.npz) in the cache folder; if it is missing or broken, compute and write them."""
    return cached_arrays(cache_folder() / file, compute, dict)
