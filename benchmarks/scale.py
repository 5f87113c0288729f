"""Claim: resuming in the middle of a shuffled epoch of 10^9 samples, as one of 1,024 processes, takes under 10 ms and
50 MB.

A simulation: nothing is trained, and each part runs in a new process. The costs of 10^9 parameters and of 10^9 samples
in shards are extrapolated from smaller ones. Run: ``python benchmarks/scale.py``, or with names of its parts.
"""

from __future__ import annotations

import io
import os
import pickle
import resource
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from multiprocessing import active_children
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from PIL import Image

from opabinia.contracts import Clock, Sample, Sampler, Source, SourceInfo
from opabinia.data.decoding.images import EncodedImage, decode_sample
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan, evaluation_batches
from opabinia.data.sampling.epoch_order import EpochSampler
from opabinia.data.sampling.requests import training_requests
from opabinia.data.sampling.shard_order import shard_shuffle
from opabinia.data.sources import Shards
from opabinia.data.transforms.crops import RandomResizedCrop
from opabinia.data.transforms.instances import RandomHorizontalFlip
from opabinia.runtime.durations import Duration
from opabinia.runtime.local_copies import CHUNK

SAMPLES = 1_000_000_000
SHARDS = 100_000
WORLD = 1_024
BATCH = 32 * WORLD
EVALUATION_BATCH = 256
PARAMETERS = 1_000_000_000
MEASURED_PARAMETERS = 25_000_000
MEASURED_SAMPLES = 10_000
MEASURED_SHARDS = 1_000
MEASURED_LABELS = 10_000_000
RANKS = 512
FEATURES = 256
EVALUATED = 1_000_000
RERANKED = (4_000, 12_000)
IMAGE = bytes(4_000)  # not decoded
IMAGE_BYTES = 115_000  # ImageNet's mean


