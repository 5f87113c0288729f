"""The work of ``opabinia extract``: write features of datasets as NumPy arrays or Parquet tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from importlib.util import find_spec
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypedDict

from opabinia.config import ConfigError, Problem, Resolved, flatten
from opabinia.config.build import errors_at
from opabinia.config.errors import listing
from opabinia.contracts import EMBEDDING, Batch, Sample, Source, Transform
from opabinia.data import Data
from opabinia.data.decoding.cache import with_cache
from opabinia.data.errors import DataError
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sample_keys import object_keys
from opabinia.data.sampling.batches import evaluation_batches
from opabinia.data.sampling.requests import Request
from opabinia.engine.loop.prefetch import PrefetchedBatch, lookahead, prefetch, to_host, with_bar
from opabinia.inference.feature_files import IDS, FeatureRows, NpyFiles, Parquet, read_rows
from opabinia.inference.layer_names import LayerFeatures
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.splits import ALL, AUTO, expand_splits, select_split, task_of
from opabinia.runtime.device import autocast
from opabinia.runtime.files import (
    disk_errors,
    exclusive_lock,
    flush_to_disk,
    remove_leftovers,
    temporary_folder,
)
from opabinia.runtime.json_files import InvalidFile, read_json, write_json
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.process_group import process_group
from opabinia.runtime.processes import all_gather, from_rank_zero, is_rank_zero, rank, world_size
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.text import plural
from opabinia.training.run_folder import build_parts, chosen_checkpoint, process_group_options, resolve

Format = Literal["npy", "parquet"]

FEATURES = "features"
LABEL_FILES = {"label": "labels", "camera": "cameras", "view": "views", "query": "queries"}
"""Sample keys that are written beside features and ids where the data has them, and the names of their files."""

ABOUT = "about.json"
CLASSES = "classes.json"

_RESUMES = "the same command resumes from what is written"


def extract(
    model: RunModel,
    out: Path | None = None,
    *,
    splits: Sequence[str] = (AUTO,),
    layers: Sequence[str] = (),
    form: Format = "npy",
    task: str = "",
) -> list[Path]:
    """Write features of a run's datasets, each sample once in the order of its source, and return their folders.

    All datasets are read with validation transforms. Files have a row for each of N samples: ``features.npy`` (float32,
    N x D), or with ``layers`` a file named after each; ``labels.npy`` (int64, N; float32, N x K, of multi-label data)
    and, of identities, ``cameras.npy``, ``views.npy``, ``queries.npy``; ``ids.json``, such as file names. As Parquet
    these are the columns of one ``features.parquet``, features being lists of fixed length. ``classes.json`` has the
    name of each label, a class or an identity (labels of identities begin at 0 in every dataset); ``about.json``
    describes where they come from and counts samples, also those that could not be read.

    Processes take turns at shards of some batches each, which are kept in a hidden folder beside ``out`` until all are
    complete and are then merged. So memory does not grow with N, the disk holds the features twice at the end, and the
    same call resumes after an interruption, on any number of processes.

    Args:
        model: the model of a run.
        out: the folder to write, or the parent of several; None: ``features/SPLIT`` in the run folder. Earlier features
            there are replaced, unless they are up to date.
        splits: ``train``, prefixes of validation sets, ``all``, or ``auto``: the first validation set, else ``train``.
        layers: names of modules that the task uses in prediction
            (:func:`opabinia.inference.layer_names.resolve_layer_names`); their outputs are flattened to one row per
            sample. ``embedding`` is the task's own; without ``layers`` it is the only one, as ``features``.
        form: format of the files.
        task: the task of a multi-task run whose features are written; empty: for each dataset the task it is for.

    Raises:
        ConfigError: there is no such run, checkpoint, split or layer; or ``out`` holds something else.
        DataError: a sample cannot be read, or its features are not finite; finished shards are kept.
        DataMismatch: a layer cannot be used here.
        FolderInUse: another process is writing there.
    """
    path = chosen_checkpoint(model.run, model.checkpoint)
    resolved = resolve(model.run, model.overrides)
    names = expand_splits(resolved, splits)
    if form == "parquet" and find_spec("pyarrow") is None:
        raise ConfigError(Problem("command line", "--format", "parquet needs pyarrow: pip install 'opabinia[tables]'"))
    options = process_group_options(resolved.config)
    options["device"] = model.device or options["device"]
    with process_group(**options), logging_to(None), ExitStack() as locks:
        path = from_rank_zero(lambda: path)
        for name in {IDS, FEATURES, *LABEL_FILES.values()}.intersection(layers):
            raise ConfigError(Problem("command line", "--layers", f"{name}.npy is the file of something else"))
        columns = {name: name for name in layers} or {FEATURES: EMBEDDING}
        tasks = {name: task or task_of(resolved, name) for name in names}
        chosen = replace(model, checkpoint=str(path))
        predictors = {name: chosen.load(name) for name in dict.fromkeys(tasks.values())}
        digest = blake2b((path / "state.json").read_bytes(), digest_size=8).hexdigest()
        about = {"checkpoint": path.name, "digest": digest} | ({"of_task": task} if task else {})
        parent = out or model.run / FEATURES
        is_single = out is not None and len(names) == 1 and ALL not in splits
        targets = [parent] if is_single else [parent / name for name in names]
        jobs = [
            build_job(select_split(resolved, name), predictors[tasks[name]], columns, about, target)
            for name, target in zip(names, targets, strict=True)
        ]
        unfinished = [job for job in jobs if not write_missing(job, locks, form)]
        # At the end of all: no process waits while the first one merges the shards.
        for job in unfinished if is_rank_zero() else ():
            merge(job, model.run, form)
        return targets


# --- one dataset ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExtractJob:
    """Features of one dataset to be written.

    Attributes:
        out: the folder of the final files.
        about: description of the features; if it changes they are recomputed.
        predictor: the model.
        features: computes features of its layers.
        reader: reads the samples.
        batch_size: number of samples in one forward pass.
        workers: number of loader processes.
    """

    out: Path
    about: dict[str, Any]
    predictor: Predictor
    features: LayerFeatures
    reader: BatchReader
    batch_size: int
    workers: int

    @property
    def shards(self) -> Path:
        """The hidden folder of the shards."""
        return self.out.with_name(f".{self.out.name}.shards")

    @property
    def batches(self) -> int:
        """Number of batches of all samples."""
        return -(-len(self.reader.source) // self.batch_size)

    @property
    def batches_per_shard(self) -> int:
        """About 1,024 samples, or fewer if many processes would otherwise get too few shards.

        It does not depend on the number of processes, which may change when the command resumes.
        """
        return max(1, min(1024 // self.batch_size, -(-self.batches // 64)))

    def shard(self, number: int) -> Path:
        """Return the folder of a shard."""
        return self.shards / f"{number:08d}"

    def shard_folders(self) -> Iterator[Path]:
        """Yield the folders of finished shards."""
        return (path for path in sorted(self.shards.iterdir()) if path.name.isdecimal())


def build_job(
    resolved: Resolved, predictor: Predictor, columns: Mapping[str, str], about: Mapping[str, Any], out: Path
) -> ExtractJob:
    """Return the job for the only dataset of a config.

    Args:
        resolved: see :func:`opabinia.inference.splits.select_split`.
        predictor: the model.
        columns: see :class:`opabinia.inference.layer_names.LayerFeatures`.
        about: description of the model.
        out: the folder to write.
    """
    features = LayerFeatures(predictor.task, columns)
    parts = build_parts(resolved).keywords
    data, evaluate, config = parts["data"], parts["evaluate"], resolved.config
    with errors_at("data"):
        (stream,) = data.validation
    source, seed = stream.source, config["seed"] or 0
    # A memory cache is useless here: each sample is read once.
    if data.cache == "disk" and source.info.encoded:
        with errors_at("data.cache"):
            source = with_cache(source, data.cache, None, stream.prefix)
    reader = sample_reader(predictor, data, source, stream.transforms, seed)
    batch_size = evaluate.batch_size or data.batch_size
    described = {
        **about,
        "layers": features.modules,
        "split": stream.prefix,
        "data": {key: config["data"]["val"][key] for key in ("source", "transforms")},
        "fingerprint": stream.source.fingerprint(),
        "on_error": data.on_error,
        "batch_size": batch_size,
        "task": config["task"],
        "weights": predictor.weights,
        "seed": seed,
        "precision": predictor.precision,
        "device": predictor.device.type,
    }
    as_read = json.loads(json.dumps(described, default=str))
    return ExtractJob(out, as_read, predictor, features, reader, batch_size, data.num_workers)


def write_missing(job: ExtractJob, locks: ExitStack, form: Format) -> bool:
    """Write the missing shards together with the other processes; return whether everything was finished before.

    Args:
        job: the dataset.
        locks: keeps other commands out until it is closed.
        form: format of the final files.

    Raises:
        ConfigError: the processes do not share a disk; or see :func:`prepare_shards`.
    """
    finished = from_rank_zero(partial(prepare_shards, job, locks, form))
    if finished is None:
        return True
    missing = sorted(set(range(-(-job.batches // job.batches_per_shard))) - set(finished))
    written = all_gather(write_shards(job, missing[rank() :: world_size()]))
    from_rank_zero(partial(_check_shared_disk, job, chain.from_iterable(written)))
    return False


def prepare_shards(job: ExtractJob, locks: ExitStack, form: Format) -> list[int] | None:
    """Lock the folder of shards and return the finished ones; None: all files are up to date. Outdated shards are
    deleted.

    Raises:
        ConfigError: ``out`` holds something other than features.
    """
    out = job.out
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / ABOUT).is_file()):
        raise ConfigError(Problem("command line", "--out", f"{out} exists already, and holds no features"))
    with disk_errors(job.shards):
        job.shards.mkdir(parents=True, exist_ok=True)
    locks.enter_context(exclusive_lock(job.shards))
    if _is_up_to_date(job, form):
        shutil.rmtree(job.shards)
        log.info("%s is finished: nothing to do", out)
        return None
    remove_leftovers(job.shards)
    before = _read_about(job.shards)
    if before != job.about:
        if any(job.shard_folders()):
            old, new = flatten(before), flatten(job.about)
            changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
            log.warning("the unfinished features at %s are outdated (%s): restarting", out, listing(changed, 5))
        for path in job.shards.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        write_json(job.shards / ABOUT, job.about)
    finished = sorted(int(path.name) for path in job.shard_folders())
    if finished:
        log.info("resuming %s: %d shards of %d batches are finished", out, len(finished), job.batches_per_shard)
    return finished


def _is_up_to_date(job: ExtractJob, form: Format) -> bool:
    about = _read_about(job.out)
    if not about or {**about, **job.about, "format": form} != about:
        return False
    files = [(job.out / name, size) for name, size in about.get("files", {}).items()]
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


class _About(TypedDict, total=False):
    files: dict[str, int]


def _read_about(folder: Path) -> Mapping[str, Any]:
    """Return the description of features; empty, so that they are computed again, if it is missing or damaged."""
    try:
        return read_json(folder / ABOUT, _About)
    except InvalidFile:
        return {}


def _check_shared_disk(job: ExtractJob, numbers: Iterable[int]) -> None:
    if not all(job.shard(number).is_dir() for number in numbers):
        message = f"{job.out.parent} is not the same folder on all processes: give one on a shared disk"
        raise ConfigError(Problem("command line", "--out", message))


def sample_reader(
    predictor: Predictor, data: Data, source: Source, transforms: Sequence[Transform], seed: int
) -> BatchReader:
    """Return what reads samples for a model in batches, as in an evaluation of a run with this section ``data``."""
    multiple = predictor.task.size_multiple
    return BatchReader(
        source,
        transforms if multiple else [*transforms, without_objects],
        seed=seed,
        on_error="skip" if data.on_error == "skip" else "raise",
        size_multiple=multiple,
    )


def without_objects(sample: Sample) -> Sample:
    """Return a sample without annotations of objects, which only tasks of padded images collate: another task of a
    multi-task run may have them."""
    return {key: value for key, value in sample.items() if key not in object_keys(sample)}


# --- shards ---------------------------------------------------------------------------------------------------------


def write_shards(job: ExtractJob, numbers: Sequence[int]) -> list[int]:
    """Write these shards and return those that have a sample.

    Raises:
        DataError: a sample cannot be read, or its features are not finite.
        DataMismatch: see :class:`opabinia.inference.layer_names.LayerFeatures`.
    """
    requested, written, device = set(numbers), [], job.predictor.device

    def requests(start: int) -> Iterator[Request]:
        for global_batch in evaluation_batches(len(job.reader.source), job.batch_size, 0, 1):
            if global_batch.step >= start and global_batch.step // job.batches_per_shard in requested:
                positions = np.arange(global_batch.first, global_batch.first + global_batch.count)
                yield Request(global_batch, positions, positions)

    workers = job.workers if requested else 0
    samples, per_shard = len(job.reader.source), job.batches_per_shard * job.batch_size
    before = numbers[0] * per_shard if numbers else samples
    with (
        closing(Loader(job.reader, requests, num_workers=workers, pin_memory=device.type == "cuda")) as loader,
        progress_bar(f"extract {job.about['split']}", samples, completed=before) as bar,
    ):
        loaded = with_bar(prefetch(loader, device), bar)
        for number, batches in groupby(loaded, lambda batch: batch.global_batch.step // job.batches_per_shard):
            path = job.shard(number)
            with disk_errors(path, _RESUMES), temporary_folder(path) as temporary:
                write_rows(compute_rows(job, batches), NpyFiles(temporary))
            written.append(number)
    return written


def compute_rows(job: ExtractJob, batches: Iterable[PrefetchedBatch]) -> Iterator[FeatureRows]:
    """Yield the features of each batch. On CUDA the next batch is already in the model meanwhile.

    Raises:
        DataError: a feature is not finite; the samples are named.
        DataMismatch: see :class:`opabinia.inference.layer_names.LayerFeatures`.
    """
    device = job.predictor.device

    def launch(batch: PrefetchedBatch) -> tuple[Callable[[], dict[str, Tensor]], Batch]:
        with torch.inference_mode(), autocast(device, job.predictor.precision):
            return to_host(job.features(batch.batch)), batch.loaded

    launched = map(launch, batches)
    for arrived, batch in lookahead(launched) if device.type == "cuda" else launched:
        columns = {name: value.float() for name, value in arrived().items()}
        for name, value in columns.items():
            finite = value.isfinite().all(1).tolist()
            if not all(finite):
                wrong = [sample_id for sample_id, valid in zip(batch["id"], finite, strict=True) if not valid]
                raise DataError(f"{name}: not finite for {listing(wrong, 5)}")
        columns |= {name: batch[key] for key, name in LABEL_FILES.items() if key in batch}
        yield FeatureRows({name: value.numpy() for name, value in columns.items()}, batch["id"])


def write_rows(rows: Iterable[FeatureRows], writer: NpyFiles | Parquet) -> int:
    """Write all samples and return their number.

    Raises:
        DataError: there are none.
    """
    count = 0
    with closing(writer):
        for batch in rows:
            writer.append(batch)
            count += len(batch.ids)
    if not count:
        raise DataError("there are no samples to extract features of")
    return count


def merge(job: ExtractJob, run: Path, form: Format) -> None:
    """Merge the shards into the final files.

    Raises:
        DataError: there are no samples.
        DataMismatch: features of some samples have another length.
    """
    merged, replaced = job.shards / "whole", job.shards / "replaced"
    with disk_errors(job.out, _RESUMES):
        with temporary_folder(merged) as temporary:
            count = write_rows(
                chain.from_iterable(map(read_rows, job.shard_folders())),
                NpyFiles(temporary) if form == "npy" else Parquet(temporary),
            )
            skipped = len(job.reader.source) - count
            if classes := list(job.reader.source.classes):
                (temporary / CLASSES).write_text(json.dumps(classes, indent=0) + "\n", "utf-8")
            sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
            about = {"run": str(run), **job.about, "format": form, "samples": count, "skipped": skipped}
            (temporary / ABOUT).write_text(json.dumps({**about, "files": sizes}, indent=1) + "\n", "utf-8")
        shutil.rmtree(replaced, ignore_errors=True)
        if job.out.exists():
            job.out.rename(replaced)
        merged.rename(job.out)
        flush_to_disk(job.out.parent)
        shutil.rmtree(job.shards)
    if skipped:
        log.warning("%s could not be read: skipped", plural(skipped, "sample"))
    log.info("%s of %s in %s", plural(count, "sample"), job.about["split"], job.out)
