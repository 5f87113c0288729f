"""Claim: with two workers a folder of photographs becomes batches faster than with timm's loader and torchvision.

3,068 photographs of ``../shared/data/clothing_small`` (shorter side 160 pixels) where it is there, else drawn ones; a
random part resized to 224 x 224 pixels, mirrored or not, in batches of 64; batches are taken and thrown away. Beside
us: timm's ``create_loader`` without its prefetcher, with it (on the CPU), and torch's DataLoader with torchvision's
transforms on PIL pictures and on tensors. timm's two give normalised floats, the others bytes. Ours keeps its promise
that batches do not depend on the workers; then it reads with ``data.cache: ram``, the first epoch and the second.

Each side is an epoch with workers that are running, and CPU time with their start and end; medians over the rounds,
in which the sides take turns. Then what workers take of memory with a million file names. Run:
``python benchmarks/loader.py``.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
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
from opabinia.data.loader import BatchReader, Loader, training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import epoch_order
from opabinia.data.sources.file_names import FileNames
from opabinia.data.sources.folder import ImageFolder
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.data.transforms.instances import DropEmptyObjects, RandomHorizontalFlip
from opabinia.runtime.durations import Duration

PHOTOGRAPHS = Path(__file__).parents[2] / "shared" / "data" / "clothing_small" / "train"
WORKERS, BATCH, SIZE, ROUNDS = 2, 64, 224, 5
DRAWN = 1024
NAMES = 1_000_000

Batches = Iterable[object]


def drawn(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    (folder / "all").mkdir()
    for number in range(DRAWN):
        coarse = Image.fromarray(rng.integers(0, 256, (20, 15, 3), dtype=np.uint8))
        coarse.resize((160, 213), Image.Resampling.BICUBIC).save(folder / "all" / f"{number}.jpg", quality=80)
    return folder


# --- the sides: each gives the batches of an epoch, twice -------------------------------------------------------------


class Opabinia:
    """Two epochs of one run."""

    def __init__(self, source: Source) -> None:
        transforms = [DropEmptyObjects(RandomResizedCrop(size=SIZE)), DropEmptyObjects(RandomHorizontalFlip(p=0.5))]
        self.plan = ConstantPlan(len(source), BATCH, Duration(2, "ep"), drop_last=True)
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


def with_cache(root: Path) -> Opabinia:
    return Opabinia(cached(ImageFolder(root=root), "ram", None, "train"))


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


SIDES: dict[str, Callable[[Path], Batches]] = {
    "opabinia": opabinia,
    "opabinia, cache": with_cache,
    "timm": partial(timm, prefetcher=False),
    "timm, prefetcher": partial(timm, prefetcher=True),
    "torchvision, PIL": partial(torchvision, tensors=False),
    "torchvision, tensors": partial(torchvision, tensors=True),
}


# --- measuring --------------------------------------------------------------------------------------------------------


def used() -> float:
    """Seconds of CPU time of this process and of those that have ended."""
    return sum(
        part.ru_utime + part.ru_stime
        for part in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def epoch(batches: Batches) -> float:
    """Microseconds a picture."""
    began = time.perf_counter()
    count = sum(1 for _ in batches) * BATCH
    return (time.perf_counter() - began) / count * 1e6


def measured(make: Callable[[Path], Batches], root: Path) -> tuple[float, float, float]:
    """Microseconds a picture: of the first epoch, of the second, and of CPU time in both."""
    began = used()
    batches = make(root)
    first, second = epoch(batches), epoch(batches)
    count = 2 * BATCH * (sum(1 for _ in root.rglob("*.jpg")) // BATCH)
    if isinstance(batches, Opabinia):
        batches.close()
    del batches
    return first, second, (used() - began) / count * 1e6


def compare(root: Path) -> None:
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in SIDES}
    for _ in range(ROUNDS):
        for name, make in SIDES.items():
            taken[name].append(measured(make, root))
    print(f"{WORKERS} workers, microseconds a picture, median of {ROUNDS} rounds in turn")
    print(f"    {'':<24} {'1st epoch':>10} {'2nd epoch':>10} {'ratio':>7} {'CPU time':>10} {'ratio':>7}")
    for name, rows in taken.items():
        first, second, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        both = list(zip(rows, taken["opabinia"], strict=True))
        wall_ratio = statistics.median(other[1] / own[1] for other, own in both)
        cpu_ratio = statistics.median(other[2] / own[2] for other, own in both)
        print(f"    {name:<24} {first:10.0f} {second:10.0f} {wall_ratio:7.2f} {cpu:10.0f} {cpu_ratio:7.2f}")
    print("    ratio: how much longer than opabinia without a cache, in the second epoch; in CPU time of both epochs")


# --- memory -----------------------------------------------------------------------------------------------------------


def own_memory() -> float:
    """MB that this process shares with no other one."""
    lines = Path(f"/proc/{os.getpid()}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


def read_all(names: Sequence[bytes], tell: Callable[[float], None]) -> None:
    before, draw = own_memory(), random.Random(0)
    for _ in range(len(names)):
        _ = names[draw.randrange(len(names))]
    tell(own_memory() - before)


def taken_by_worker(names: Sequence[bytes]) -> float:
    """MB that a worker copies while it reads as many names as there are, in any order."""
    fork = get_context("fork")
    heard, told = fork.Pipe()
    worker = fork.Process(target=read_all, args=(names, told.send))
    worker.start()
    found: float = heard.recv()
    worker.join()
    return found


def compare_memory() -> None:
    names = [b"%04d/picture_%08d.jpg" % (number % 1000, number) for number in range(NAMES)]
    print(f"MB that a forked worker has for itself after an epoch of {NAMES:,} file names")
    print(f"    {'opabinia':<24} {taken_by_worker(FileNames(names)):10.0f}")  # type: ignore[arg-type]
    print(f"    {'a list, as torchvision':<24} {taken_by_worker(names):10.0f}")


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        compare(PHOTOGRAPHS if PHOTOGRAPHS.is_dir() else drawn(Path(folder)))
    compare_memory()


if __name__ == "__main__":
    main()
