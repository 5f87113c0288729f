"""The cache of decoded images: batches do not depend on its contents."""

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
from opabinia.data.decoding.cache import CachedSource, PixelFile, decode_shrunk, disk_file, with_cache
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.epoch_order import epoch_order
from opabinia.data.sampling.requests import training_requests
from opabinia.data.sources.concat import Concat
from opabinia.data.sources.folder import ImageFolder, Images
from opabinia.data.sources.synthetic import Synthetic
from opabinia.data.sources.wrapper import Indexed, Unlabeled
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.runtime.durations import Duration
from tests.data.decoding.test_reduced import make_photo
from tests.faults.programs import mounted
from tests.faults.test_disk import can_mount, fill

IMAGES = 10
TRANSFORMS: Sequence[Transform] = (
    RandomResizedCrop(size=32),
    v2.RandomHorizontalFlip(),
    v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
)


def write_photos(root: Path) -> Path:
    """Write images of several sizes; two are PNGs, whose decoded pixels have another memory layout."""
    (root / "cat").mkdir(parents=True)
    for number in range(IMAGES):
        image = make_photo(number, 120 + 7 * number, 150 - 5 * number)
        kind = "png" if number in (3, 7) else "jpg"
        image.save(root / "cat" / f"{number}.{kind}", quality=90)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "opabinia" / "pictures"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "opabinia"):
        yield caplog


def loader_of(source: Source, *, workers: int = 0, reduced: bool = True, epochs: int = 2) -> Loader:
    plan = ConstantPlan(len(source), 4, Duration(epochs, "ep"))
    orders = partial(epoch_order, 3, n=len(source), shuffle=True)
    requests = training_requests(plan, orders, rank=0, world=1)  # type: ignore[arg-type]
    return Loader(BatchReader(source, TRANSFORMS, seed=3, reduced=reduced), requests, num_workers=workers)


def batches(source: Source, **options: int) -> list[Batch]:
    loader = loader_of(source, **options)
    try:
        return [batch for _, batch in loader.iterate()]
    finally:
        loader.close()


def assert_same(result: list[Batch], expected: list[Batch]) -> None:
    assert [batch["id"] for batch in result] == [batch["id"] for batch in expected]
    for batch, expected_batch in zip(result, expected, strict=True):
        assert torch.equal(batch["image"], expected_batch["image"])


def file_of(cache_dir: Path) -> Path:
    (path,) = cache_dir.glob("*.pixels")
    return path


# --- identical pixels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "workers"), [("ram", 2), ("disk", 0)])
def test_batches_with_a_full_size_cache_equal_those_of_full_decoding(
    root: Path, cache_dir: Path, kind: str, workers: int
) -> None:
    expected = batches(ImageFolder(root=root), reduced=False)
    source = with_cache(ImageFolder(root=root), kind, None, "train")  # type: ignore[arg-type]
    assert_same(batches(source, workers=workers), expected)  # the second epoch reads the images cached in the first
    assert_same(batches(source, workers=workers), expected)


