"""Evaluation of trackers on the validation data of a run: HOTA and other scores, tables for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from opabinia.config import ConfigError, Problem, Resolved
from opabinia.config.datasets import Section, validation_sets, with_sets
from opabinia.config.text import describe_source
from opabinia.contracts import DataMismatch, ValidationStream
from opabinia.contracts.tracking import Tracks
from opabinia.engine.checkpointing.checkpoint import Snapshot
from opabinia.evaluation.tracking.scores import SequenceSums, combine, sequence_sums, sequence_switches
from opabinia.inference.load import RunModel
from opabinia.inference.report_images import save_galleries
from opabinia.inference.tracking.kept import CAMERA, DETECTIONS, EMBEDDINGS, KeptVideos, VideoDetections, digest
from opabinia.inference.tracking.pipeline import LOWEST_SCORE, Floats, Pipeline
from opabinia.inference.tracking.switches import draw_switches
from opabinia.models.trackers.sequences import track_sequence
from opabinia.runtime.files import disk_errors, temporary_folder
from opabinia.runtime.json_files import write_json
from opabinia.runtime.log import log, logging_to
from opabinia.runtime.process_group import process_group
from opabinia.runtime.processes import all_gather, is_rank_zero, rank, world_size
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.text import plural
from opabinia.runtime.version import __version__
from opabinia.training.evaluation_data import choose_sets, write_scores
from opabinia.training.run_folder import (
    build_parts,
    chosen_checkpoint,
    process_group_options,
    read_chosen,
    resolve,
)
from opabinia.training.tracked_tasks import detection_tasks
from opabinia.training.tracking import Tracking
from opabinia.training.trained_model import choose_weights
from opabinia.visualization.report.images import FOLDER as PICTURES
from opabinia.visualization.report.images import INDEX

ANNOTATED, MOTION, APPEARANCE = "ground-truth boxes", "motion only", "with re-ID"
"""The rows that are compared: the tracker on annotated boxes, which shows what association alone reaches, and on the
model's detections, without and with embeddings. Annotated boxes have embeddings if there is a model for them."""

FOLDER = "tracking"
"""Folder of kept files in a run folder, and end of the name of an evaluation."""


@dataclass(frozen=True)
class Case:
    """A tracker on some input.

    Attributes:
        name: name of the row in tables.
        tracking: the tracker.
        annotated: it gets the annotated objects, not the detections of the model.
        embeddings: it gets embeddings.
    """

    name: str
    tracking: Tracking
    annotated: bool = False
    embeddings: bool = False


class SequenceResult(NamedTuple):
    """A sequence with its sums by name of the case, and the tracks of the last case."""

    video: VideoDetections
    sums: dict[str, SequenceSums]
    tracks: Tracks


