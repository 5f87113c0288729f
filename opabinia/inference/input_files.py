"""Image and video files that inference commands take, and the predictions that they write."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Sample
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.errors import DataError
from opabinia.data.file_search import find_files as find_below
from opabinia.inference.predictor import Predictor
from opabinia.runtime.addresses import is_live, public_name
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.local_copies import fetch_all
from opabinia.runtime.storage import shown_path
from opabinia.runtime.text import one_line
from opabinia.visualization.bands import select_bands

MAX_BATCH_BYTES = 512_000_000
"""A batch ends early when its decoded images have this size: they are kept for drawing."""


MAX_STEM_BYTES = 200
"""A name of a file has at most 255 bytes."""


def find_files(paths: Sequence[Path | str], *, videos: bool = False) -> Iterator[Path]:
    """Yield the files among ``paths``, and all images, or all videos, below the folders among them, sorted; hidden
    files are skipped, links followed.

    Raises:
        ConfigError: a path does not exist, or a folder has no such file; all problems are named.
    """
    extensions: Sequence[str] = EXTENSIONS
    if videos:
        from opabinia.data.decoding.video import EXTENSIONS as VIDEO_EXTENSIONS

        extensions = VIDEO_EXTENSIONS
    problems = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            try:
                files = sorted(path / os.fsdecode(name) for name in find_below(path, suffixes=extensions))
            except ValueError as error:
                problems.append(Problem("command line", "", str(error)))
                continue
            yield from files
            if not files:
                kind = "videos" if videos else "images"
                problems.append(Problem("command line", "", f"{path} has no {kind} ({', '.join(extensions)})"))
        elif path.is_file():
            yield path
        elif is_live(str(given)):
            message = f"{public_name(str(given))}: URLs and cameras are for `predict` with a model of images"
            problems.append(Problem("command line", "", message))
        else:
            problems.append(Problem("command line", "", f"there is no file or folder {path}"))
    if problems:
        raise ConfigError(problems)


class InputBatch(list[tuple[Path, Sample, Sample]]):
    """Files that could be read: path, sample as it was read, and sample after the transforms."""

    @property
    def paths(self) -> list[Path]:
        return [path for path, _, _ in self]

    @property
    def samples(self) -> list[Sample]:
        """The transformed samples."""
        return [sample for _, _, sample in self]


def read_batches(
    predictor: Predictor, paths: Sequence[Path], errors: list[str], bands: Sequence[int] | None = None
) -> Iterator[InputBatch]:
    """Yield batches of the files that can be read; each is decoded once. Messages about the others go to ``errors``.

    Args:
        predictor: reads and transforms them.
        paths: the files.
        errors: gets the messages.
        bands: channels that are drawn, see :func:`opabinia.visualization.bands.select_bands`; None: as by default.
    """
    batch, size = InputBatch(), 0
    for number, path in enumerate(paths):
        if number % predictor.batch_size == 0:
            fetch_all(paths[number : number + predictor.batch_size])
        try:
            original = predictor.read(path)
            sample = predictor.transform(original)
            if bands is not None and "image" in original:
                original = {**original, "image": select_bands(original["image"], bands)}
        except (OSError, ValueError) as error:
            errors.append(str(error).replace(str(path), shown_path(path)))
            continue
        if "frames" in sample:
            original = {**original, "frames": sample["frames"]}
        batch.append((path, original, sample))
        size += original["image"].nbytes if "image" in original else 0
        if len(batch) == predictor.batch_size or size > MAX_BATCH_BYTES:
            yield batch
            batch, size = InputBatch(), 0
    if batch:
        yield batch


def drawing_name(number: int, name: str) -> str:
    """Return the name, without suffix, of the file for a drawing: its number and the name of the image file."""
    stem = one_line(Path(name).stem).encode("utf-8", "backslashreplace")[:MAX_STEM_BYTES].decode("utf-8", "ignore")
    return f"{number:05d}-{stem}"


def write_lines(out: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write ``predictions.jsonl``, a line of JSON each, to the folder ``out``.

    Raises:
        DiskError: it cannot be written.
    """
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / "predictions.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def raise_skipped(errors: Sequence[str], count: int) -> None:
    """Report the files that were skipped.

    Raises:
        DataError: there are some.
    """
    if errors:
        raise DataError(f"{len(errors)} of {count} files were skipped:\n" + "\n".join(errors))
