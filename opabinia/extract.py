"""What the extract command does: features of a data set as plain files, which vector databases and NumPy read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.lib import format as npy_format
from numpy.typing import NDArray
from torch import Tensor

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.errors import listing, nearest
from opabinia.contracts import Batch, Loader, Task
from opabinia.data.loader import DataError
from opabinia.engine.evaluate import to_device
from opabinia.inspect import Layer, capture
from opabinia.launch import parts_of
from opabinia.loading import chosen_checkpoint, load, resolve, validation_sets
from opabinia.pieces import make_validation
from opabinia.predictor import Predictor
from opabinia.runtime.device import autocast
from opabinia.runtime.files import folder_aside, told
from opabinia.runtime.log import log, logging_to

Format = Literal["npy", "parquet"]

EMBEDDING = "embedding"
TOLD = {"label": "labels", "camera": "cameras", "view": "views", "query": "queries"}
"""What is written of a sample beside features and id, where its data tells it, and the name it is written under."""

ABOUT = "about.json"


def extract(
    folder: Path,
    out: Path | None = None,
    *,
    split: str = "val",
    layers: Sequence[str] = (),
    form: Format = "npy",
    checkpoint: str = "best",
    device: str | None = None,
) -> Path:
    """Write features of a data set of a run, each sample once, in the order of its source.

    Samples go through the transforms of the validation data, whichever set they are of. What is written, a row for each
    of N samples: ``features.npy`` (float32, N x D), or with ``layers`` a file for each, named after it; ``labels.npy``
    (int64, N; float32, N x K, of several labels) and, of identities, ``cameras.npy``, ``views.npy``, ``queries.npy``;
    ``ids.json``. As parquet these are the columns of one ``features.parquet``, features being lists of fixed length.
    ``about.json`` says of which run and checkpoint they are. Memory does not grow with N, and the folder appears when
    all is in it.

    Args:
        folder: the run folder.
        out: the folder to write; ``features/SPLIT`` in the run folder when not given. What was extracted there before
            is replaced.
        split: ``train``, or the prefix of a validation set.
        layers: names of modules, whose outputs while the task predicts are flattened to one row a sample, and
            ``embedding``; only that one when not given.
        form: of the files.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: there is no such run, checkpoint, set or layer; or ``out`` holds something else.
        DataError: a sample cannot be read, or its features are not finite; nothing is written.
    """
    path = chosen_checkpoint(folder, checkpoint)
    out = out or folder / "features" / split
    refuse_other_folders(out)
    resolved = only(resolve(folder), split)
    with logging_to(None):
        predictor = load(folder, checkpoint=str(path), device=device)
        parts = parts_of(resolved).keywords
        plain, seed = replace(parts["evaluate"], measures=None), resolved.config["seed"] or 0
        multiple = predictor.task.size_multiple
        (data,) = make_validation(parts["data"], plain, seed, predictor.device, predictor.precision, multiple)
        wanted = Layers(predictor.task, layers or [EMBEDDING])
        pieces = rows(predictor, data.loader, wanted, {} if layers else {EMBEDDING: "features"})
        about = {"run": str(folder), "checkpoint": path.name, "split": split, "layers": wanted.names}
        with told(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            with folder_aside(out) as aside:
                count = write(pieces, writer_of(form, aside))
                (aside / ABOUT).write_text(json.dumps({**about, "samples": count}, indent=1) + "\n", "utf-8")
        if data.loader.passed_over:
            log.warning("%d samples could not be read and are left out", data.loader.passed_over)
        log.info("%d samples of %s are in %s", count, split, out)
    return out


def refuse_other_folders(out: Path) -> None:
    """Only what was extracted before is replaced.

    Raises:
        ConfigError: ``out`` is something else.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / ABOUT).is_file()):
        raise ConfigError(Problem("command line", "--out", f"{out} is there already, and holds no features"))


def only(resolved: Resolved, split: str) -> Resolved:
    """The config with one data set alone, read as the validation data is.

    Raises:
        ConfigError: there is no such set.
    """
    data = resolved.config["data"]
    sets = {one["prefix"]: one for one in validation_sets(resolved.config)}
    sources = {"train": data["train"]["source"], **{name: one["source"] for name, one in sets.items()}}
    if split not in sources:
        message, known = f"there is no {split!r}", f"sets: {listing(list(sources))}"
        raise ConfigError(Problem("command line", "--split", message, "", nearest(split, sources), known))
    first: Mapping[str, Any] = next(iter(sets.values()), {"transforms": []})
    stream = {"source": sources[split], "transforms": sets.get(split, first)["transforms"]}
    data = {**data, "train": stream, "val": {**stream, "prefix": split, "every": None}, "sampler": None}
    return replace(resolved, config={**resolved.config, "data": data})