class Results(NamedTuple):
    """The results of cases on a validation set.

    Attributes:
        tables: those of :func:`opabinia.evaluation.tracking.scores.combine`, by name of the case.
        sequences: results by sequence.
    """

    tables: dict[str, dict[str, Any]]
    sequences: dict[str, SequenceResult]

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Scores by case, averaged over classes."""
        return {name: tables["class_averaged"] for name, tables in self.tables.items()}


@dataclass(frozen=True)
class TrackedSet:
    """A validation set with tracks.

    Attributes:
        name: name of its evaluation, such as ``val_tracking``.
        about: what was evaluated, for ``scores.json``.
        step: step of the checkpoint.
        videos: its frames and detections.
    """

    name: str
    about: Mapping[str, Any]
    step: int
    videos: KeptVideos

    @property
    def has_embeddings(self) -> bool:
        """Whether there is a model for embeddings."""
        return EMBEDDINGS in self.videos.names

    def cases(self, tracking: Tracking) -> list[Case]:
        """Return the rows that are compared, the one of interest last."""
        embeddings = self.has_embeddings
        return [
            Case(ANNOTATED, tracking, annotated=True, embeddings=embeddings),
            Case(MOTION, tracking),
            *[Case(APPEARANCE, tracking, embeddings=True)] * embeddings,
        ]

    def evaluate(self, cases: Sequence[Case]) -> Results:
        """Return the results of cases. Ranks take whole sequences in turn; all get all results.

        Raises:
            DataMismatch: frames are missing, or there are no annotated objects.
            DataError: a frame cannot be read.
        """
        names = list(self.videos.samples)
        own = names[rank() :: world_size()]
        self._log_kept(cases)
        with progress_bar(f"track {self.name}", len(own), unit="sequences") as bar:
            tracked = {name: self._track(name, cases) for name in bar.track(own)}
        gathered = {name: result for part in all_gather(tracked) for name, result in part.items()}
        sequences, classes = {name: gathered[name] for name in names}, self.videos.source.classes
        tables = {
            case.name: combine([result.sums[case.name] for result in sequences.values()], classes) for case in cases
        }
        if not any(len(result.video.counted().boxes) for result in sequences.values()):
            raise DataMismatch(f"{self.about['data']}: there are no annotated objects to track")
        return Results(tables, sequences)

    def _track(self, sequence: str, cases: Sequence[Case]) -> SequenceResult:
        video, classes = self.videos.detections(sequence), len(self.videos.source.classes)
        embeddings = self.videos.embeddings(sequence, video) if any(case.embeddings for case in cases) else None
        moves = any(case.tracking.camera_motion for case in cases)
        camera = self.videos.camera(sequence, video) if moves else None
        sums = {}
        for case in cases:
            tracks = _tracks(sequence, video, case, embeddings, camera)
            sums[case.name] = sequence_sums(sequence, video.truth, tracks, classes)
        return SequenceResult(video, sums, tracks)

    def _log_kept(self, cases: Sequence[Case]) -> None:
        """Log which files are read; they would not be noticed otherwise."""
        needed = {
            DETECTIONS: True,
            EMBEDDINGS: any(case.embeddings for case in cases),
            CAMERA: any(case.tracking.camera_motion for case in cases),
        }
        for kind in (kind for kind, is_needed in needed.items() if is_needed):
            if kept := len(self.videos.samples) - self.videos.missing(kind):
                log.info("%s of %s are read from %s", kind, plural(kept, "sequence"), self.videos.folder_of(kind))


def _tracks(
    sequence: str,
    video: VideoDetections,
    case: Case,
    embeddings: tuple[Floats, Floats] | None,
    camera: Floats | None,
) -> Tracks:
    tracking = case.tracking
    rows = embeddings[case.annotated] if case.embeddings and embeddings is not None else None
    detected = video.counted() if case.annotated else video
    frames = detected.frames_to_track(rows, camera if tracking.camera_motion else None)
    try:
        return track_sequence(tracking.tracker, frames, tracking.per_class)
    except ValueError as error:
        raise DataMismatch(f"{sequence}: {error}") from error


# --- evaluation of a run ----------------------------------------------------------------------------------------------


@contextmanager
def tracked_sets(model: RunModel, resolved: Resolved, reid: RunModel | None = None) -> Iterator[list[TrackedSet]]:
    """Join the process group, and yield the validation sets of a run.

    Args:
        model: the detector.
        resolved: its config, with the validation sets to evaluate.
        reid: the model for embeddings.

    Raises:
        ConfigError: there is no such checkpoint, EMA or data, or it is damaged.
    """
    path, streams = chosen_checkpoint(model.run, model.checkpoint), _detector_sets(resolved.config)
    if not streams:
        raise ConfigError(Problem("", "data.val", "there is no data to evaluate on"))
    with process_group(**process_group_options(resolved.config)), logging_to(None):
        snapshot = read_chosen(path)
        model = replace(model, checkpoint=str(path), weights=_weights(model, path, resolved, snapshot))
        log.info("evaluating %s", path)
        parts = build_parts(replace(resolved, config=with_sets(resolved.config, None, streams))).keywords
        detector = digest(__version__, *_content(model, resolved, snapshot), LOWEST_SCORE)
        embedder = None if reid is None else _embedder(reid)
        step = snapshot.step
        del snapshot
        yield [
            _tracked_set(path, model, reid, section, stream, detector, embedder, step)
            for section, stream in zip(streams, parts["data"].validation, strict=True)
        ]


def _detector_sets(config: Mapping[str, Any]) -> list[Section]:
    """Return the validation sets, of a multi-task run those of its detectors, if there are some."""
    sets, tasks = validation_sets(config), detection_tasks(config)
    return [section for section in sets if section.get("task") in tasks] or sets


def _weights(model: RunModel, path: Path, resolved: Resolved, snapshot: Snapshot) -> Any:
    return choose_weights(path, snapshot, resolved.config["evaluate"]["weights"], model.weights)


def _embedder(reid: RunModel) -> str:
    """Return a text that changes with the model of embeddings."""
    path, resolved = chosen_checkpoint(reid.run, reid.checkpoint), resolve(reid.run, reid.overrides)
    snapshot = read_chosen(path)
    return digest(
        reid.task, *_content(replace(reid, weights=_weights(reid, path, resolved, snapshot)), resolved, snapshot)
    )


def _content(model: RunModel, resolved: Resolved, snapshot: Snapshot) -> Iterator[Any]:
    """Yield what the predictions of a model for an image depend on."""
    config = resolved.config
    yield config["task"], [section["transforms"] for section in validation_sets(config)], config["train"]["precision"]
    for name, tensor in sorted(snapshot.tensors["ema" if model.weights == "ema" else "model"].items()):
        yield name, tensor.dtype, tuple(tensor.shape)
        yield tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _tracked_set(
    path: Path,
    model: RunModel,
    reid: RunModel | None,
    section: Mapping[str, Any],
    stream: ValidationStream,
    detector: str,
    embedder: str | None,
    step: int,
) -> TrackedSet:
    source = stream.source

    @cache
    def pipeline() -> Pipeline:
        predictor = model.load(stream.task or "")
        predictor.transforms = list(stream.transforms)
        if predictor.classes != source.classes:
            message = f"{section['prefix']} has other classes than the model: {source.classes}, {predictor.classes}"
            raise DataMismatch(message)
        return Pipeline(predictor, None if reid is None else reid.load())

    detected = digest(detector, section["source"], section["transforms"], stream.task, source.fingerprint())
    names = {kind: f"{kind}-{detected}" for kind in (DETECTIONS, CAMERA)}
    if embedder is not None:
        names[EMBEDDINGS] = f"{EMBEDDINGS}-{digest(detected, embedder)}"
    inside = path.parent.resolve() == (model.run / "checkpoints").resolve()
    about = {
        "data": describe_source(section["source"]),
        "samples": len(source),
        "checkpoint": path.name if inside else str(path),
        "weights": model.weights,
        "overrides": list(model.overrides),
    }
    name = section["prefix"] + "_ema" * (model.weights == "ema") + f"_{FOLDER}"
    return TrackedSet(name, about, step, KeptVideos(model.run / FOLDER, source, pipeline, names))


def evaluate_tracker(
    model: RunModel,
    tracking: Tracking,
    words: Sequence[str],
    reid: RunModel | None = None,
    *,
    splits: Sequence[str] = (),
    data: Path | None = None,
    name: str | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Evaluate a tracker on the validation data of a detector, and write scores, tables and images into
    ``eval/<set>_tracking`` of its run folder.

    Args:
        model: the detector.
        tracking: the tracker.
        words: what selects it on the command line, for ``scores.json``.
        reid: the model for embeddings.
        splits, data, name: the data, see :func:`opabinia.training.evaluation_data.choose_sets`.

    Returns:
        For each validation set the tables of each row, see :data:`ANNOTATED`.

    Raises:
        ConfigError: there is no such run, checkpoint, EMA or data, or it is damaged.
        DataMismatch: the data has no tracks, or not all frames.
        DataError: a frame cannot be read.
    """
    tables, resolved = {}, resolve(model.run, model.overrides)
    trained = resolve(model.run) if model.overrides else resolved
    resolved = choose_sets(resolved, trained, splits=splits, data=data, name=name)
    with tracked_sets(model, resolved, reid) as sets:
        for tracked in sets:
            results = tracked.evaluate(tracked.cases(tracking))
            if is_rank_zero():
                _write(model.run / "eval" / tracked.name, tracked, results, tracking, words)
            tables[tracked.name] = results.tables
    return tables


