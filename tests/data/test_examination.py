"""Samples of a dataset that are read."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image

from opabinia.data import examination
from opabinia.data.examination import examine
from opabinia.data.sample_groups import find_groups
from opabinia.data.sources import Images
from opabinia.runtime import local_copies, storage
from tests.data.check.images import save


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Images:
    root = tmp_path_factory.mktemp("images")
    for number in range(100):
        save(root / f"{number:03d}.jpg", number, (80, 64))
    (root / "050.jpg").write_bytes(b"no image")
    return Images(root=root)


def test_all_samples_are_read_in_order(source: Images) -> None:
    examined = examine(source, workers=0)
    assert examined.indices.tolist() == list(range(100)) and examined.is_complete
    assert [scan.id for scan in examined.scans] == list(source.split_keys())
    assert [scan.id for scan in examined.scans if scan.error] == ["050.jpg"]
    assert examined.scans[0].size == (64, 80) and not examined.scans[0].is_gray and examined.scans[0].bits == 8
    part = examined.select(np.array([1, 50, 99]))
    assert part.indices.tolist() == [0, 1, 2] and [scan.id for scan in part.scans] == ["001.jpg", "050.jpg", "099.jpg"]


def test_the_seed_draws_pairs_of_consecutive_samples(source: Images) -> None:
    first, again, other = (examine(source, seed=seed, limit=20, workers=0) for seed in (0, 0, 1))
    assert len(first.indices) == 20 and not first.is_complete
    assert first.indices.tolist() == again.indices.tolist() != other.indices.tolist()
    assert (np.diff(first.indices)[::2] == 1).all() and (first.indices[::2] % 2 == 0).all()
    with_processes = examine(source, seed=0, limit=20, workers=2)
    assert [scan.id for scan in with_processes.scans] == [scan.id for scan in first.scans]


def test_large_images_are_fewer(source: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "PIXELS", 80 * 64 * 70)
    assert len(examine(source, workers=0).scans) == 70
    monkeypatch.setattr(examination, "PIXELS", 80 * 64)
    assert len(examine(source, workers=2).scans) == 64


def test_the_time_is_limited(source: Images) -> None:
    examined = examine(source, seconds=0, workers=0)
    assert len(examined.scans) == 1 and not examined.is_complete


def test_gray_and_16_bits(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(tmp_path / "a.png")
    Image.new("L", (8, 8), 7).save(tmp_path / "b.jpg")
    Image.new("RGB", (8, 8), (7, 8, 9)).save(tmp_path / "c.png")
    scans = examine(Images(root=tmp_path), workers=0).scans
    assert [(scan.bits, scan.is_gray) for scan in scans] == [(16, True), (8, True), (8, False)]


def test_remote_files_are_fetched_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "PATIENCE", 0.0)
    memory = fsspec.filesystem("memory")
    for number in range(10):
        memory.pipe_file(f"/examined/{number}.png", save(tmp_path / "image.png", number, (80, 64)).read_bytes())
    source = Images(root=Path(local_copies.local_copy("memory://examined")))
    calls: list[int] = []
    monkeypatch.setattr(examination, "fetch_all", lambda paths: calls.append(len(list(paths))))
    examined = examine(source, limit=4, workers=0)
    assert calls == [4] and all(scan.size == (64, 80) for scan in examined.scans)
    assert sum(local_copies.is_placeholder(source.path(index)) for index in range(10)) == 6
    find_groups(source, examined)  # the others stay where they are
    assert sum(local_copies.is_placeholder(source.path(index)) for index in range(10)) == 6
    memory.rm("/examined", recursive=True)
