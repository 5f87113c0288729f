"""Claim: going on in the middle of a shuffled epoch of 10^9 samples, as one of 1,024, takes under 10 ms and 50 MB.

A simulation: nothing is trained, and each part runs in a process of its own, from nothing. What 10^9 parameters and
10^9 samples in shards cost is extrapolated from less. Run: ``python benchmarks/scale.py``, or with names of its parts.
"""

from __future__ import annotations

import io
import pickle
import resource
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from opabinia.contracts import Clock, Sampler
from opabinia.data.loader import training_requests
from opabinia.data.sampling.batches import ConstantPlan, evaluation_rows
from opabinia.data.sampling.permutation import EpochSampler
from opabinia.data.sampling.shard_order import ShardShuffle
from opabinia.data.sources import Shards
from opabinia.runtime.durations import Duration
from opabinia.runtime.storage import CHUNK

SAMPLES = 1_000_000_000
SHARDS = 100_000
WORLD = 1_024
BATCH = 32 * WORLD
EVALUATION_BATCH = 256
PARAMETERS = 1_000_000_000
MEASURED_PARAMETERS = 25_000_000
MEASURED_SAMPLES = 10_000
PICTURE = bytes(4_000)  # not looked at
IMAGE_BYTES = 115_000  # ImageNet's mean


