"""Decoded images that are kept: the same batches, whatever the cache holds."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torchvision.transforms import v2

from opabinia.contracts import Batch, Source, Transform
from opabinia.data.decoding.cache import CachedSource, PixelFile, decode_shrunk, disk_file, memory_file, with_cache
from opabinia.data.loader import BatchReader, Loader, training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import epoch_order
from opabinia.data.sources.concat import Concat
from opabinia.data.sources.folder import ImageFolder
from opabinia.data.sources.indexed import Indexed
from opabinia.data.sources.synthetic import Synthetic
from opabinia.data.sources.unlabeled import Images, Unlabeled
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.data.transforms.evaluation import resize_and_crop
from opabinia.runtime.durations import Duration
from tests.data.decoding.test_reduced import photograph
from tests.faults.programs import mounted
from tests.faults.test_disk import can_mount, fill

IMAGES = 10
TRAINING: Sequence[Transform] = (
    RandomResizedCrop(size=32),
    v2.RandomHorizontalFlip(),
    v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
)


def filled(root: Path) -> Path:
    """Images of several sizes and kinds, two of which lie otherwise in memory when they are decoded."""
    (root / "cat").mkdir(parents=True)
    for number in range(IMAGES):
        image = photograph(number, 120 + 7 * number, 150 - 5 * number)
        kind = "png" if number in (3, 7) else "jpg"
        image.save(root / "cat" / f"{number}.{kind}", quality=90)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return filled(tmp_path / "photos")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "opabinia" / "pictures"


def loader_of(source: Source, *, workers: int = 0, reduced: bool = True, epochs: int = 2) -> Loader:
    plan = ConstantPlan(len(source), 4, Duration(epochs, "ep"))
    orders = partial(epoch_order, 3, n=len(source), shuffle=True)
    requests = training_requests(plan, orders, rank=0, world=1)  # type: ignore[arg-type]
    return Loader(BatchReader(source, TRAINING, seed=3, reduced=reduced), requests, num_workers=workers)


def batches(source: Source, **options: int) -> list[Batch]:
    loader = loader_of(source, **options)
    try:
        return [batch for _, batch in loader.iterate()]
    finally:
        loader.close()


def assert_same(result: list[Batch], expected: list[Batch]) -> None:
    assert [one["id"] for one in result] == [one["id"] for one in expected]
    for one, other in zip(result, expected, strict=True):
        assert torch.equal(one["image"], other["image"])


def file_of(home: Path) -> Path:
    (path,) = home.glob("*.pixels")
    return path


# --- the same pixels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_in_full_size_batches_are_those_of_full_decoding(root: Path, home: Path, kind: str, workers: int) -> None:
    expected = batches(ImageFolder(root=root), reduced=False)
    source = with_cache(ImageFolder(root=root), kind, None, "train")  # type: ignore[arg-type]
    assert_same(batches(source, workers=workers), expected)  # the second epoch finds what the first left
    assert_same(batches(source, workers=workers), expected)


@pytest.mark.parametrize("size", [None, 40])
def test_images_are_decoded_once(root: Path, home: Path, size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = batches(with_cache(ImageFolder(root=root), "disk", size, "train"), workers=2)
    monkeypatch.setattr("opabinia.data.decoding.cache.decode_shrunk", None)
    assert_same(batches(with_cache(ImageFolder(root=root), "disk", size, "train"), workers=2), first)


def test_shrunk_pixels_do_not_depend_on_what_is_there(root: Path, home: Path) -> None:
    without = batches(CachedSource(ImageFolder(root=root), None, 40))
    assert_same(batches(with_cache(ImageFolder(root=root), "ram", 40, "train")), without)
    full = batches(ImageFolder(root=root), reduced=False)
    assert not torch.equal(without[0]["image"], full[0]["image"])
    image = ImageFolder(root=root).encoded(0)["image"]
    assert decode_shrunk(image, 40).shape == (3, 50, 40) and decode_shrunk(image, 1000).shape == (3, 150, 120)


def test_evaluations_are_the_same(root: Path, home: Path) -> None:
    plain = ImageFolder(root=root)
    source = with_cache(plain, "ram", None, "val")
    blur = v2.GaussianBlur(5, sigma=1.0)  # convolutions round otherwise where pixels lie otherwise
    for _ in range(2):
        for index in range(IMAGES):
            result, expected = source[index], plain[index]
            assert result["image"].stride() == expected["image"].stride()
            assert torch.equal(result["image"], expected["image"])
            for change in (partial(resize_and_crop, size=64), lambda sample: blur(v2.ToDtype(torch.float32)(sample))):
                assert torch.equal(change(result)["image"], change(expected)["image"])


def test_what_a_sample_gets_is_its_own(root: Path, home: Path) -> None:
    source = with_cache(ImageFolder(root=root), "ram", None, "train")
    before = source[0]["image"].clone()
    source[0]["image"].zero_()
    assert torch.equal(source[0]["image"], before)


def test_sources_that_join_others(root: Path, home: Path) -> None:
    plain = Indexed(source=Concat(sources=[Unlabeled(source=ImageFolder(root=root)), Images(root=root)]))
    source = with_cache(plain, "ram", None, "train")
    for index in (2, IMAGES + 3, 2):
        result, expected = source[index], plain[index]
        assert (result["id"], result["index"]) == (expected["id"], index) and result.keys() == expected.keys()
        assert torch.equal(result["image"], expected["image"])


def test_others_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ram: Synthetic has no image files .* others take null"):
        with_cache(Synthetic(), "ram", None, "train")


# --- what is there ----------------------------------------------------------------------------------------------------


def test_a_changed_file_is_decoded_again(root: Path, home: Path) -> None:
    batches(with_cache(ImageFolder(root=root), "disk", None, "train"))
    photograph(99, 120, 150).save(root / "cat" / "0.jpg", quality=90)
    expected = batches(ImageFolder(root=root), reduced=False)
    assert_same(batches(with_cache(ImageFolder(root=root), "disk", None, "train")), expected)


def test_a_missing_file_raises_though_it_was_kept(root: Path, home: Path) -> None:
    source = with_cache(ImageFolder(root=root), "disk", None, "train")
    assert source[0]["image"].shape == (3, 150, 120)
    (root / "cat" / "0.jpg").unlink()
    with pytest.raises(FileNotFoundError):
        source[0]


def damaged(path: Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "cut":
        content = content[: len(content) // 3]
    elif kind == "empty":
        content = bytearray()
    else:
        place = {"header": 3, "count": 18, "entries": 64 + 5, "pixels": len(content) // 2}[kind]
        step = {"header": 1000, "count": 1000, "entries": 48, "pixels": 4096}[kind]
        end = 64 + 48 * IMAGES if kind == "entries" else len(content)
        for at in range(place, end, step):
            content[at] ^= 0x55
            if kind in ("header", "count"):
                break
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["cut", "empty", "header", "count", "entries", "pixels"])
def test_what_is_damaged_is_decoded_again(root: Path, home: Path, kind: str) -> None:
    expected = batches(with_cache(ImageFolder(root=root), "disk", None, "train"))
    damaged(file_of(home), kind)
    assert_same(batches(with_cache(ImageFolder(root=root), "disk", None, "train"), workers=2), expected)
    assert_same(batches(with_cache(ImageFolder(root=root), "disk", None, "train")), expected)


def forked(work: Callable[[], None]) -> int:
    """A process, in a group of its own with its workers, that does this."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            work()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    return pid


