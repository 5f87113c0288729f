"""The images of a run's report: its data, and the model's predictions. Written into the run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from opabinia.config import ConfigError, Resolved
from opabinia.config.datasets import validation_sets
from opabinia.contracts import DataMismatch, Source
from opabinia.data.check import count_per_class
from opabinia.data.errors import DataError
from opabinia.inference.load import RunModel
from opabinia.inference.report_galleries import (
    THUMBNAIL,
    Gallery,
    GalleryImage,
    training_galleries,
    validation_galleries,
)
from opabinia.inference.splits import open_split, split_sources, task_of
from opabinia.runtime.files import disk_errors, temporary_folder
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.progress import progress_bar
from opabinia.training.run_folder import build_parts, chosen_checkpoint, resolve
from opabinia.training.schedule_preview import chart_panels, schedule_preview
from opabinia.visualization.report.images import FOLDER, INDEX

FORMAT = 5

MAX_COUNTED_CLASSES = 1000

UNREADABLE = (OSError, ValueError, LookupError, DataError)


@dataclass
class ReportContents:
    """The images and tables of a report.

    Attributes:
        galleries: rows of images under headings.
        counts: for each split its name (``set``), and the number of samples in total and of each class.
        batches: charts of batch shapes over time, if they change.
        missing: messages about what could not be read.
    """

    galleries: list[Gallery] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    batches: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def write_images(model: RunModel) -> None:
    """Write images for the report of a run into ``pictures`` in its folder, with an ``index.json``.

    They show the training data, the first validation set, and predictions for some of its samples; of a multi-task run
    those of each task. Data that no longer exists is mentioned in the index. Nothing is done if the images are of the
    same checkpoint and evaluation.

    Raises:
        ConfigError: there is no such run or checkpoint, or it is damaged.
        DiskError: the folder cannot be written.
    """
    run, path = model.run, chosen_checkpoint(model.run, model.checkpoint)
    resolved = resolve(run, model.overrides)
    splits = _splits(resolved)
    details = [run / "eval" / f"{names[-1]}{ema}" / "details.json" for names in splits.values() for ema in ("", "_ema")]
    content = b"".join(file.read_bytes() for file in (path / "state.json", *details) if file.is_file())
    digest = blake2b(content, digest_size=8).hexdigest()
    about = {
        "format": FORMAT,
        "checkpoint": path.name,
        "weights": model.weights,
        "overrides": list(model.overrides),
        "of": digest,
    }
    with suppress(OSError, ValueError):
        index = json.loads((run / FOLDER / INDEX).read_text(encoding="utf-8"))
        if isinstance(index, dict) and about.items() <= index.items():
            return
    contents = ReportContents()
    with logging_to(None), progress_bar("report images", sum(map(len, splits.values())), unit="parts") as bar:
        for task, names in splits.items():
            predictor = replace(model, checkpoint=str(path)).load(task)
            for split in bar.track(names):
                if (source := _open(resolved, split, contents)) is not None:
                    is_data = split not in {section["prefix"] for section in validation_sets(resolved.config)}
                    subject = f"the data of {split}" if is_data else f"images of {split}"
                    galleries = training_galleries if is_data else partial(validation_galleries, run, split)
                    _add_galleries(contents, subject, task, partial(galleries, source, predictor))
        if resolved.config["shapes"] is not None:
            with _report_missing(contents, "batches over time"):
                contents.batches = _batch_charts(resolved)
    _write(run / FOLDER, contents, about)


def _add_galleries(
    contents: ReportContents, subject: str, task: str, choose: Callable[[], Iterable[Callable[[], list[Gallery]]]]
) -> None:
    """Add the galleries that the chosen functions make; an error in one is reported and leaves the others.

    Args:
        contents: gets the galleries.
        subject: what is missing after an error.
        task: name of the task of a multi-task run, else empty.
        choose: returns the functions.
    """
    with _report_missing(contents, subject):
        for make in choose():
            with _report_missing(contents, subject):
                titles = f"{task}: " if task else ""
                contents.galleries += [replace(gallery, title=titles + gallery.title) for gallery in make()]


def _splits(resolved: Resolved) -> dict[str, list[str]]:
    """Return the splits that a report shows, by task of a multi-task run (else empty): its training data, if there is
    some, and the first validation set."""
    sets = {str(section["prefix"]) for section in validation_sets(resolved.config)}
    splits: dict[str, list[str]] = {}
    for name in split_sources(resolved):
        shown = splits.setdefault(task_of(resolved, name), [])
        if name not in sets or not sets.intersection(shown):
            shown.append(name)
    return splits


def _batch_charts(resolved: Resolved) -> dict[str, Any]:
    """Return charts of batch shapes over time, and a note about their savings."""
    parts = build_parts(resolved).keywords
    preview = schedule_preview(parts)
    charts = [{"title": panel.name, "lines": panel.lines} for panel in chart_panels(preview, parts["schedule"])]
    return {"note": preview.savings, "charts": charts}


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
        contents.counts.append({"set": split, "samples": len(source), "of_class": counts})
    return source


@contextmanager
def _report_missing(contents: ReportContents, subject: str) -> Iterator[None]:
    """Record an error inside the block as a message: the rest of the report is still built."""
    try:
        yield
    except (ConfigError, DataMismatch, *UNREADABLE) as error:
        contents.missing.append(f"{subject}: {error}")


def _write(folder: Path, contents: ReportContents, about: Mapping[str, Any]) -> None:
    with disk_errors(folder), temporary_folder(folder) as temporary:
        groups = save_galleries(temporary, contents.galleries)
        index = {**about, "groups": groups, "counts": contents.counts}
        index |= {"batches": contents.batches, "missing": contents.missing}
        (temporary / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    if contents.missing:
        log.warning("%s", "; ".join(contents.missing))


def save_galleries(folder: Path, galleries: Iterable[Gallery]) -> list[dict[str, Any]]:
    """Write the images of galleries into a folder, and return the ``groups`` of its index."""
    names = (f"{number:04d}.webp" for number in range(100_000))
    return [
        {
            "title": gallery.title,
            "note": gallery.note,
            "of_data": gallery.of_data,
            "rows": [
                {"title": row.title, "pictures": [_save(folder / next(names), image) for image in row.images]}
                for row in gallery.rows
            ],
        }
        for gallery in galleries
    ]


def _save(path: Path, item: GalleryImage) -> dict[str, str]:
    """Write an image, tiny ones without loss, and return its entry in the index."""
    size = max(item.image.size)
    item.image.save(path, "WEBP", lossless=size <= THUMBNAIL and size < 90, quality=85)
    return {"file": path.name, "text": item.text} | ({"verdict": item.verdict} if item.verdict else {})
