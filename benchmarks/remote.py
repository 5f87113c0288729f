"""Claim: with a warm cache, data in object storage are read at least 0.95 times as fast as from the local disk.

256 JPEG files (224 x 224 pixels, noise: 40 KB each) as an image folder and as two tar files, in batches of 64 with
RandomResizedCrop to 112 pixels, in this process. "local" and "warm" take turns; medians over the rounds. "cold" is the
first epoch, from an S3 server (moto) in this process that answers after 20 ms: its throughput is that of the
server, but the number of requests per image is that of any. Needs ``pip install 'opabinia[storage]'``. Run:
``python benchmarks/remote.py``.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tarfile
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from opabinia.contracts import Source
from opabinia.data.loader import BatchReader, Loader, training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import epoch_order
from opabinia.data.sources.folder import ImageFolder
from opabinia.data.sources.shards import Shards
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.runtime import storage
from opabinia.runtime.durations import Duration
from tests.faults.s3 import S3Server

IMAGES, BATCH, ROUNDS, LATENCY = 256, 64, 5, 0.02


def write(folder: Path) -> None:
    draw = np.random.default_rng(0)
    with tarfile.open(folder / "a-0.tar", "w") as first, tarfile.open(folder / "a-1.tar", "w") as second:
        for number in range(IMAGES):
            path = folder / "images" / "ab"[number % 2] / f"{number:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (224, 224, 3), dtype=np.uint8)).save(path)
            for suffix, content in (("jpg", path.read_bytes()), ("cls", str(number % 2).encode())):
                member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                member.size = len(content)
                (first, second)[number % 2].addfile(member, io.BytesIO(content))


def seconds_of_epoch(source: Source) -> float:
    """Of all samples once."""
    plan = ConstantPlan(len(source), BATCH, Duration(1, "ep"), drop_last=True)
    order = partial(epoch_order, 0, n=len(source), shuffle=True)
    reader = BatchReader(source, [RandomResizedCrop(size=112)], reduced=True)
    loader = Loader(reader, training_requests(plan, order, rank=0, world=1))
    start = time.perf_counter()
    for _ in loader.iterate(start=0):
        pass
    elapsed = time.perf_counter() - start
    loader.close()
    return elapsed


def image_folder(root: str) -> Source:
    return ImageFolder(root=Path(root) / "images")


def tar_files(root: str) -> Source:
    return Shards(files=f"{root}/a-*.tar")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        root.mkdir()
        write(root)
        server = S3Server()
        os.environ.update(server.environment)
        os.environ.update(OPABINIA_REMOTE_CACHE=f"{folder}/remote", XDG_CACHE_HOME=f"{folder}/cache")
        bucket = server.bucket(root)
        print(f"| {IMAGES} images | local images/s | warm images/s | warm / local | cold images/s | requests / image |")
        print("|---|---|---|---|---|---|")
        for make in (image_folder, tar_files):
            server.reset()
            server.latency = LATENCY
            start = time.perf_counter()
            remote, local = make(storage.local_copy(f"s3://{bucket}")), make(str(root))
            seconds_of_epoch(remote)
            cold, requests = time.perf_counter() - start, len(server.requests)
            server.reset()
            times: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(ROUNDS):
                for is_remote, source in ((False, local), (True, remote)):
                    storage._used = is_remote  # as in a process that uses no remote storage
                    times[is_remote].append(seconds_of_epoch(source))
            assert not server.requests, "a warm epoch reads nothing from the server"
            disk, warm = (IMAGES / statistics.median(values) for values in times.values())
            speeds = f"{disk:.0f} | {warm:.0f} | {warm / disk:.2f} | {IMAGES / cold:.0f}"
            print(f"| {make.__name__} | {speeds} | {requests / IMAGES:.2f} |", flush=True)
        server.stop()


if __name__ == "__main__":
    main()