def keeps_filling(root: Path) -> None:
    """Decode the same image again, and the others as long as they are not there."""
    source = with_cache(ImageFolder(root=root), "disk", None, "train")
    while True:
        (root / "cat" / "0.jpg").touch()
        batches(source, workers=2)


def test_two_processes_fill_it_and_are_killed(root: Path, home: Path) -> None:
    expected = batches(ImageFolder(root=root), reduced=False)
    for seconds in (0.1, 0.2, 0.4, 0.8):
        running = [forked(partial(keeps_filling, root)) for _ in range(2)]
        time.sleep(seconds)
        for pid in running:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        assert_same(batches(with_cache(ImageFolder(root=root), "disk", None, "train"), workers=2), expected)
    assert file_of(home).stat().st_size > 100_000


# --- in memory --------------------------------------------------------------------------------------------------------


def fills_half(root: Path, meeting: Path, rank: int) -> None:
    """As one of two processes of a run: each decodes half of the images and has all of them."""
    dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=2)
    os.environ["LOCAL_RANK"] = str(rank)
    plain = ImageFolder(root=root)
    source = with_cache(plain, "ram", None, "train")
    for index in range(rank, IMAGES, 2):
        assert torch.equal(source[index]["image"], plain[index]["image"])
    dist.barrier()
    monkey = pytest.MonkeyPatch()
    monkey.setattr("opabinia.data.decoding.cache.decode_shrunk", None)
    for index in range(IMAGES):
        assert torch.equal(source[index]["image"], plain[index]["image"])
    dist.barrier()