class Sharded:
    """As much of a source as by_shard looks at."""

    shards = np.full(SHARDS, SAMPLES // SHARDS)


def timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def each(work: Callable[[Any], object], arguments: Iterable[Any]) -> float:
    """Seconds a call."""
    given = list(arguments)
    start = perf_counter()
    for argument in given:
        work(argument)
    return (perf_counter() - start) / len(given)


def line(what: str, number: float, unit: str, more: str = "") -> None:
    print(f"  {what:<56} {number:10,.2f} {unit:<4} {more}".rstrip(), flush=True)


# --- seeking ----------------------------------------------------------------------------------------------------------


def first_batch(make: Callable[[], Sampler]) -> None:
    """What a resumed process does before it reads its first sample."""
    sampler = make()
    plan = ConstantPlan(len(sampler), BATCH, Duration(3, "ep"))
    start = plan.epoch_start(1) + plan.steps_per_epoch // 2
    Clock.at(plan, start)
    request = next(iter(training_requests(plan, sampler.order, 0, WORLD)(start)))
    assert (request.row.epoch, len(request.indices)) == (1, BATCH // WORLD)


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
    seek(lambda: ShardShuffle(Sharded(), 1, BATCH))  # type: ignore[arg-type]


# --- bookkeeping ------------------------------------------------------------------------------------------------------


def plan() -> None:
    print(f"\nThe plan of {SAMPLES:,} samples, {BATCH:,} a step, 3 epochs: nothing is stored, each row is computed")
    rows = ConstantPlan(SAMPLES, BATCH, Duration(3, "ep"))
    steps = np.random.default_rng(0).integers(0, rows.total_steps, 10_000).tolist()
    line("a row", each(rows.row, steps) * 1e6, "us", f"of {rows.total_steps:,}")
    line("the clock at a step", each(lambda step: Clock.at(rows, step), steps) * 1e6, "us")
    samplers: dict[str, Sampler] = {"shuffled": EpochSampler(SAMPLES, 1), "by_shard": ShardShuffle(Sharded(), 1, BATCH)}  # type: ignore[arg-type]
    for name, sampler in samplers.items():
        requests = iter(training_requests(rows, sampler.order, 0, WORLD)(rows.steps_per_epoch // 2))
        next(requests)
        line(f"which samples are mine, {name}, a step", each(next, repeat(requests, 2_000)) * 1e6, "us")


def evaluation() -> None:
    import torch

    from opabinia.evaluation.classification.confusion import Confusion
    from opabinia.evaluation.classification.topk import TopK

    print(f"\nAn evaluation of {SAMPLES:,} samples in batches of {EVALUATION_BATCH} on {WORLD:,} processes")
    rows = list(evaluation_rows(SAMPLES, EVALUATION_BATCH, 0, WORLD))
    seconds = timed(lambda: list(evaluation_rows(SAMPLES, EVALUATION_BATCH, 0, WORLD)))
    line("the rows of a process, all of them", seconds * 1e3, "ms", f"{len(rows):,} rows")
    classes, samples = 1_000, 20_000
    predictions = {"logits": torch.rand(samples, classes)}
    batch = {"label": torch.arange(samples) % classes}
    top, confusion = TopK(), Confusion([str(number) for number in range(classes)])
    top.update(predictions, batch)
    confusion.update(predictions, batch)
    line("every process receives: for top1 and top5", len(pickle.dumps(top.state())) * WORLD / 2**20, "MiB")
    cell = len(pickle.dumps(confusion.state())) / len(confusion.state())
    for cells in (20 * classes, classes**2):
        more = f"{classes:,} classes, {cells:,} pairs seen by each; by sum"
        line("for scores by class", cell * cells * WORLD / 2**20, "MiB", more)
    line("for scores of several labels, 1,000 classes", SAMPLES * 1_000 * 5 / 2**40, "TiB", "by sum")


# --- files ------------------------------------------------------------------------------------------------------------


def checkpoint() -> None:
    import torch

    from opabinia.engine.checkpointing.checkpoint import Snapshot, read_checkpoint, write_checkpoint

    print(f"\nA checkpoint of {PARAMETERS:,} parameters, float32")
    kept = {"weights": 1, "with SGD's momentum": 2, "with AdamW": 3, "with AdamW and an average": 4}
    for what, numbers in kept.items():
        line(what, numbers * 4 * PARAMETERS / 1e9, "GB", "by sum")
    model = {f"layer.{number}": torch.rand(MEASURED_PARAMETERS // 25) for number in range(25)}
    moments = {f"{name}.{moment}": model[name] + 1 for name in model for moment in ("exp_avg", "exp_avg_sq")}
    snapshot = Snapshot(1, {"model": model, "optimizer": moments}, {"step": 1})
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder) / "step-00000001"
        written = min(timed(lambda: write_checkpoint(path, snapshot)) for _ in range(3))
        read = min(timed(lambda: read_checkpoint(path)) for _ in range(3))
    times = PARAMETERS / MEASURED_PARAMETERS
    for what, seconds in {"written and flushed": written, "read and checked": read}.items():
        more = f"{seconds * times:,.0f} s at {times:.0f} times the size, extrapolated"
        line(f"{MEASURED_PARAMETERS:,} with AdamW, {what}", seconds, "s", more)


def shards() -> None:
    print(f"\nThe source shards, measured on {MEASURED_SAMPLES:,} samples (a picture and a .cls each)")
    with tempfile.TemporaryDirectory() as folder:
        files = str(written_shard(Path(folder) / "one.tar"))
        scanned = timed(lambda: Shards(files=files, index=Path(folder)))
        hours = f"{scanned / MEASURED_SAMPLES * SAMPLES / 3600:.0f} h at {SAMPLES:,}, extrapolated; once"
        line("looking through, a sample", scanned / MEASURED_SAMPLES * 1e6, "us", hours)
        line("the same when the index is there", timed(lambda: Shards(files=files, index=Path(folder))) * 1e3, "ms")
        (rows,) = Path(folder).glob("*/rows.npy")
        size = rows.stat().st_size / MEASURED_SAMPLES
        line("the index, a sample", size, "B", f"{18 * SAMPLES / 1e9:.0f} GB at {SAMPLES:,}, on the disk")
        source = Shards(files=files, index=Path(folder))
        places = np.random.default_rng(0).integers(0, MEASURED_SAMPLES, 2_000).tolist()
        line("reading the bytes of a picture and its name", each(source._read, places) * 1e6, "us", "in memory already")


def chunks() -> None:
    """With shard_shuffle; each machine fetches what its samples need and keeps it, see runtime/storage.py."""
    print(f"\nTar files in a bucket: images of {IMAGE_BYTES:,} bytes, chunks of {CHUNK:,}, over ten pools of shards")
    positions = np.arange(10 * 16 * SAMPLES // SHARDS)
    samples = ShardShuffle(Sharded(), 1, BATCH).order(1)(positions)  # type: ignore[arg-type]
    shard, first = samples // (SAMPLES // SHARDS), samples % (SAMPLES // SHARDS) * IMAGE_BYTES
    for machines in (1, 8, 64):
        machine = positions % BATCH * machines // BATCH
        needed = [(shard << 32 | byte // CHUNK) * machines + machine for byte in (first, first + IMAGE_BYTES - 1)]
        fetched = len(np.unique(np.concatenate(needed))) / len(positions)
        more = f"{fetched * CHUNK / IMAGE_BYTES:.1f} times their size"
        line(f"chunks fetched for 1,000 images, machines: {machines}", fetched * 1_000, "", more)


def written_shard(path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        for number in range(MEASURED_SAMPLES):
            for kind, content in (("jpg", PICTURE), ("cls", b"0")):
                member = tarfile.TarInfo(f"{number:08d}.{kind}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


PARTS = (seek_shuffled, seek_by_shard, plan, evaluation, checkpoint, shards, chunks)


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
