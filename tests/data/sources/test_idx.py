"""idx files, the format of MNIST and Fashion-MNIST."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from opabinia.data.sources import Idx


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = np.arange(5 * 3 * 4, dtype=np.uint8).reshape(5, 3, 4)
LABELS = np.array([0, 2, 1, 1, 0], dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(IMAGES), mtime=0))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(LABELS))
    return tmp_path


def test_samples(folder: Path) -> None:
    source = Idx(root=folder)
    assert (len(source), source.channels, source.classes) == (5, 1, ("0", "1", "2"))
    sample = source[1]
    assert sample["label"] == 2 and sample["id"] == "train/00001"
    assert sample["image"].tolist() == [IMAGES[1].tolist()]
    sample["image"].zero_()
    assert source[1]["image"].tolist() == [IMAGES[1].tolist()], "a transform may work in place"


def test_a_batch_consists_of_its_samples(folder: Path) -> None:
    source = Idx(root=folder, classes=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"classes: 2 names, but .* has labels up to 2"):
        Idx(root=folder, classes=["a", "b"])
    batch = source.batch(np.array([4, 0, 2]))
    samples = [source[index] for index in (4, 0, 2)]
    assert torch.equal(batch["image"], torch.stack([sample["image"] for sample in samples]))
    assert batch["label"].tolist() == [sample["label"] for sample in samples]
    assert batch["id"] == [sample["id"] for sample in samples]


def test_the_fingerprint_changes_with_the_labels(folder: Path) -> None:
    before = Idx(root=folder).fingerprint()
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS[::-1]))
    assert Idx(root=folder).fingerprint() != before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte.gz", None, "there is no .*train-images-idx3-ubyte "),
        ("train-images-idx3-ubyte.gz", gzip.compress(idx(IMAGES), mtime=0)[:-9], "is not a complete gzip file"),
        ("train-images-idx3-ubyte.gz", gzip.compress(idx(IMAGES)[:-1], mtime=0), "has 75 bytes, its header says 76"),
        ("train-images-idx3-ubyte.gz", gzip.compress(idx(LABELS), mtime=0), "is not an idx file of bytes in 3"),
        ("train-images-idx3-ubyte.gz", b"", "is not an idx file"),
        ("train-labels-idx1-ubyte", idx(LABELS[:4]), "holds 5 train images and 4 labels"),
    ],
)
def test_broken_files_are_reported(folder: Path, name: str, content: bytes | None, message: str) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Idx(root=folder)


def test_fashion_mnist(shared_data: Path) -> None:
    source = Idx(root=shared_data / "fashion_mnist", split="test")
    assert len(source) == 10_000 and source.fingerprint().startswith("10000 images")
    assert [source[index]["label"] for index in range(5)] == [9, 2, 1, 1, 6]
    assert source[0]["image"].shape == (1, 28, 28)