# --- reading --------------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Some samples.

    Attributes:
        columns: arrays with a row for each sample, by name.
        ids: of the samples.
    """

    columns: dict[str, NDArray[Any]]
    ids: list[str]


class Layers:
    """Features of a batch (B x D each), by name.

    Args:
        task: the trained model.
        names: of its modules, or of what its ``features`` gives.
    """

    def __init__(self, task: Task, names: Sequence[str]) -> None:
        self._task, self.names = task, list(names)
        self._modules = {name for name, _ in task.named_modules() if name}
        self._inner = [name for name in names if name in self._modules and name != EMBEDDING]
        self._own = [name for name in names if name not in self._inner]

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Features by name.

        Raises:
            ConfigError: there is no such layer, or the task does not use it.
        """
        found: dict[str, Tensor] = {}
        if self._inner:
            with capture(self._task, self._inner, copy=True) as seen:
                self._task.predict(batch)
            found = {name: self._joined(seen[name], len(batch["id"])) for name in self._inner}
        if self._own:
            try:
                found |= self._task.features(batch, self._own)
            except KeyError as error:
                raise self._unknown(str(error.args[0])) from error
        return {name: found[name] for name in self.names}

    def _joined(self, layer: Layer, samples: int) -> Tensor:
        """All that a layer gives of a sample in one row. Its first call is that of the picture itself; others may be of
        its mirror image."""
        if not layer.calls:
            raise self._unknown(f"the task makes no use of {layer.name!r} when it predicts")
        tensors = list(_tensors(layer.calls[0].output))
        if not tensors or any(one.ndim == 0 or len(one) != samples for one in tensors):
            raise self._unknown(f"{layer.name!r} does not give a row for each sample")
        return torch.cat([one.reshape(samples, -1) for one in tensors], 1)

    def _unknown(self, message: str) -> ConfigError:
        near = next(filter(None, (nearest(name, self._modules) for name in self._own)), "")
        return ConfigError(Problem("command line", "--layers", message, "", near))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    for one in inside:
        yield from _tensors(one)


def rows(predictor: Predictor, loader: Loader, layers: Layers, names: Mapping[str, str]) -> Iterator[Piece]:
    """What is written, batch by batch.

    Args:
        names: of columns, for layers that are called otherwise there.

    Raises:
        ConfigError: see :class:`Layers`.
        DataError: a sample cannot be read, or a feature is not finite.
    """
    try:
        for _, batch in loader.iterate():
            with torch.no_grad(), autocast(predictor.device, predictor.precision):
                found = layers(to_device(batch, predictor.device))
            columns = {names.get(name, name): value.float().cpu() for name, value in found.items()}
            for name, value in columns.items():
                refuse_infinite(name, value, batch["id"])
            columns |= {name: batch[key] for key, name in TOLD.items() if key in batch}
            yield Piece({name: value.numpy() for name, value in columns.items()}, batch["id"])
    finally:
        loader.close()


def refuse_infinite(name: str, features: Tensor, ids: Sequence[str]) -> None:
    """Tell features that are no numbers.

    Raises:
        DataError: there are some; samples are named.
    """
    whole = features.isfinite().all(1).tolist()
    if not all(whole):
        wrong = [sample for sample, right in zip(ids, whole, strict=True) if not right]
        raise DataError(f"{name}: not finite for {listing(wrong, 5)}")


# --- writing --------------------------------------------------------------------------------------------------------


class Writer(Protocol):
    """Takes samples in pieces."""

    def append(self, piece: Piece) -> None: ...

    def close(self) -> None: ...


def write(pieces: Iterable[Piece], writer: Writer) -> int:
    """Write all samples; returns how many there are.

    Raises:
        DataError: there is none.
    """
    count = 0
    try:
        for piece in pieces:
            writer.append(piece)
            count += len(piece.ids)
    finally:
        writer.close()
    if not count:
        raise DataError("there are no samples to extract features of")
    return count


class NpyFiles:
    """A file for each column, as ``np.load`` reads them, also mapped (``mmap_mode="r"``); ids as a JSON list."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, _NpyFile] = {}
        self._ids = (folder / "ids.json").open("w", encoding="utf-8")
        self._before = "[\n"

    def append(self, piece: Piece) -> None:
        for name, values in piece.columns.items():
            if name not in self._columns:
                self._columns[name] = _NpyFile(self._folder / f"{name}.npy", values)
            self._columns[name].append(values)
        for one in piece.ids:
            self._ids.write(self._before + json.dumps(one))
            self._before = ",\n"

    def close(self) -> None:
        self._ids.write("\n]\n")
        self._ids.close()
        for column in self._columns.values():
            column.close()


class _NpyFile:
    """An array of which nobody knows yet how many rows it will have.

    NumPy leaves room in the header for the first number of the shape to grow.
    """

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self._file, self._like, self._rows = path.open("wb"), like[:0], 0
        self._write_header()

    def _write_header(self) -> None:
        header = {**npy_format.header_data_from_array_1_0(self._like), "shape": (self._rows, *self._like.shape[1:])}
        npy_format.write_array_header_1_0(self._file, header)

    def append(self, values: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values).data)
        self._rows += len(values)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.close()


class Parquet:
    """One table; columns of several numbers a row are lists of fixed length."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "features.parquet"
        self._file: Any = None
        self._waiting: list[Piece] = []

    def append(self, piece: Piece) -> None:
        self._waiting.append(piece)
        if sum(len(one.ids) for one in self._waiting) >= _ROW_GROUP:
            self._flush()

    def close(self) -> None:
        if self._waiting:
            self._flush()
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        import pyarrow
        from pyarrow import parquet

        ids = [one for piece in self._waiting for one in piece.ids]
        names = self._waiting[0].columns
        columns = {name: np.concatenate([piece.columns[name] for piece in self._waiting]) for name in names}
        table = pyarrow.table({"ids": ids, **{name: _column(values) for name, values in columns.items()}})
        if self._file is None:
            self._file = parquet.ParquetWriter(self._path, table.schema)
        self._file.write_table(table)
        self._waiting = []


_ROW_GROUP = 8192


def _column(values: NDArray[Any]) -> Any:
    import pyarrow

    if values.ndim == 1:
        return pyarrow.array(values)
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), values.shape[1])


def writer_of(form: Format, folder: Path) -> Writer:
    """What writes files of this form into a folder.

    Raises:
        ConfigError: it needs a library that is not there.
    """
    if form == "npy":
        return NpyFiles(folder)
    if find_spec("pyarrow") is None:
        raise ConfigError(Problem("command line", "--format", "parquet needs pyarrow: pip install 'opabinia[tables]'"))
    return Parquet(folder)
