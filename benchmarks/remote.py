"""Claim: with a warm cache, data in object storage are read at least 0.95 times as fast as from the local disk.

256 JPEG files (224 x 224 pixels, noise: 40 KB each) as an image folder, as two tar files, and with the boxes of a COCO
file, in batches of 64 in this process, with RandomResizedCrop to 112 pixels or resized to 112 pixels. "local" and
"warm" take turns, and their order does, too; medians over the rounds of images per second of CPU time, and of the ratio
in a round. "cold" is the first epoch, from an S3 server (moto) in this process that answers after 20 ms:
its wall time is that of the server, but the number of requests per image is that of any server. Needs ``pip
install 'opabinia[storage]'``. Run: ``python benchmarks/remote.py``.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from opabinia.contracts import Source, Transform
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.epoch_order import epoch_order
from opabinia.data.sampling.requests import training_requests
from opabinia.data.sources.coco import coco
from opabinia.data.sources.folder import ImageFolder
from opabinia.data.sources.shards import Shards
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.data.transforms.sizes import ResizeShortestEdge
from opabinia.runtime import local_copies
from opabinia.runtime.durations import Duration
from tests.faults.s3 import S3Server

IMAGES, BATCH, ROUNDS, LATENCY = 256, 64, 15, 0.02


def write(folder: Path) -> None:
    draw = np.random.default_rng(0)
    names = [f"{'ab'[number % 2]}/{number:04d}.jpg" for number in range(IMAGES)]
    with tarfile.open(folder / "a-0.tar", "w") as first, tarfile.open(folder / "a-1.tar", "w") as second:
        for number, name in enumerate(names):
            path = folder / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (224, 224, 3), dtype=np.uint8)).save(path)
            for suffix, content in (("jpg", path.read_bytes()), ("cls", str(number % 2).encode())):
                member = tarfile.TarInfo(f"{number:04d}.{suffix}")
                member.size = len(content)
                (first, second)[number % 2].addfile(member, io.BytesIO(content))
    images = [{"id": index, "file_name": name, "width": 224, "height": 224} for index, name in enumerate(names)]
    box = {"category_id": 1, "bbox": [10, 10, 90, 90], "area": 8100, "iscrowd": 0}
    boxes = [{"id": index, "image_id": index, **box} for index in range(IMAGES)]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "square"}]}
    (folder / "boxes.json").write_text(json.dumps(content))


def seconds_of_epoch(source: Source, transform: Transform) -> tuple[float, float]:
    """Read all samples once; return CPU time and wall time."""
    plan = ConstantPlan(len(source), BATCH, Duration(1, "ep"), drop_last=True)
    order = partial(epoch_order, 0, n=len(source), shuffle=True)
    loader = Loader(BatchReader(source, [transform], reduced=True), training_requests(plan, order, rank=0, world=1))
    processor, clock = time.process_time(), time.perf_counter()
    for _ in loader.iterate(start=0):
        pass
    elapsed = time.process_time() - processor, time.perf_counter() - clock
    loader.close()
    return elapsed


def image_folder(root: str) -> Source:
    return ImageFolder(root=Path(root) / "images")


def tar_files(root: str) -> Source:
    return Shards(files=f"{root}/a-*.tar")


def boxes(root: str) -> Source:
    return coco(root=Path(root) / "images", file=Path(root) / "boxes.json")


def measure(server: S3Server, bucket: str, root: str, make: Callable[[str], Source], transform: Transform) -> None:
    """Print a row of the table. For each kind of data the folder is listed again, and nothing of it is cached."""
    os.environ["OPABINIA_REMOTE_CACHE"] = f"{root}-{make.__name__}"
    server.reset()
    server.latency = LATENCY
    start = time.perf_counter()
    remote, local = make(local_copies.local_copy(f"s3://{bucket}")), make(root)
    seconds_of_epoch(remote, transform)
    cold, requests = time.perf_counter() - start, len(server.requests)
    server.reset()
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(ROUNDS):
        for is_remote in (False, True) if number % 2 else (True, False):
            local_copies._used = is_remote  # as in a process that uses no remote storage
            processor, _ = seconds_of_epoch(remote if is_remote else local, transform)
            speeds[is_remote].append(IMAGES / processor)
    assert not server.requests, "a warm epoch reads nothing from the server"
    disk, warm = map(statistics.median, speeds.values())
    ratio = statistics.median(own / other for other, own in zip(*speeds.values(), strict=True))
    columns = f"{disk:.0f} | {warm:.0f} | {ratio:.2f} | {IMAGES / cold:.0f} | {requests / IMAGES:.2f}"
    print(f"| {make.__name__} | {columns} |", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        root.mkdir()
        write(root)
        server = S3Server()
        os.environ.update(server.environment)
        os.environ.update(XDG_CACHE_HOME=f"{folder}/cache")
        bucket = server.bucket(root)
        units = "local images/CPU s | warm images/CPU s | warm / local | cold images/s | requests / image"
        print(f"| {IMAGES} images | {units} |")
        print("|---|---|---|---|---|---|")
        for make in (image_folder, tar_files):
            measure(server, bucket, str(root), make, RandomResizedCrop(size=112))
        measure(server, bucket, str(root), boxes, ResizeShortestEdge(short_edge_length=[112], max_size=112))
        server.stop()


if __name__ == "__main__":
    main()