def _write(folder: Path, tracked: TrackedSet, results: Results, tracking: Tracking, words: Sequence[str]) -> None:
    scores, classes = results.scores, len(tracked.videos.source.classes)
    main = list(scores)[-1]
    if main == APPEARANCE and scores[main] == scores[MOTION]:
        log.warning("the scores are the same with embeddings: does %s use them?", tracking.config["tracker"]["name"])
    switches = {
        name: sequence_switches(result.video.truth, result.tracks, classes)
        for name, result in results.sequences.items()
    }
    about = {**tracked.about, "overrides": [*tracked.about["overrides"], *words]}
    write_scores(folder, about, {f"{tracked.name}/{name}": value for name, value in scores[main].items()})
    title = f"{tracking.config['tracker']['name']}, {main}"
    details = {
        "rows": [{"row": name, **row} for name, row in scores.items()],
        "tables_of": title,
        **results.tables[main],
        "switches": [
            {
                "sequence": name,
                "first": int(result.video.numbers[0]),
                "last": int(result.video.numbers[-1]),
                "frames": [switch.frames[1] for switch in switches[name]],
            }
            for name, result in results.sequences.items()
        ],
    }
    write_json(folder / "details.json", {"step": tracked.step, "tracking": details})
    read = {name: result.video for name, result in results.sequences.items()}
    tracks = {name: result.tracks for name, result in results.sequences.items()}
    galleries = draw_switches(tracked.videos, read, tracks, switches, f"Worst identity switches ({title})")
    with disk_errors(folder), temporary_folder(folder / PICTURES) as temporary:
        write_json(temporary / INDEX, {"groups": save_galleries(temporary, galleries)})


def sweep(
    model: RunModel, trackings: Mapping[str, Tracking], reid: RunModel | None = None
) -> dict[str, dict[str, float]]:
    """Return the scores of trackers on the first validation set of a detector, averaged over classes.

    Args:
        model: the detector.
        trackings: trackers by name.
        reid: the model for embeddings; without one, trackers get none.

    Raises:
        ConfigError, DataMismatch, DataError: see :func:`evaluate_tracker`.
    """
    with tracked_sets(model, resolve(model.run, model.overrides), reid) as sets:
        cases = [Case(name, tracking, embeddings=reid is not None) for name, tracking in trackings.items()]
        return sets[0].evaluate(cases).scores
