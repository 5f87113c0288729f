"""What the extract command does: features of data sets as plain files, which vector databases and NumPy read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
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

from opabinia.config import ConfigError, Problem, Resolved, flatten
from opabinia.config.build import errors_at
from opabinia.config.errors import listing, nearest
from opabinia.contracts import EMBEDDING, Batch, Source, Task
from opabinia.data import Data, ValidationStream
from opabinia.data.decoding.cache import cached
from opabinia.data.loader import DataError, Loader, Reader, Request
from opabinia.data.sampling.batches import evaluation_rows
from opabinia.engine.loop.prefetch import Fed, one_batch_ahead, prefetch, to_host
from opabinia.inference.feature_files import IDS, NpyFiles, Parquet, Piece, Writer, read_pieces
from opabinia.inference.layer_names import Layers
from opabinia.inference.load import load
from opabinia.inference.predictor import Predictor
from opabinia.runtime.device import autocast
from opabinia.runtime.files import disk_errors, exclusive_lock, flush_to_disk, mend, temporary_folder, write_atomic
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.process_group import joined_process_group
from opabinia.runtime.processes import from_rank_zero, gather, is_rank_zero, rank, world_size
from opabinia.training.run_folder import build_parts, chosen_checkpoint, process_group_options, resolve, validation_sets
from opabinia.training.samples import fingerprint

Format = Literal["npy", "parquet"]

FEATURES = "features"
TOLD = {"label": "labels", "camera": "cameras", "view": "views", "query": "queries"}
"""What is written of a sample beside features and id, where its data tells it, and the name it is written under."""

ABOUT = "about.json"
ALL = "all"


def extract(
    folder: Path,
    out: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    splits: Sequence[str] = ("val",),
    layers: Sequence[str] = (),
    form: Format = "npy",
    checkpoint: str = "best",
    device: str | None = None,
) -> list[Path]:
    """Write features of data sets of a run, each sample once, in the order of its source.

    Samples go through the transforms of the validation data, whichever set they are of. What is written of a set, a row
    for each of N samples: ``features.npy`` (float32, N x D), or with ``layers`` a file for each, named after it;
    ``labels.npy`` (int64, N; float32, N x K, of several labels) and, of identities, ``cameras.npy``, ``views.npy``,
    ``queries.npy``; ``ids.json``. As parquet these are the columns of one ``features.parquet``, features being lists of
    fixed length. ``about.json`` says what they are of, how many there are, and how many could not be read.

    Processes take turns at shards of some batches each, which lie beside ``out`` until all are there, in a hidden
    folder, and then become the files above; so memory does not grow with N, a disk holds the features twice at the end,
    and the same call goes on after a kill, on any number of processes.

    Args:
        folder: the run folder.
        out: the folder to write, or of several sets where theirs are; ``features/SET`` in the run folder when not
            given. What was extracted there before is replaced, unless it is the same.
        overrides: ``key=value``.
        splits: ``train``, prefixes of validation sets, or ``all``.
        layers: names of modules of which the task makes use when it predicts (:func:`opabinia.inference.layer_names.modules_meant`);
            their outputs are flattened to one row a sample. ``embedding`` is what the task itself calls so; only that
            one, as ``features``, when not given.
        form: of the files.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Returns:
        The folder of each set.

    Raises:
        ConfigError: there is no such run, checkpoint, set or layer; or ``out`` holds something else.
        DataError: a sample cannot be read, or its features are not finite; what is finished is kept.
        Unfit: a layer is of no use here.
        InUse: another process is writing there.
    """
    path = chosen_checkpoint(folder, checkpoint)
    resolved = resolve(folder, overrides)
    names = chosen_sets(resolved, splits)
    refuse_missing_library(form)
    meet = process_group_options(resolved.config)
    with joined_process_group(**{**meet, "device": device or meet["device"]}), logging_to(None), ExitStack() as held:
        path = from_rank_zero(lambda: path)
        predictor = load(folder, overrides, checkpoint=str(path), device=device)
        features = make_layers(predictor.task, layers)
        about = {"checkpoint": path.name, "digest": _digest(path / "state.json"), "layers": features.modules}
        parent = out or folder / FEATURES
        alone = out is not None and len(names) == 1 and ALL not in splits
        jobs = [make_job(only(resolved, name), predictor, about, parent if alone else parent / name) for name in names]
        left = [job for job in jobs if not fill(job, predictor, features, held, form)]
        # At the end of all: nobody waits while the first process joins what all have written.
        for job in left if is_rank_zero() else ():
            finish(job, folder, form)
        return [job.out for job in jobs]


def refuse_missing_library(form: Format) -> None:
    """Tell at once what would only come out at the end.

    Raises:
        ConfigError: files of this form need a library that is not there.
    """
    if form == "parquet" and find_spec("pyarrow") is None:
        raise ConfigError(Problem("command line", "--format", "parquet needs pyarrow: pip install 'opabinia[tables]'"))


def make_layers(task: Task, names: Sequence[str]) -> Layers:
    """What gives the columns that are asked for.

    Raises:
        ConfigError: there is no such layer, or its file would be that of something else.
    """
    taken = {IDS, FEATURES, *TOLD.values()}
    for name in taken.intersection(names):
        raise ConfigError(Problem("command line", "--layers", f"{name}.npy is the file of something else"))
    return Layers(task, {name: name for name in names} or {FEATURES: EMBEDDING})


def _digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=8).hexdigest()


# --- sets -----------------------------------------------------------------------------------------------------------


def sources_of(resolved: Resolved) -> dict[str, Any]:
    """Sections of the sources of a config, by the name of the set."""
    sets = {one["prefix"]: one["source"] for one in validation_sets(resolved.config)}
    return {"train": resolved.config["data"]["train"]["source"], **sets}


def chosen_sets(resolved: Resolved, splits: Sequence[str]) -> list[str]:
    """Names of the sets that are meant, each once.

    Raises:
        ConfigError: there is no such set, or none is named.
    """
    sources = sources_of(resolved)
    names = list(dict.fromkeys(one for name in splits for one in (sources if name == ALL else [name])))
    for name in names or [""]:
        _refuse_unknown_set(name, list(sources))
    return names


def _refuse_unknown_set(name: str, known: Sequence[str]) -> None:
    if name not in known:
        message, sets = f"there is no {name!r}", f"sets: {listing(known)}"
        raise ConfigError(Problem("command line", "--split", message, "", nearest(name, known), sets))


def only(resolved: Resolved, split: str) -> Resolved:
    """The config with one data set alone, read as the validation data is.

    Raises:
        ConfigError: there is no such set.
    """
    data = resolved.config["data"]
    sources = sources_of(resolved)
    _refuse_unknown_set(split, list(sources))
    sets = {one["prefix"]: one for one in validation_sets(resolved.config)}
    first: Mapping[str, Any] = next(iter(sets.values()), {"transforms": []})
    stream = {"source": sources[split], "transforms": sets.get(split, first)["transforms"]}
    data = {**data, "train": stream, "val": {**stream, "prefix": split, "every": None}, "sampler": None}
    return replace(resolved, config={**resolved.config, "data": data})


# --- one set --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Features of one set to be written.

    Attributes:
        out: the folder where they will be.
        about: what they are of.
        reader: of its samples.
        batch_size: samples in one forward pass.
        workers: that read.
    """

    out: Path
    about: dict[str, Any]
    reader: Reader
    batch_size: int
    workers: int

    @property
    def source(self) -> Source:
        """Its samples."""
        return self.reader.source

    @property
    def shards(self) -> Path:
        """Where they lie until all are there."""
        return self.out.with_name(f".{self.out.name}.shards")

    @property
    def batches(self) -> int:
        """Of all samples."""
        return -(-len(self.source) // self.batch_size)

    @property
    def batches_of_shard(self) -> int:
        """About 1,024 samples, or less where there would be too few shards for many processes to share in.

        The number of processes has no say: others may go on.
        """
        return max(1, min(1024 // self.batch_size, -(-self.batches // 64)))


def make_job(resolved: Resolved, predictor: Predictor, about: Mapping[str, Any], out: Path) -> Job:
    """What is to be done for the only set of a config.

    Args:
        about: what is known of its features already.
        out: the folder to write.
    """
    parts = build_parts(resolved).keywords
    data, evaluate, config = parts["data"], parts["evaluate"], resolved.config
    with errors_at("data"):
        (stream,) = data.validation
    seed = config["seed"] or 0
    reader = Reader(
        *(_kept_decoded(stream, data), stream.transforms),
        seed=seed,
        on_error="leave_out" if data.on_error == "skip" else "raise",
        size_multiple=predictor.task.size_multiple,
    )
    size = evaluate.batch_size or data.batch_size
    more = {
        "split": stream.prefix,
        "data": {key: config["data"]["val"][key] for key in ("source", "transforms")},
        "fingerprint": fingerprint(stream.source),
        "on_error": data.on_error,
        "batch_size": size,
        "task": config["task"],
        "weights": evaluate.weights,
        "seed": seed,
        "precision": predictor.precision,
        "device": predictor.device.type,
    }
    return Job(out, json.loads(json.dumps({**about, **more}, default=str)), reader, size, data.workers)


def _kept_decoded(stream: ValidationStream, data: Data) -> Source:
    """The samples, as an evaluation keeps them; not in memory, since each is read once."""
    if data.cache != "disk" or not hasattr(stream.source, "encoded"):
        return stream.source
    with errors_at("data.cache"):
        return cached(stream.source, data.cache, None, stream.prefix)


def refuse_other_folders(out: Path) -> None:
    """Only what was extracted before is replaced.

    Raises:
        ConfigError: ``out`` is something else.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / ABOUT).is_file()):
        raise ConfigError(Problem("command line", "--out", f"{out} is there already, and holds no features"))


def fill(job: Job, predictor: Predictor, features: Layers, held: ExitStack, form: Format) -> bool:
    """Write the shards that are missing, together with the other processes; whether there was nothing to do.

    Args:
        held: keeps others out until it ends.

    Raises:
        ConfigError: the processes share no disk; or see :func:`refuse_other_folders`.
    """
    kept = from_rank_zero(partial(begin, job, held, form))
    if kept is None:
        return True
    shards = -(-job.batches // job.batches_of_shard)
    left = [number for number in range(shards) if number not in set(kept)]
    written = write_shards(job, predictor, features, left[rank() :: world_size()])
    everybodys = [number for numbers in gather(written) for number in numbers]
    from_rank_zero(partial(_refuse_missing, job, everybodys))
    return False


def begin(job: Job, held: ExitStack, form: Format) -> list[int] | None:
    """The shards that are there already; None: all is done. Those of something else are thrown away.

    Raises:
        ConfigError: see :func:`refuse_other_folders`.
    """
    refuse_other_folders(job.out)
    with disk_errors(job.shards):
        job.shards.mkdir(parents=True, exist_ok=True)
    held.enter_context(exclusive_lock(job.shards))
    if _is_finished(job, form):
        shutil.rmtree(job.shards)
        log.info("%s is finished: nothing to do", job.out)
        return None
    mend(job.shards)
    before = _read(job.shards / ABOUT)
    if before != job.about:
        _throw_away(job, before)
        write_atomic(job.shards / ABOUT, json.dumps(job.about, indent=1))
    found = sorted(int(path.name) for path in _shard_folders(job))
    if found:
        log.info("going on with %s: %d shards of %d batches are there", job.out, len(found), job.batches_of_shard)
    return found


def _throw_away(job: Job, before: Mapping[str, Any]) -> None:
    old, new = flatten(dict(before)), flatten(job.about)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if list(_shard_folders(job)):
        log.warning("what was begun at %s is of something else (%s): beginning anew", job.out, listing(changed, 5))
    for path in job.shards.iterdir():
        if path.is_dir():
            shutil.rmtree(path)


def _is_finished(job: Job, form: Format) -> bool:
    about = _read(job.out / ABOUT)
    if not about or {**about, **job.about, "format": form} != about:
        return False
    files = {name: (job.out / name) for name in about.get("files", {})}
    return all(path.is_file() and path.stat().st_size == about["files"][name] for name, path in files.items())


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _shard_folders(job: Job) -> Iterator[Path]:
    return (path for path in sorted(job.shards.iterdir()) if path.name.isdecimal())


def _shard(job: Job, number: int) -> Path:
    return job.shards / f"{number:08d}"


def _refuse_missing(job: Job, numbers: Iterable[int]) -> None:
    if not all(_shard(job, number).is_dir() for number in numbers):
        message = f"{job.out.parent} is not the same folder for all processes: give one on a disk that they share"
        raise ConfigError(Problem("command line", "--out", message))


# --- shards ---------------------------------------------------------------------------------------------------------


def write_shards(job: Job, predictor: Predictor, features: Layers, numbers: Sequence[int]) -> list[int]:
    """Write these shards; returns those that have a sample.

    Raises:
        DataError: a sample cannot be read, or its features are not finite.
        Unfit: see :class:`Layers`.
    """
    wanted, written = set(numbers), []

    def requests(start: int) -> Iterator[Request]:
        for row in evaluation_rows(len(job.source), job.batch_size, 0, 1):
            if row.step >= start and row.step // job.batches_of_shard in wanted:
                positions = np.arange(row.first, row.first + row.count)
                yield Request(row, positions, positions)

    loader = Loader(
        job.reader, requests, workers=job.workers if wanted else 0, pin_memory=predictor.device.type == "cuda"
    )
    try:
        fed_batches = prefetch(loader, predictor.device)
        for number, batches in groupby(fed_batches, lambda one: one.row.step // job.batches_of_shard):
            place = _shard(job, number)
            with disk_errors(place, "the same command goes on from what is there"), temporary_folder(place) as aside:
                write(pieces(predictor, features, batches), NpyFiles(aside))
            written.append(number)
    finally:
        loader.close()
    return written


def pieces(predictor: Predictor, features: Layers, batches: Iterable[Fed]) -> Iterator[Piece]:
    """What is written of each batch. On CUDA the next one goes through the model meanwhile.

    Raises:
        DataError: a feature is not finite.
        Unfit: see :class:`Layers`.
    """
    launched = (_launched(predictor, features, one) for one in batches)
    for arrived, batch in one_batch_ahead(launched) if predictor.device.type == "cuda" else launched:
        yield _piece({name: value.float() for name, value in arrived().items()}, batch)


def _launched(predictor: Predictor, features: Layers, one: Fed) -> tuple[Callable[[], dict[str, Tensor]], Batch]:
    with torch.inference_mode(), autocast(predictor.device, predictor.precision):
        return to_host(features(one.batch)), one.loaded


def _piece(columns: dict[str, Tensor], batch: Batch) -> Piece:
    for name, value in columns.items():
        refuse_infinite(name, value, batch["id"])
    columns |= {name: batch[key] for key, name in TOLD.items() if key in batch}
    return Piece({name: value.numpy() for name, value in columns.items()}, batch["id"])


def refuse_infinite(name: str, features: Tensor, ids: Sequence[str]) -> None:
    """Tell features that are no numbers.

    Raises:
        DataError: there are some; samples are named.
    """
    whole = features.isfinite().all(1).tolist()
    if not all(whole):
        wrong = [sample for sample, right in zip(ids, whole, strict=True) if not right]
        raise DataError(f"{name}: not finite for {listing(wrong, 5)}")


def write(pieces: Iterable[Piece], writer: Writer) -> int:
    """Write all samples; returns how many there are.

    Raises:
        DataError: there is none.
    """
    count = 0
    try:
        for one in pieces:
            writer.append(one)
            count += len(one.ids)
    finally:
        writer.close()
    if not count:
        raise DataError("there are no samples to extract features of")
    return count


def finish(job: Job, run: Path, form: Format) -> None:
    """Let the shards become the files that people read.

    Raises:
        DataError: there are no samples.
        Unfit: features of some samples have another length.
    """
    whole, replaced = job.shards / "whole", job.shards / "replaced"
    with disk_errors(job.out, "the same command goes on from what is there"):
        with temporary_folder(whole) as aside:
            count = write(
                chain.from_iterable(map(read_pieces, _shard_folders(job))),
                NpyFiles(aside) if form == "npy" else Parquet(aside),
            )
            skipped = len(job.source) - count
            sizes = {path.name: path.stat().st_size for path in sorted(aside.iterdir())}
            about = {"run": str(run), **job.about, "format": form, "samples": count, "skipped": skipped}
            (aside / ABOUT).write_text(json.dumps({**about, "files": sizes}, indent=1) + "\n", "utf-8")
        shutil.rmtree(replaced, ignore_errors=True)
        if job.out.exists():
            job.out.rename(replaced)
        whole.rename(job.out)
        flush_to_disk(job.out.parent)
        shutil.rmtree(job.shards)
    if skipped:
        log.warning("%d samples could not be read and are left out", skipped)
    log.info("%d samples of %s are in %s", count, job.about["split"], job.out)