def test_processes_of_a_machine_share_it(root: Path, tmp_path: Path) -> None:
    running = [forked(partial(fills_half, root, tmp_path / "meeting", rank)) for rank in range(2)]
    assert [os.waitpid(pid, 0)[1] for pid in running] == [0, 0]


def test_memory_is_given_back(root: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    source = with_cache(ImageFolder(root=root), "ram", None, "train")
    batches(source)
    assert open_files() > before
    del source
    assert open_files() == before


def test_who_gets_a_copy_of_it_shares_its_memory() -> None:
    file = memory_file(IMAGES, "train")
    file.add(1, b"s" * 16, np.full((2, 3, 3), 7, dtype=np.uint8))
    other: PixelFile = pickle.loads(pickle.dumps(file))
    result = other.find(1, b"s" * 16)
    assert result is not None and (other.rows(result, 0, 2) == 7).all()


# --- where there is no room -------------------------------------------------------------------------------------------


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "opabinia"):
        yield caplog


def test_the_log_reports_where_it_is_and_how_large(root: Path, home: Path, logged: pytest.LogCaptureFixture) -> None:
    batches(with_cache(ImageFolder(root=root), "disk", None, "train"))
    logged.clear()
    with_cache(ImageFolder(root=root), "disk", None, "train")
    assert logged.messages == [f"decoded images of train are cached in {file_of(home)}, 0.6 MB so far"]


def test_a_folder_that_cannot_be_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    source = with_cache(ImageFolder(root=root), "disk", None, "train")
    assert [one.levelname for one in logged.records] == ["WARNING"]
    assert "Not a directory; images are decoded every time" in logged.messages[0]
    assert_same(batches(source), batches(ImageFolder(root=root), reduced=False))


def test_no_more_space_is_logged_once(root: Path, tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    room = iter([True])
    path = tmp_path / "some.pixels"
    disk_file(path, IMAGES)
    file = PixelFile(path, IMAGES, "some", lambda size: next(room, False))
    big = np.zeros((2000, 3000, 3), dtype=np.uint8)
    for number in range(4):
        file.add(number, bytes([number]) * 16, big)
    assert [file.find(number, bytes([number]) * 16) is not None for number in range(4)] == [True, False, False, False]
    (message,) = logged.messages
    assert message.startswith("data.cache: some is full: there is no more space;")


@pytest.mark.skipif(not can_mount(), reason="mounting a small file system needs root")
def test_a_full_disk(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path / "disk", "size=2m") as folder:
        fill(folder, leave=150_000)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        source = with_cache(ImageFolder(root=root), "disk", None, "train")
        assert_same(batches(source), batches(ImageFolder(root=root), reduced=False))
        warnings = [one.getMessage() for one in logged.records if one.levelname == "WARNING"]
        assert len(warnings) == 1 and warnings[0].endswith("the disk is full; the other images are decoded every time")
        assert file_of(folder / "opabinia" / "pictures").stat().st_size > 100_000, "some of them are kept"
