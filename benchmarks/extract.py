"""Claim: extraction takes at most 1.05 times a bare loop over the same loader and model, and memory does not grow.

Images are PNG files of noise, 64 x 64; the model is a ResNet-18 with random weights. One side is a script: load the
model of a run, read the same batches with the same workers, call ``features`` and discard the result. The other is
``extract``, from the same run folder to finished files: it checks that features are finite, writes shards, flushes them
to the disk and joins them. Both run in turn in one warm process; the ratio is the median over the rounds, each compared
with the loop of the same round. Target: at most 1.05.

Then the peak memory of processes that extract N and 4 N images with a layer of 16,384 values, compared with the memory
that the features of the other 3 N images would take. ``--quick`` takes few images, to see that it runs. Run:
``python benchmarks/extract.py``.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from PIL import Image

QUICK = "--quick" in sys.argv
IMAGES, ROUNDS = (128, 1) if QUICK else (1024, 7)
LAYER, VALUES = "layer1", 16_384
RECIPE = """
task: {name: classification, backbone: {name: timm, model: resnet18}}
data:
  train:
    source: {name: image_folder, root: ROOT/small}
    transforms: []
  val:
    - {source: {name: image_folder, root: ROOT/small}, transforms: [], prefix: small}
    - {source: {name: image_folder, root: ROOT/large}, transforms: [], prefix: large}
  batch_size: 32
  num_workers: 1
optimizer: {name: sgd, lr: 0.1}
train: {length: 1it, num_threads: 1}
loggers: []
seed: 0
"""


def draw(folder: Path, count: int) -> None:
    random = np.random.default_rng(0)
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
    for number in range(count):
        pixels = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "ab"[number % 2] / f"{number:05d}.png", compress_level=1)


def make_run(root: Path) -> Path:
    from opabinia.training.launch import train

    draw(root / "small", IMAGES)
    draw(root / "large", 4 * IMAGES)
    (root / "resnet.yaml").write_text(RECIPE.replace("ROOT", str(root)))
    return train(str(root / "resnet.yaml"), ["evaluate.every=0it"], out=root / "runs")[0]


def by_hand(run: Path) -> None:
    """Extract features in a plain script, which discards them."""
    from opabinia import load
    from opabinia.data.loader import Loader
    from opabinia.data.reading import BatchReader
    from opabinia.data.sampling.requests import evaluation_requests
    from opabinia.data.sources import ImageFolder

    predictor = load(run)
    source = ImageFolder(root=run.parents[2] / "large")
    loader = Loader(BatchReader(source), evaluation_requests(len(source), 32, 0, 1), num_workers=1)
    with torch.inference_mode():
        for _, batch in loader.iterate():
            predictor.task.features(batch)
    loader.close()


def by_us(run: Path) -> None:
    from opabinia.inference.extract import extract
    from opabinia.inference.load import RunModel

    (out,) = extract(RunModel(run), run / "features" / "large", splits=["large"])
    assert np.load(out / "features.npy", mmap_mode="r").shape == (4 * IMAGES, 512)
    shutil.rmtree(out)


def seconds(action: Callable[[Path], None], run: Path) -> float:
    began = time.perf_counter()
    action(run)
    return time.perf_counter() - began


def peak_memory(run: Path, split: str) -> int:
    """Return the peak memory in bytes of extraction in this process, which has done nothing else."""
    from opabinia.inference.extract import extract
    from opabinia.inference.load import RunModel

    (out,) = extract(RunModel(run), splits=[split], layers=[LAYER])
    assert np.load(out / f"{LAYER}.npy", mmap_mode="r").shape[1] == VALUES
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def memory(run: Path) -> None:
    peaks = {}
    for split in ("small", "large"):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            peaks[split] = process.submit(peak_memory, run, split).result() / 2**20
    features = 3 * IMAGES * VALUES * 4 / 2**20
    print(f"peak memory of the process, {VALUES:,} values per image")
    print(f"  {IMAGES} images {peaks['small']:.0f} MiB, {4 * IMAGES} images {peaks['large']:.0f} MiB")
    print(f"  more {peaks['large'] - peaks['small']:+.0f} MiB; the features of the others take {features:.0f} MiB")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        by_hand(run)
        rounds = [(seconds(by_hand, run), seconds(by_us, run)) for _ in range(ROUNDS)]
        loop, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratios = [ours / loop for loop, ours in rounds]
        ratio = statistics.median(ratios)
        print(f"{4 * IMAGES} images, one thread and one worker, median of {ROUNDS} rounds in turn")
        print(f"  a bare loop {loop:6.2f} s")
        print(f"  extract     {ours:6.2f} s   ratio {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
        memory(run)


if __name__ == "__main__":
    main()
