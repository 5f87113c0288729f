"""Choose the images to label next, and write the round: a list, a page, a record, and drafts for annotation tools."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from PIL.Image import Image

from opabinia.config import ConfigError, Problem
from opabinia.contracts import EMBEDDING, Sample, Source
from opabinia.data.errors import DataError
from opabinia.engine.loop.layer_outputs import has_features
from opabinia.evaluation.selection.batches import (
    Chosen,
    Floats,
    Pool,
    k_center,
    most_uncertain,
    nearest_distances,
    weighted_seeding,
)
from opabinia.evaluation.selection.uncertainty import Measure
from opabinia.inference.annotation_files.drafts import Draft, from_prediction, image_name
from opabinia.inference.annotation_files.write import Tool, write_drafts
from opabinia.inference.input_files import InputBatch, find_files, raise_skipped, read_batches
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.selection.collect import (
    Collected,
    collect,
    files_of,
    labeled_features,
    open_labeled,
    training_split,
)
from opabinia.inference.selection.page import render_round
from opabinia.inference.selection.rounds import RECORD, Round, read_rounds, write_table
from opabinia.inference.selection.scoring import UNCERTAINTY
from opabinia.runtime.files import disk_errors, temporary_folder, write_atomic
from opabinia.runtime.json_files import write_json
from opabinia.runtime.log import logging_to
from opabinia.runtime.storage import shown_path
from opabinia.runtime.text import csv_text, plural
from opabinia.training.run_folder import chosen_checkpoint
from opabinia.training.sweep.runs import read_results
from opabinia.visualization.drawing import to_pil

Strategy = Literal["uncertainty", "diversity", "both"]

FOLDER, LIST, PAGE, LABELED = "select", "selected.csv", "selected.html", "labeled"


@dataclass(frozen=True)
class SelectOptions:
    """Options of a round.

    Attributes:
        count: number of images to choose.
        strategy: ``uncertainty``, ``diversity`` or ``both``; None: ``both`` if the model predicts classes and has
            features, else what is possible.
        measure: measure of uncertainty.
        seed: seed of the draws of ``both``.
        out: the folder of rounds; None: ``select`` in the run folder.
        export: annotation tool to write drafts for.
        min_score: lowest score of a detection in drafts.
        task: name of a task of a multi-task run; empty otherwise.
    """

    count: int
    strategy: Strategy | None = None
    measure: Measure = "margin"
    seed: int = 0
    out: Path | None = None
    export: Tool | None = None
    min_score: float = 0.3
    task: str = ""


@dataclass(frozen=True)
class Selection:
    """A round that was written.

    Attributes:
        folder: folder of the round.
        rounds: records of all rounds, this one last.
        paths: chosen images, in their order.
        notes: for the user.
        errors: messages about files that cannot be read.
        files: number of files that were read or not.
    """

    folder: Path
    rounds: Sequence[Round]
    paths: Sequence[Path]
    notes: Sequence[str]
    errors: Sequence[str]
    files: int

    def raise_skipped(self) -> None:
        """Report the files that cannot be read.

        Raises:
            DataError: there are some.
        """
        raise_skipped(self.errors, self.files)


def select(model: RunModel, paths: Sequence[Path | str], options: SelectOptions) -> Selection:
    """Choose images to label next, and write the folder of the round.

    Images that earlier rounds in the same folder chose, and those that the run was trained on, are not chosen again;
    near-duplicates of the former and of each other are not, either. The diverse strategies start from the training data
    of the run, if it can be read.

    Args:
        model: the model of a run.
        paths: unlabeled images or videos, and folders of them.
        options: options of the round.

    Raises:
        ConfigError: there is no such run or file, the model has no uncertainty or features for the strategy, or fewer
            images are left than are to be chosen.
        DataError: a prediction is not finite.
        DiskError: the round cannot be written.
    """
    out = options.out or model.run / FOLDER
    rounds, notes = read_rounds(out), list[str]()
    training_split(model, options.task)  # checks the task
    with logging_to(None):
        predictor = model.load(options.task)
        labeled = open_labeled(model, options.task)
    trained_on = files_of(labeled) if labeled is not None else set()
    files = unlabeled_files(paths, trained_on, videos=predictor.takes_video)
    taken = {path for record in rounds for path in record["chosen"]}
    _check_count(options.count, files, taken)
    embed = options.strategy != "uncertainty" and has_features(predictor.task)
    choose_strategy = partial(possible_strategy, options.strategy, type(predictor.task).__name__)
    collected = collect(predictor, list(files), options.measure, embed=embed, check=choose_strategy)
    outputs = {UNCERTAINTY: collected.uncertainty, EMBEDDING: collected.features}
    strategy, note = choose_strategy([name for name, values in outputs.items() if values is not None])
    notes += [note] if note else []
    of_labeled = _labeled_features(model, options.task, out, labeled, strategy, notes)
    is_taken = np.array([files[path] in taken for path in collected.paths])
    chosen = choose(collected, of_labeled, is_taken, strategy, options)
    if len(chosen.indices) < options.count:
        count = plural(len(chosen.indices), "image")
        notes.append(f"only {count}: the others are near-duplicates of chosen ones, or cannot be read")
    record = Round(
        round=rounds[-1]["round"] + 1 if rounds else 1,
        run=str(model.run),
        checkpoint=chosen_checkpoint(model.run, model.checkpoint).name,
        labeled=None if labeled is None else len(labeled),
        scores=read_results(model.run) or {},
        strategy=strategy,
        measure=options.measure,
        seed=options.seed,
        candidates=int((~is_taken).sum()),
        chosen=[files[collected.paths[index]] for index in chosen.indices.tolist()],
    )
    folder = out / str(record["round"])
    _write(folder, record, predictor, collected, chosen, options, notes)
    write_table([*rounds, record], out)
    chosen_paths = [collected.paths[index] for index in chosen.indices.tolist()]
    return Selection(folder, [*rounds, record], chosen_paths, notes, collected.errors, len(files))


def unlabeled_files(paths: Sequence[Path | str], trained_on: set[str], *, videos: bool) -> dict[Path, str]:
    """Return the real path of each file, without those that the model was trained on; each file once.

    Raises:
        ConfigError: there is no such file or folder.
    """
    files: dict[str, Path] = {}
    for path in find_files(paths, videos=videos):
        real = os.path.realpath(path)
        if real not in trained_on:
            files.setdefault(real, path)
    return {path: real for real, path in files.items()}


def _check_count(count: int, files: dict[Path, str], taken: set[str]) -> None:
    left = sum(real not in taken for real in files.values())
    if count > left:
        earlier = f" of {len(files):,}, without those of earlier rounds" if left < len(files) else ""
        message = f"{count:,} images are to be chosen, and there are {left:,}{earlier}, which are not trained on"
        raise ConfigError(Problem("command line", "--count", message))


def possible_strategy(asked: Strategy | None, task: str, outputs: Collection[str]) -> tuple[Strategy, str]:
    """Return the strategy that was asked for; None: the best that is possible, with a note if that is not ``both``.

    Args:
        asked: the choice of the user.
        task: name of the task.
        outputs: names of its predictions, such as ``uncertainty`` and ``embedding``.

    Raises:
        ConfigError: it is not possible.
    """
    missing: dict[Strategy, str] = {}
    if UNCERTAINTY not in outputs:
        missing |= dict.fromkeys(("uncertainty", "both"), f"{task} predicts no classes to be uncertain about")
    if EMBEDDING not in outputs:
        missing |= dict.fromkeys(("diversity", "both"), f"{task} has no features of images to compare")
    possible = [name for name in ("both", *get_args(Strategy)) if name not in missing]
    strategy = asked or (possible[0] if possible else "both")
    if strategy in missing:
        hint = f"--strategy {possible[0]} is possible" if possible else "choose by hand"
        raise ConfigError(Problem("command line", "--strategy", missing[strategy], strategy, allowed=hint))
    limited = asked is None and strategy != "both"
    return strategy, f"chosen by {strategy} alone: {missing['both']}" if limited else ""


def _labeled_features(
    model: RunModel, task: str, out: Path, labeled: Source | None, strategy: Strategy, notes: list[str]
) -> Floats | None:
    """Return the features of the training data; None if they are not needed or it cannot be read."""
    if strategy == "uncertainty":
        return None
    try:
        if labeled is not None:
            return labeled_features(model, task, out / LABELED)
    except (ConfigError, DataError, OSError) as error:
        notes.append(f"the training data cannot be read, so chosen images may be like labeled ones: {error}")
        return None
    notes.append("the training data is not here, so chosen images may be like labeled ones")
    return None


def choose(
    collected: Collected, labeled: Floats | None, taken: np.ndarray, strategy: Strategy, options: SelectOptions
) -> Chosen:
    """Choose among collected images.

    Args:
        collected: N images.
        labeled: features of labeled images (L x D), or None.
        taken: images that were chosen before (bool, N).
        strategy: one that is possible.
        options: count and seed.
    """
    count, uncertainty = options.count, collected.uncertainty
    features = np.zeros((len(collected.paths), 0), np.float32) if collected.features is None else collected.features
    if strategy == "uncertainty":
        features, labeled = features[:, :0], None
    distances = nearest_distances(features, features[:0] if labeled is None else labeled)
    pool = Pool(features, collected.groups, distances, taken)
    if strategy == "diversity" or uncertainty is None:
        return k_center(pool, count)
    if strategy == "uncertainty":
        return most_uncertain(pool, count, uncertainty)
    return weighted_seeding(pool, count, uncertainty, np.random.default_rng(options.seed))


# --- the folder of a round --------------------------------------------------------------------------------------------


def _write(
    folder: Path,
    record: Round,
    predictor: Predictor,
    collected: Collected,
    chosen: Chosen,
    options: SelectOptions,
    notes: Sequence[str],
) -> None:
    with disk_errors(folder), temporary_folder(folder) as temporary:
        write_atomic(temporary / LIST, list_text(collected, chosen))
        write_atomic(temporary / PAGE, render_round(record, predictor, collected, chosen, notes))
        write_json(temporary / RECORD, record)
        if options.export is not None:
            info = predictor.dataset_info
            of_images = not (info.boxes or info.maps)
            kind = {"of_images": of_images, "multi_label": info.multi_label}
            drafts = _drafts(predictor, collected, chosen, options.min_score)
            write_drafts(drafts, temporary / options.export, options.export, info.classes, **kind)


def list_text(collected: Collected, chosen: Chosen) -> str:
    """Return the list of chosen images as CSV; unknown values are empty."""
    rows: list[list[object]] = [["rank", "path", "uncertainty", "distance", "predicted"]]
    for rank, (index, distance) in enumerate(zip(chosen.indices.tolist(), chosen.distances.tolist(), strict=True), 1):
        uncertainty = "" if collected.uncertainty is None else f"{collected.uncertainty[index]:.4f}"
        known = f"{distance:.4f}" if distance < np.inf else ""
        rows.append([rank, shown_path(collected.paths[index]), uncertainty, known, collected.captions[index]])
    return csv_text(rows)


def _drafts(
    predictor: Predictor, collected: Collected, chosen: Chosen, min_score: float
) -> Iterator[tuple[Draft, Path | Image]]:
    """Yield the chosen images with their predictions, in the order of the list; they are predicted again."""
    paths = [collected.paths[index] for index in chosen.indices.tolist()]
    root = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in collected.paths])
    uncertainty = np.zeros(len(collected.paths)) if collected.uncertainty is None else collected.uncertainty
    score_of = dict(zip(collected.paths, uncertainty.tolist(), strict=True))
    batch: InputBatch
    for batch in read_batches(predictor, paths, []):
        for (path, original, _), prediction in zip(batch, predictor.batch(batch.samples), strict=True):
            annotations = from_prediction(
                prediction.readable, multi_label=predictor.dataset_info.multi_label, min_score=min_score
            )
            name = image_name(os.path.relpath(os.path.abspath(path), root))
            draft = Draft(name, _size(original), annotations, score_of[path])
            yield draft, path if name.endswith(path.suffix) else to_pil(original["image"])  # arrays become PNG files


def _size(original: Sample) -> tuple[int, int]:
    """Return height and width of an image.

    Raises:
        ConfigError: it is a video.
    """
    if "image" not in original:
        raise ConfigError(Problem("command line", "--export", "videos are not exported: only images"))
    height, width = original["image"].shape[-2:]
    return height, width