def test_images_are_decoded_once(
    root: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    first = batches(with_cache(ImageFolder(root=root), "disk", 40, "train"), workers=2)
    monkeypatch.setattr("opabinia.data.decoding.cache.decode_shrunk", None)
    logged.clear()
    source = with_cache(ImageFolder(root=root), "disk", 40, "train")
    assert logged.messages == [f"decoded images of train are cached in {file_of(cache_dir)}, 0.1 MB so far"]
    assert_same(batches(source, workers=2), first)


def test_downscaled_pixels_do_not_depend_on_the_cache(root: Path, cache_dir: Path) -> None:
    without = batches(CachedSource(ImageFolder(root=root), None, 40))
    assert_same(batches(with_cache(ImageFolder(root=root), "ram", 40, "train")), without)
    full = batches(ImageFolder(root=root), reduced=False)
    assert not torch.equal(without[0]["image"], full[0]["image"])
    image = ImageFolder(root=root).encoded(0)["image"]
    assert decode_shrunk(image, 40).shape == (3, 50, 40) and decode_shrunk(image, 1000).shape == (3, 150, 120)


def test_evaluation_images_are_identical(root: Path, cache_dir: Path) -> None:
    uncached = Indexed(source=Concat(sources=[Unlabeled(source=ImageFolder(root=root)), Images(root=root)]))
    source = with_cache(uncached, "ram", None, "val")
    blur = v2.GaussianBlur(5, sigma=1.0)  # the rounding of convolutions depends on the memory layout
    for index in (0, 2, 3, IMAGES + 3, 2, 3):
        result, expected = source[index], uncached[index]
        assert (result["id"], result["index"]) == (expected["id"], index) and result.keys() == expected.keys()
        assert result["image"].stride() == expected["image"].stride()
        assert torch.equal(result["image"], expected["image"])
        blurred, expected_blurred = (blur(v2.ToDtype(torch.float32)(sample)) for sample in (result, expected))
        assert torch.equal(blurred["image"], expected_blurred["image"])
        result["image"].zero_()  # the cache has its own pixels
    with pytest.raises(ValueError, match=r"ram: Synthetic has no image files .* others take null"):
        with_cache(Synthetic(), "ram", None, "train")


# --- outdated and damaged caches --------------------------------------------------------------------------------------


def test_a_changed_file_is_decoded_again_and_a_missing_one_raises(root: Path, cache_dir: Path) -> None:
    path = root / "cat" / "0.jpg"
    before = with_cache(ImageFolder(root=root), "disk", None, "train")[0]["image"]
    make_photo(99, 120, 150).save(path, quality=90)
    source = with_cache(ImageFolder(root=root), "disk", None, "train")
    assert torch.equal(source[0]["image"], ImageFolder(root=root)[0]["image"])
    assert not torch.equal(source[0]["image"], before)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        source[0]


def damage(path: Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "cut":
        content = content[: len(content) // 3]
    elif kind == "empty":
        content = bytearray()
    else:
        start, step, end = {
            "header": (3, 1, 4),
            "count": (18, 1, 19),
            "entries": (64 + 5, 48, 64 + 48 * IMAGES),
            "pixels": (len(content) // 2, 4096, len(content)),
        }[kind]
        for position in range(start, end, step):
            content[position] ^= 0x55
    path.write_bytes(content)


def test_damaged_images_are_decoded_again(root: Path, cache_dir: Path) -> None:
    expected = batches(with_cache(ImageFolder(root=root), "disk", None, "train"), epochs=1)
    for kind in ("cut", "empty", "header", "count", "entries", "pixels"):
        damage(file_of(cache_dir), kind)
        for _ in range(2):
            assert_same(batches(with_cache(ImageFolder(root=root), "disk", None, "train"), epochs=1), expected)


def fork_process(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process, in its own process group; return its pid."""
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


def fill_repeatedly(root: Path) -> None:
    """Decode one image again and again, and the others until they are cached."""
    source = with_cache(ImageFolder(root=root), "disk", None, "train")
    while True:
        (root / "cat" / "0.jpg").touch()
        batches(source, workers=2)


def test_processes_killed_while_filling_leave_a_valid_cache(root: Path, cache_dir: Path) -> None:
    expected = batches(ImageFolder(root=root), reduced=False)
    for seconds in (0.1, 0.3):
        pids = [fork_process(partial(fill_repeatedly, root)) for _ in range(2)]
        time.sleep(seconds)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        assert_same(batches(with_cache(ImageFolder(root=root), "disk", None, "train"), workers=2), expected)
    assert file_of(cache_dir).stat().st_size > 100_000


# --- in memory --------------------------------------------------------------------------------------------------------


def fill_half(root: Path, rendezvous: Path, rank: int) -> None:
    """Decode half of the images in one of two processes of a run; afterwards all are cached."""
    dist.init_process_group("gloo", init_method=rendezvous.as_uri(), rank=rank, world_size=2)
    os.environ["LOCAL_RANK"] = str(rank)
    uncached = ImageFolder(root=root)
    source = with_cache(uncached, "ram", None, "train")
    for index in range(rank, IMAGES, 2):
        assert torch.equal(source[index]["image"], uncached[index]["image"])
    dist.barrier()
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("opabinia.data.decoding.cache.decode_shrunk", None)
    for index in range(IMAGES):
        assert torch.equal(source[index]["image"], uncached[index]["image"])
    dist.barrier()


def test_processes_of_a_machine_share_the_memory_cache(root: Path, tmp_path: Path) -> None:
    pids = [fork_process(partial(fill_half, root, tmp_path / "rendezvous", rank)) for rank in range(2)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]


def test_memory_is_freed_and_pickles_share_it(root: Path) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    source = with_cache(ImageFolder(root=root), "ram", None, "train")
    batches(source)
    assert open_files() > before
    file = source._file
    assert file is not None
    file.add(1, b"s" * 16, np.full((2, 3, 3), 7, dtype=np.uint8))
    unpickled: PixelFile = pickle.loads(pickle.dumps(file))
    entry = unpickled.find(1, b"s" * 16)
    assert entry is not None and (unpickled.rows(entry, 0, 2) == 7).all()
    del source, file, unpickled
    assert open_files() == before


# --- log and full disks -----------------------------------------------------------------------------------------------


def test_if_the_folder_cannot_be_created_images_are_not_cached(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    source = with_cache(ImageFolder(root=root), "disk", None, "train")
    assert [record.levelname for record in logged.records] == ["WARNING"]
    assert "Not a directory; images are decoded every time" in logged.messages[0]
    assert_same(batches(source), batches(ImageFolder(root=root), reduced=False))


def test_a_full_cache_is_logged_once(root: Path, tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    has_space = iter([True])
    path = tmp_path / "some.pixels"
    disk_file(path, IMAGES)
    file = PixelFile(path, IMAGES, "some", lambda size: next(has_space, False))
    image = np.zeros((2000, 3000, 3), dtype=np.uint8)
    for number in range(4):
        file.add(number, bytes([number]) * 16, image)
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
        warnings = [record.getMessage() for record in logged.records if record.levelname == "WARNING"]
        assert len(warnings) == 1 and warnings[0].endswith("the disk is full; the other images are decoded every time")
        assert file_of(folder / "opabinia" / "pictures").stat().st_size > 100_000, "some images are cached"