class Sharded(Source):
    """What a source says that by_shard reads."""

    info = SourceInfo(shards=np.full(SHARDS, SAMPLES // SHARDS))


def timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def each(work: Callable[[Any], object], arguments: Iterable[Any]) -> float:
    """Return the seconds per call."""
    given = list(arguments)
    start = perf_counter()
    for argument in given:
        work(argument)
    return (perf_counter() - start) / len(given)


def line(label: str, number: float, unit: str, more: str = "") -> None:
    print(f"  {label:<56} {number:10,.2f} {unit:<4} {more}".rstrip(), flush=True)


# --- seeking ----------------------------------------------------------------------------------------------------------


def first_batch(make: Callable[[], Sampler]) -> None:
    """Measure the work of a resumed process before it reads its first sample."""
    sampler = make()
    plan = ConstantPlan(len(sampler), BATCH, Duration(3, "ep"))
    start = plan.epoch_start(1) + plan.steps_per_epoch // 2
    Clock.at(plan, start)
    request = next(iter(training_requests(plan, sampler.order, 0, WORLD)(start)))
    assert (request.global_batch.epoch, len(request.indices)) == (1, BATCH // WORLD)


def seek(make: Callable[[], Sampler]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cold = timed(lambda: first_batch(make))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    line("the first time in a process", cold * 1e3, "ms", f"resident memory grows by {grown:.1f} MiB")
    again = min(timed(lambda: first_batch(make)) for _ in range(20))
    tracemalloc.start()
    first_batch(make)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    line("again, the fastest of 20", again * 1e3, "ms", f"{peak:.1f} MiB allocated at most")


def seek_shuffled() -> None:
    print(f"To the middle of epoch 1 of {SAMPLES:,} samples, all shuffled: the batch of process 0 of {WORLD:,}")
    seek(lambda: EpochSampler(SAMPLES, seed=1))


def seek_by_shard() -> None:
    print(f"\nThe same by_shard, {SHARDS:,} shards of {SAMPLES // SHARDS:,} samples")
    seek(lambda: shard_shuffle(Sharded(), 1, BATCH))  # type: ignore[arg-type]


# --- bookkeeping ------------------------------------------------------------------------------------------------------


def plan() -> None:
    print(f"\nThe plan of {SAMPLES:,} samples, {BATCH:,} a step, 3 epochs: global batches are computed, not stored")
    constant = ConstantPlan(SAMPLES, BATCH, Duration(3, "ep"))
    steps = np.random.default_rng(0).integers(0, constant.total_steps, 10_000).tolist()
    line("a global batch", each(constant.global_batch, steps) * 1e6, "us", f"of {constant.total_steps:,}")
    line("the clock at a step", each(lambda step: Clock.at(constant, step), steps) * 1e6, "us")
    by_shard = shard_shuffle(Sharded(), 1, BATCH)  # type: ignore[arg-type]
    samplers: dict[str, Sampler] = {"shuffled": EpochSampler(SAMPLES, 1), "by_shard": by_shard}
    for name, sampler in samplers.items():
        requests = iter(training_requests(constant, sampler.order, 0, WORLD)(constant.steps_per_epoch // 2))
        next(requests)
        line(f"samples of this process, {name}, per step", each(next, repeat(requests, 2_000)) * 1e6, "us")


def evaluation() -> None:
    import torch

    from opabinia.evaluation.classification.confusion import Confusion
    from opabinia.evaluation.classification.topk import TopK
    from opabinia.evaluation.representation.feature_bank import EmbeddingEvaluator

    print(f"\nAn evaluation of {SAMPLES:,} samples in batches of {EVALUATION_BATCH} on {WORLD:,} processes")
    global_batches = list(evaluation_batches(SAMPLES, EVALUATION_BATCH, 0, WORLD))
    seconds = timed(lambda: list(evaluation_batches(SAMPLES, EVALUATION_BATCH, 0, WORLD)))
    line("the global batches of a process, all of them", seconds * 1e3, "ms", f"{len(global_batches):,} of them")
    classes, samples = 1_000, 20_000
    predictions = {"logits": torch.rand(samples, classes)}
    batch = {"label": torch.arange(samples) % classes}
    top, confusion = TopK(), Confusion([str(number) for number in range(classes)])
    top.update(predictions, batch)
    confusion.update(predictions, batch)
    line("rank 0 receives: for top1 and top5", len(pickle.dumps(top.state())) * WORLD / 2**20, "MiB")
    cell = len(pickle.dumps(confusion.state())) / len(confusion.state())
    for cells in (20 * classes, classes**2):
        more = f"{classes:,} classes, {cells:,} pairs seen by each; by sum"
        line("for scores by class", cell * cells * WORLD / 2**20, "MiB", more)
    line("for scores of several labels, 1,000 classes", SAMPLES * 1_000 * 5 / 2**40, "TiB", "by sum")
    retrieval = EmbeddingEvaluator()
    for first in range(0, samples, EVALUATION_BATCH):
        ids = [f"images/{number:09d}.jpg" for number in range(first, first + EVALUATION_BATCH)]
        labels = {name: torch.arange(EVALUATION_BATCH) for name in ("label", "camera", "query")}
        retrieval.update({"embedding": torch.rand(EVALUATION_BATCH, FEATURES)}, {"id": ids, **labels})
    image = len(pickle.dumps(retrieval.state())) / len(retrieval.state()) / EVALUATION_BATCH
    gigabytes = f"{image * EVALUATED / 1e9:.1f} GB for {EVALUATED:,}"
    line(f"for retrieval, an image with {FEATURES} numbers", image, "B", gigabytes)


def reranking() -> None:
    import torch

    from opabinia.evaluation.retrieval.rerank import k_reciprocal

    print(f"\nRe-ranking, {FEATURES} numbers an image, a query to nine in the gallery")
    torch.set_num_threads(1)
    peaks, seconds = [], []
    for size in RERANKED:
        features = torch.randn(size // 15, FEATURES).repeat_interleave(15, 0)
        features += torch.randn(len(features), FEATURES)
        gallery, queries = features.split(len(features) * 9 // 10)
        began = process_time()
        k_reciprocal(queries, gallery)
        seconds.append(process_time() - began)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    image = (peaks[1] - peaks[0]) / (RERANKED[1] - RERANKED[0])
    line("memory an image, with its features", image, "B", f"{image * EVALUATED / 1e9:.1f} GB for {EVALUATED:,}")
    pair = (seconds[1] - seconds[0]) / (RERANKED[1] ** 2 - RERANKED[0] ** 2)
    hours = f"{pair * EVALUATED**2 / 3600:,.1f} h for {EVALUATED:,}, extrapolated"
    line("CPU time of lists and weights, a pair of images", pair * 1e9, "ns", hours)


# --- the loader -------------------------------------------------------------------------------------------------------


class Images(Sharded):
    """The same image for every sample."""

    def __init__(self) -> None:
        content = io.BytesIO()
        coarse = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((500, 375)).save(content, "JPEG", quality=90)
        self._content = content.getvalue()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        return decode_sample(self.encoded(index))

    def encoded(self, index: int) -> Sample:
        return {"image": EncodedImage(self._content, "image", 3), "label": 0, "id": str(index)}


def loader() -> None:
    print(f"\nThe loader of one of {RANKS} processes, {BATCH // RANKS} of {SAMPLES:,} images a step, by_shard")
    source = Images()
    transforms = [RandomResizedCrop(size=224), RandomHorizontalFlip(p=0.5)]
    for workers in (1, 4):
        began = perf_counter()
        sampler = shard_shuffle(source, 1, BATCH)  # type: ignore[arg-type]
        constant = ConstantPlan(SAMPLES, BATCH, Duration(3, "ep"))
        requests = training_requests(constant, sampler.order, 0, RANKS)
        loader = Loader(BatchReader(source, transforms, reduced=True), requests, num_workers=workers)
        batches = loader.iterate(constant.steps_per_epoch // 2)
        next(batches)
        seconds = perf_counter() - began
        last_batches = [next(batches) for _ in range(4 * workers)][-2:]
        own = max(private_memory(worker.pid) for worker in active_children())  # type: ignore[arg-type]
        line(f"until the first batch in the middle of an epoch, workers: {workers}", seconds * 1e3, "ms")
        line("a worker's own memory", own / 2**20, "MiB")
        batch = sum(value.nbytes for value in last_batches[0][1].values() if hasattr(value, "nbytes"))
        line("batches of a worker, shared with its process", 4 * batch / 2**20, "MiB", "4 at most, by sum")
        loader.close()


def private_memory(pid: int) -> int:
    """Return the bytes of a process that it shares with no other process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(text.split()[1]) for text in lines if text.startswith("Private_")) * 1024


def startup() -> None:
    """Measure the start of a process of the run without imports, model and checkpoint."""
    from opabinia.training.samples import _check_labels

    print(f"\nStart-up of a process, {SAMPLES:,} samples in {SHARDS:,} shards whose index exists")
    with tempfile.TemporaryDirectory() as folder:
        shard_path = written_shard(Path(folder) / "shard.tar", 10)
        for number in range(MEASURED_SHARDS):
            os.link(shard_path, Path(folder) / f"{number:06d}.tar")
        open_shards = partial(Shards, files=f"{folder}/0*.tar", index_dir=Path(folder))
        open_shards()
        shard = min(timed(open_shards) for _ in range(5)) / MEASURED_SHARDS
    line("opening the source, a shard", shard * 1e6, "us", f"{shard * SHARDS:.1f} s for {SHARDS:,}")
    source = Sharded()
    labels = np.zeros(MEASURED_LABELS, [("label", "<i4"), ("more", "V14")])["label"]
    source.info = SourceInfo(classes=("a", "b"), labels=labels)
    label = min(timed(lambda: _check_labels(source)) for _ in range(3)) / MEASURED_LABELS
    line("checking the labels, a sample", label * 1e9, "ns", f"{label * SAMPLES:.0f} s for {SAMPLES:,}, extrapolated")
    tracemalloc.start()
    _check_labels(source)
    peak = tracemalloc.get_traced_memory()[1] / MEASURED_LABELS
    line("memory for it, a sample", peak, "B", f"{peak * SAMPLES / 1e9:.0f} GB for {SAMPLES:,}")


# --- files ------------------------------------------------------------------------------------------------------------


def checkpoint() -> None:
    import torch

    from opabinia.engine.checkpointing.checkpoint import Snapshot, read_checkpoint, write_checkpoint

    print(f"\nA checkpoint of {PARAMETERS:,} parameters, float32")
    copies = {"weights": 1, "with SGD's momentum": 2, "with AdamW": 3, "with AdamW and an average": 4}
    for name, values_per_weight in copies.items():
        line(name, values_per_weight * 4 * PARAMETERS / 1e9, "GB", "by sum")
    model = {f"layer.{number}": torch.rand(MEASURED_PARAMETERS // 25) for number in range(25)}
    moments = {f"{name}.{moment}": model[name] + 1 for name in model for moment in ("exp_avg", "exp_avg_sq")}
    snapshot = Snapshot(1, {"model": model, "optimizer": moments}, {"step": 1})
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "step-00000001"
        written = min(timed(lambda: write_checkpoint(path, snapshot)) for _ in range(3))
        read = min(timed(lambda: read_checkpoint(path)) for _ in range(3))
    times = PARAMETERS / MEASURED_PARAMETERS
    for action, seconds in {"written and flushed": written, "read and checked": read}.items():
        more = f"{seconds * times:,.0f} s at {times:.0f} times the size, extrapolated"
        line(f"{MEASURED_PARAMETERS:,} with AdamW, {action}", seconds, "s", more)


def shards() -> None:
    print(f"\nThe source shards, measured on {MEASURED_SAMPLES:,} samples (an image and a .cls each)")
    with tempfile.TemporaryDirectory() as folder:
        files = str(written_shard(Path(folder) / "shard.tar"))
        scanned = timed(lambda: Shards(files=files, index_dir=Path(folder)))
        hours = f"{scanned / MEASURED_SAMPLES * SAMPLES / 3600:.0f} h at {SAMPLES:,}, extrapolated; once"
        line("looking through, a sample", scanned / MEASURED_SAMPLES * 1e6, "us", hours)
        line("the same when the index is there", timed(lambda: Shards(files=files, index_dir=Path(folder))) * 1e3, "ms")
        (rows,) = Path(folder).glob("*/rows.npy")
        size = rows.stat().st_size / MEASURED_SAMPLES
        line("the index, a sample", size, "B", f"{18 * SAMPLES / 1e9:.0f} GB at {SAMPLES:,}, on the disk")
        source = Shards(files=files, index_dir=Path(folder))
        places = np.random.default_rng(0).integers(0, MEASURED_SAMPLES, 2_000).tolist()
        line("reading the bytes of an image and its name", each(source._read, places) * 1e6, "us", "in memory already")


def chunks() -> None:
    """With shard_shuffle; each machine fetches and caches the shards of its samples, see runtime/local_copies.py."""
    print(f"\nTar files in a bucket: images of {IMAGE_BYTES:,} bytes, chunks of {CHUNK:,}, over ten pools of shards")
    positions = np.arange(10 * 16 * SAMPLES // SHARDS)
    samples = shard_shuffle(Sharded(), 1, BATCH).order(1)(positions)  # type: ignore[arg-type]
    shard, first = samples // (SAMPLES // SHARDS), samples % (SAMPLES // SHARDS) * IMAGE_BYTES
    for machines in (1, 8, 64):
        machine = positions % BATCH * machines // BATCH
        needed = [(shard << 32 | byte // CHUNK) * machines + machine for byte in (first, first + IMAGE_BYTES - 1)]
        fetched = len(np.unique(np.concatenate(needed))) / len(positions)
        more = f"{fetched * CHUNK / IMAGE_BYTES:.1f} times their size"
        line(f"chunks fetched for 1,000 images, machines: {machines}", fetched * 1_000, "", more)


def written_shard(path: Path, samples: int = MEASURED_SAMPLES) -> Path:
    with tarfile.open(path, "w") as tar:
        for number in range(samples):
            for kind, content in (("jpg", IMAGE), ("cls", b"0")):
                member = tarfile.TarInfo(f"{number:08d}.{kind}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


PARTS = (seek_shuffled, seek_by_shard, plan, loader, startup, evaluation, reranking, checkpoint, shards, chunks)


def main() -> None:
    names = {part.__name__: part for part in PARTS}
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            names[name]()
        return
    for name in names:
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
