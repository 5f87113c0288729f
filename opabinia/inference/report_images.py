"""The images of a run's report: its data, and the model's predictions. Written into the run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from opabinia.config import ConfigError, Resolved
from opabinia.contracts import DataMismatch, Source
from opabinia.data.check import count_per_class
from opabinia.data.loader import DataError
from opabinia.inference.load import load
from opabinia.inference.predictor import Predictor
from opabinia.inference.report_galleries import (
    THUMBNAIL,
    Gallery,
    GalleryImage,
    training_samples,
    validation_galleries,
)
from opabinia.inference.splits import open_split
from opabinia.runtime.files import disk_errors, temporary_folder
from opabinia.runtime.log import log, logging_to
from opabinia.training.run_folder import build_parts, chosen_checkpoint, resolve, validation_sets
from opabinia.training.schedule_preview import chart_panels, schedule_preview
from opabinia.visualization.report.images import FOLDER, INDEX

FORMAT = 4

MAX_COUNTED_CLASSES = 1000

UNREADABLE = (OSError, ValueError, DataError)

T = TypeVar("T")


@dataclass
class ReportContents:
    """The images and tables of a report.

    Attributes:
        galleries: of images.
        counts: number of samples of each class, by split.
        batches: charts of batch shapes over time, if they change.
        missing: messages about what could not be read.
    """

    galleries: list[Gallery] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    batches: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def gather(run: Path, *, checkpoint: str = "best", device: str | None = None) -> None:
    """Write images for the report of a run into ``pictures`` in its folder, with an ``index.json``.

    They show the training data, the first validation set, and predictions for some of its samples. Data that no longer
    exists is mentioned in the index. Nothing is done if the images are of the same checkpoint and evaluation.

    Args:
        run: the run folder.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: there is no such run or checkpoint, or it is damaged.
        DiskError: the folder cannot be written.
    """
    path = chosen_checkpoint(run, checkpoint)
    resolved = resolve(run)
    split = next((str(section["prefix"]) for section in validation_sets(resolved.config)), None)
    details = run / "eval" / (split or "") / "details.json"
    about = {"format": FORMAT, "checkpoint": path.name, "of": _digest(path / "state.json", details)}
    if _is_up_to_date(run / FOLDER / INDEX, about):
        return
    with logging_to(None):
        predictor = load(run, checkpoint=str(path), device=device)
        contents = _collect(run, resolved, split, predictor)
    _write(run / FOLDER, contents, about)


def _digest(*paths: Path) -> str:
    content = b"".join(path.read_bytes() for path in paths if path.is_file())
    return blake2b(content, digest_size=8).hexdigest()


def _is_up_to_date(path: Path, about: Mapping[str, Any]) -> bool:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(index, dict) and about.items() <= index.items()


def _collect(run: Path, resolved: Resolved, split: str | None, predictor: Predictor) -> ReportContents:
    contents = ReportContents()
    training = _open(resolved, "train", contents)
    if training is not None:
        samples = partial(training_samples, training, predictor.task)
        contents.galleries += _attempt(contents, "the training data", samples) or []
    source = None if split is None else _open(resolved, split, contents)
    if source is not None and split is not None:
        builders = partial(validation_galleries, run, split, source, predictor)
        for build in _attempt(contents, f"images of {split}", builders) or ():
            contents.galleries += _attempt(contents, f"images of {split}", build) or []
    if resolved.config["shapes"] is not None:
        contents.batches = _attempt(contents, "batches over time", partial(_batches_over_time, resolved)) or {}
    return contents


def _open(resolved: Resolved, split: str, contents: ReportContents) -> Source | None:
    """Open a dataset and count its classes; None, with a message, if it does not exist."""
    try:
        source = open_split(resolved, split)
    except (ConfigError, *UNREADABLE) as error:
        first_line = str(error).splitlines()[0]
        contents.missing.append(f"no images of {split}, for its data is not there: {first_line}")
        return None
    counts = count_per_class(source)
    if 0 < len(counts) <= MAX_COUNTED_CLASSES:
        contents.counts[split] = counts
    return source


def _attempt(contents: ReportContents, subject: str, build: Callable[[], T]) -> T | None:
    """Return what ``build`` returns; None, with a message, if it fails: the rest of the report is still built."""
    try:
        return build()
    except (ConfigError, DataMismatch, *UNREADABLE) as error:
        contents.missing.append(f"{subject}: {error}")
        return None


def _batches_over_time(resolved: Resolved) -> dict[str, Any]:
    """Return charts of batch shapes and learning rate over the run."""
    parts = build_parts(resolved).keywords
    preview = schedule_preview(parts)
    charts = [{"title": panel.name, "lines": panel.lines} for panel in chart_panels(preview, parts["schedule"])]
    return {"note": preview.savings, "charts": charts}


def _write(folder: Path, contents: ReportContents, about: Mapping[str, Any]) -> None:
    with disk_errors(folder), temporary_folder(folder) as temporary:
        names = (f"{number:04d}.webp" for number in range(100_000))
        groups = [
            {
                "title": gallery.title,
                "note": gallery.note,
                "of_data": gallery.of_data,
                "rows": [
                    {"title": row.title, "pictures": [_save(temporary / next(names), image) for image in row.images]}
                    for row in gallery.rows
                ],
            }
            for gallery in contents.galleries
        ]
        counts = [{"set": name, "of_class": of_class} for name, of_class in contents.counts.items()]
        index = {**about, "groups": groups, "counts": counts, "batches": contents.batches, "missing": contents.missing}
        (temporary / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    if contents.missing:
        log.warning("%s", "; ".join(contents.missing))


def _save(path: Path, item: GalleryImage) -> dict[str, str]:
    """Write an image, tiny ones without loss, and return its entry in the index."""
    size = max(item.image.size)
    item.image.save(path, "WEBP", lossless=size <= THUMBNAIL and size < 90, quality=85)
    return {"file": path.name, "text": item.text} | ({"verdict": item.verdict} if item.verdict else {})
