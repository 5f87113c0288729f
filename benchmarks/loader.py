"""Claim: with two workers image files become batches faster than with timm's loader and torchvision, and faster still
once they are cached: in the second epoch at least 2.5 times as fast as without a cache, and 5 times as fast as timm.

1,024 photographs of ``../shared/data/clothing_small`` (213 x 160 pixels) and 1,024 of ImageNet's size (shorter
side 375 pixels, quality 90, made from 20 originals there), or drawn images where there are none. A random crop is
resized to 224 x 224 pixels and mirrored or not, in batches of 64, which are discarded. Peers: timm's ``create_loader``
without its prefetcher and with it (on the CPU), torch's DataLoader with torchvision's transforms on PIL images and on
tensors, and, if installed, webdataset (tar files of 128 images, transforms on tensors) and DALI on the CPU
(``nvidia-dali-cuda120``, two threads instead of workers). timm returns normalized floats, the others bytes.

Each side reads two epochs with the same workers. Wall time and CPU time (of this process and the workers) are medians
over the rounds, in which the sides take turns; on a busy machine compare CPU times. Then the memory that workers take
with a million file names. Run: ``python benchmarks/loader.py``.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.data import create_dataset, create_loader
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder as TorchvisionFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from opabinia.contracts import Source
from opabinia.data.decoding.cache import with_cache as cached
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.epoch_order import epoch_order
from opabinia.data.sampling.requests import training_requests
from opabinia.data.sources.file_names import FileNames
from opabinia.data.sources.folder import ImageFolder
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.data.transforms.instances import DropEmptyObjects, RandomHorizontalFlip
from opabinia.runtime.durations import Duration

PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "data" / "clothing_small"
WORKERS, BATCH, SIZE, ROUNDS = 2, 64, 224, 3
IMAGES = 1024
NAMES = 1_000_000

Batches = Iterable[object]


def small_images(folder: Path) -> Path:
    """Create links to photographs, or generated images."""
    folder.mkdir(parents=True)
    photographs = sorted(PHOTOGRAPHS.glob("train/*/*.jpg"))
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        if photographs:
            (folder / f"{number}.jpg").symlink_to(photographs[number * len(photographs) // IMAGES])
        else:
            coarse = Image.fromarray(rng.integers(0, 256, (20, 15, 3), dtype=np.uint8))
            coarse.resize((160, 213), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg", quality=80)
    return folder.parent


def large_images(folder: Path) -> Path:
    """Write files with a shorter side of 375 pixels from a few originals, or generated images."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    originals = [Image.open(path).convert("RGB") for path in sorted(PHOTOGRAPHS.glob("originals_sample/*.jpg"))]
    originals = originals or [Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)) for _ in range(20)]
    for number, original in enumerate(originals):
        scale = 375 / min(original.size)
        size = round(original.width * scale), round(original.height * scale)
        original.resize(size, Image.Resampling.LANCZOS).save(folder / f"{number}.jpg", quality=90)
    for number in range(len(originals), IMAGES):
        shutil.copy(folder / f"{number % len(originals)}.jpg", folder / f"{number}.jpg")
    return folder.parent


# --- the sides: each gives the batches of an epoch, twice -------------------------------------------------------------


class Opabinia:
    """Read two epochs of a run of three: the workers read ahead into the third."""

    def __init__(self, source: Source) -> None:
        transforms = [DropEmptyObjects(RandomResizedCrop(size=SIZE)), DropEmptyObjects(RandomHorizontalFlip(p=0.5))]
        self.plan = ConstantPlan(len(source), BATCH, Duration(3, "ep"), drop_last=True)
        orders = partial(epoch_order, 0, n=len(source), shuffle=True)
        requests = training_requests(self.plan, orders, rank=0, world=1)  # type: ignore[arg-type]
        self.loader = Loader(BatchReader(source, transforms, seed=0, reduced=True), requests, num_workers=WORKERS)
        self.batches = self.loader.iterate()

    def __iter__(self) -> Iterator[object]:
        for _ in range(self.plan.steps_per_epoch):
            yield next(self.batches)

    def close(self) -> None:
        self.loader.close()


def opabinia(root: Path) -> Opabinia:
    return Opabinia(ImageFolder(root=root))


def with_cache(root: Path, *, size: int | None) -> Opabinia:
    return Opabinia(cached(ImageFolder(root=root), "ram", size, "train"))


def timm(root: Path, *, prefetcher: bool) -> Batches:
    return create_loader(  # type: ignore[no-any-return]
        create_dataset("", str(root)),
        *((3, SIZE, SIZE), BATCH),
        is_training=True,
        color_jitter=None,
        interpolation="bilinear",
        num_workers=WORKERS,
        use_prefetcher=prefetcher,
        persistent_workers=True,
        device=torch.device("cpu"),
    )


def torchvision(root: Path, *, tensors: bool) -> Batches:
    changes = [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), *([] if tensors else [v2.PILToTensor()])]
    more = {"loader": pixels} if tensors else {}
    data = TorchvisionFolder(str(root), v2.Compose(changes), **more)
    return DataLoader(data, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True, persistent_workers=True)


def pixels(path: str) -> torch.Tensor:
    warnings.simplefilter("ignore")
    return decode_image(path, mode=ImageReadMode.RGB)


def webdataset(root: Path) -> Batches:
    import webdataset as wds

    if not list(root.parent.glob(f"{root.name}-*.tar")):
        with wds.ShardWriter(f"{root}-%02d.tar", maxcount=128, verbose=0) as writer:
            for path in sorted(root.rglob("*.jpg")):
                writer.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": 0})
    flips = v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()])
    shards = [str(path) for path in sorted(root.parent.glob(f"{root.name}-*.tar"))]
    data = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(IMAGES).to_tuple("jpg", "cls")
    data = data.map_tuple(
        lambda content: flips(decode_image(torch.frombuffer(content, dtype=torch.uint8), mode="RGB")), int
    )
    return wds.WebLoader(data.batched(BATCH), batch_size=None, num_workers=WORKERS, persistent_workers=True)  # type: ignore[no-any-return]


class Dali:
    """Read epochs of a pipeline with two threads; each step decodes only the crop."""

    def __init__(self, root: Path) -> None:
        from nvidia.dali import fn, pipeline_def

        @pipeline_def(batch_size=BATCH, num_threads=WORKERS, device_id=None)  # type: ignore[untyped-decorator]
        def steps() -> object:
            content, label = fn.readers.file(file_root=str(root), random_shuffle=True)
            image = fn.decoders.image_random_crop(content, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
            image = fn.flip(fn.resize(image, size=[SIZE, SIZE]), horizontal=fn.random.coin_flip())
            return fn.transpose(image, perm=[2, 0, 1]), label

        self.pipeline = steps()

    def __iter__(self) -> Iterator[object]:
        for _ in range(IMAGES // BATCH):
            yield self.pipeline.run()

    def close(self) -> None:
        del self.pipeline
        gc.collect()  # before other sides fork


SIDES: dict[str, Callable[[Path], Batches]] = {
    "opabinia": opabinia,
    "opabinia, cache": partial(with_cache, size=None),
    "opabinia, cache_size 256": partial(with_cache, size=256),
    "timm": partial(timm, prefetcher=False),
    "timm, prefetcher": partial(timm, prefetcher=True),
    "torchvision, PIL": partial(torchvision, tensors=False),
    "torchvision, tensors": partial(torchvision, tensors=True),
    "webdataset": webdataset,
    "DALI": Dali,
}
PACKAGES = {"webdataset": "webdataset", "DALI": "nvidia.dali"}


# --- measuring --------------------------------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """Return the CPU time of this process, of its workers, and of workers that have exited."""
    ticks = 0
    for worker in active_children():
        with suppress(OSError):
            fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def epoch(batches: Batches) -> tuple[float, float]:
    """Return the microseconds per image: wall time and CPU time."""
    began, cpu_began = time.perf_counter(), cpu_seconds()
    count = sum(1 for _ in batches) * BATCH
    return (time.perf_counter() - began) / count * 1e6, (cpu_seconds() - cpu_began) / count * 1e6


def measured(make: Callable[[Path], Batches], root: Path) -> tuple[float, float, float]:
    """Return the microseconds per image of the first epoch, of the second, and CPU time of the second."""
    batches = make(root)
    (first, _), (second, cpu) = epoch(batches), epoch(batches)
    if isinstance(batches, (Opabinia, Dali)):
        batches.close()
    return first, second, cpu


def compare(root: Path) -> None:
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in SIDES}
    for _ in range(ROUNDS):
        for name, make in SIDES.items():
            taken[name].append(measured(make, root))
    columns = ("1st epoch", "2nd epoch", "uncached", "timm", "CPU, 2nd", "uncached", "timm")
    print(f"    {'':<24}" + "".join(f"{column:>11}" for column in columns))
    for name, rows in taken.items():
        first, second, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        uncached, timm_wall, uncached_cpu, timm_cpu = (
            statistics.median(other[column] / own[column] for other, own in zip(taken[base], rows, strict=True))
            for column in (1, 2)
            for base in ("opabinia", "timm")
        )
        print(
            f"    {name:<24}{first:11.0f}{second:11.0f}{uncached:10.2f}x{timm_wall:10.2f}x"
            f"{cpu:11.0f}{uncached_cpu:10.2f}x{timm_cpu:10.2f}x"
        )


# --- memory -----------------------------------------------------------------------------------------------------------


def own_memory() -> float:
    """Return the MB that this process shares with no other process."""
    lines = Path(f"/proc/{os.getpid()}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def read_all(names: Sequence[bytes], send: Callable[[float], None]) -> None:
    before, draw = own_memory(), random.Random(0)
    for _ in range(len(names)):
        _ = names[draw.randrange(len(names))]
    send(own_memory() - before)


def taken_by_worker(names: Sequence[bytes]) -> float:
    """Return the MB that a worker copies while it reads all names in random order."""
    fork = get_context("fork")
    receiver, sender = fork.Pipe()
    worker = fork.Process(target=read_all, args=(names, sender.send))
    worker.start()
    megabytes: float = receiver.recv()
    worker.join()
    return megabytes


def compare_memory() -> None:
    names = [b"%04d/image_%08d.jpg" % (number % 1000, number) for number in range(NAMES)]
    print(f"MB that a forked worker has for itself after an epoch of {NAMES:,} file names")
    print(f"    {'opabinia':<24} {taken_by_worker(FileNames(names)):10.0f}")  # type: ignore[arg-type]
    print(f"    {'a list, as torchvision':<24} {taken_by_worker(names):10.0f}")


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{WORKERS} workers, microseconds per image, median of {ROUNDS} rounds in turn; 'uncached' and 'timm' say")
    print("how many times as fast as these (opabinia without a cache) the second epoch is")
    for name, package in PACKAGES.items():
        try:
            import_module(package)
        except ImportError as error:
            del SIDES[name]
            print(f"without {name}: {error}")
    with tempfile.TemporaryDirectory() as folder:
        print(f"  {IMAGES} images of 213 x 160 pixels")
        compare(small_images(Path(folder) / "small" / "all"))
        print(f"  {IMAGES} images with a shorter side of 375 pixels")
        compare(large_images(Path(folder) / "large" / "all"))
    compare_memory()


if __name__ == "__main__":
    main()
