"""The work of ``opabinia predict --split``: draw ground truth and predictions of a run's data side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from PIL import ImageOps
from typing_extensions import TypedDict

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Comparison, DrawOptions, Sample, Source
from opabinia.data.sources.wrapper import find_ids
from opabinia.inference.earlier_files import replace_earlier
from opabinia.inference.input_files import drawing_name, raise_skipped
from opabinia.inference.load import RunModel
from opabinia.inference.predictor import Predictor
from opabinia.inference.sheets import Sheets
from opabinia.inference.splits import open_split, resolve_split, task_of
from opabinia.runtime.files import disk_errors
from opabinia.runtime.json_files import read_json
from opabinia.runtime.log import logging_to
from opabinia.runtime.progress import progress_bar
from opabinia.runtime.text import plural, printable
from opabinia.training.run_folder import resolve
from opabinia.visualization.drawing import FRAME_COLORS, side_by_side

T = TypeVar("T")


def compare(
    model: RunModel, split: str, out: Path | None = None, *, max_images: int = 60, min_score: float = 0.5
) -> None:
    """Draw ground truth and predictions of a run's data, the samples with most errors in the last evaluation first.

    ``images`` has ground truth and prediction of each sample side by side; ``sheet-1.png`` and so on show
    the same of 30 samples each, of classifiers, whose ground truth is in the captions, of 60.

    Videos are drawn as strips of the frames that the model saw; up to half of them are misclassified ones.

    Args:
        model: the model of a run.
        split: ``train``, the prefix of a validation set, or ``auto``: the first of these, else ``train``.
        out: the folder to write; None: ``predictions/SPLIT`` in the run folder.
        max_images: number of samples.
        min_score: lowest score of detections that are drawn.

    Raises:
        ConfigError: there is no such run, checkpoint or split, or the task draws no ground truth of its samples.
        DataError: some samples could not be read; the others are drawn.
    """
    with logging_to(None):
        resolved = resolve(model.run, model.overrides)
        split = resolve_split(resolved, split)
        source, predictor = open_split(resolved, split), model.load(task_of(resolved, split))
    out = out or model.run / "predictions" / split
    folder, options = out / "images", DrawOptions(min_score=min_score, text=16)
    errors, sheets = list[str](), Sheets(out)
    evaluation = evaluation_name(model.run, split, predictor)
    indices = select_samples(predictor, model.run, evaluation, source, max_images)
    with disk_errors(folder), replace_earlier(out), progress_bar(f"predict {split}", len(indices)) as bar:
        folder.mkdir(parents=True, exist_ok=True)
        for number, index in enumerate(bar.track(indices)):
            try:
                sample = source[index]
                comparison = compare_sample(predictor, sample, source.classes, options)
            except (OSError, ValueError) as error:
                errors.append(str(error))
                continue
            if comparison is None:
                message = f"{type(predictor.task).__name__} draws no ground truth of the samples of {split}"
                raise ConfigError(Problem("command line", "--split", message))
            name, verdict = str(sample["id"]), comparison.verdict
            images, titles = [panel.image for panel in comparison.panels], [panel.title for panel in comparison.panels]
            image = side_by_side(images, [f"{name}: {titles[0]}", *titles[1:]])
            if verdict is not None:
                image = ImageOps.expand(image, 5, FRAME_COLORS[verdict])
            if len(images) == 2:
                sheets.add_pair(images, [(name, titles[0]), ("", titles[1])], verdict)
            else:
                sheets.add(images[-1], [name, *comparison.caption.split("; ")], verdict)
            image.save(folder / f"{drawing_name(number, name)}.png")
            caption = f"{verdict}: {comparison.caption}" if verdict else comparison.caption
            print(printable(f"{name}  {caption}"))
        sheets.write()
    print(f"{plural(len(indices) - len(errors), 'image')} in {folder}; sheets are in {out}")
    raise_skipped(errors, len(indices))


def compare_sample(
    predictor: Predictor, sample: Sample, classes: Sequence[str], options: DrawOptions = DrawOptions()
) -> Comparison | None:
    """Predict a sample of a source and return :meth:`opabinia.contracts.Presenter.compare`.

    Raises:
        OSError, ValueError: a video cannot be read.
    """
    transformed = predictor.sample(sample["video" if predictor.takes_video else "image"])
    (prediction,) = predictor.batch([transformed])
    if "frames" in transformed:
        sample = {**sample, "frames": transformed["frames"]}
    return predictor.presenter(prediction).compare(sample, prediction, classes, options)


# --- choice of samples ------------------------------------------------------------------------------------------------


def evaluation_name(run: Path, split: str, predictor: Predictor) -> str:
    """Return the name of the evaluation of a split with the weights of the model."""
    averaged = f"{split}_ema"
    return averaged if predictor.weights == "ema" and (run / "eval" / averaged).is_dir() else split


def select_samples(predictor: Predictor, run: Path, evaluation: str, source: Source, count: int) -> list[int]:
    """Return indices of samples to show: the worst of the last evaluation first; of videos at most half of them are
    those (more if there are too few others), and each video is shown once."""
    if not predictor.takes_video:
        return list(islice(dict.fromkeys(chain(worst_samples(run, evaluation, source), range(len(source)))), count))
    first_views = list({source.id(index): index for index in reversed(range(len(source)))}.values())[::-1]
    rank = {row["id"]: position for position, row in enumerate(evaluation_details(run, evaluation).get("worst", []))}
    wrong = sorted((index for index in first_views if source.id(index) in rank), key=lambda i: rank[source.id(i)])
    others = [index for index in first_views if source.id(index) not in rank]
    selected = wrong[: max(count - count // 2, count - len(others))]
    return selected + list(evenly_spaced(others, count - len(selected)))


def evenly_spaced(items: Sequence[T], count: int) -> Iterator[T]:
    """Yield ``count`` items at equal distances: samples of a class are often adjacent."""
    count = min(count, len(items))
    return (items[position * len(items) // count] for position in range(count))


class _Sample(TypedDict):
    id: str


class _Detections(TypedDict):
    min_score: float


class _Query(TypedDict):
    query: str
    nearest: list[str]
    right: list[bool]
    AP: float
    first_match: int


class _Queries(TypedDict, total=False):
    worst: list[_Query]
    others: list[_Query]


class _Details(TypedDict, total=False):
    worst: list[_Sample]
    counted: _Detections
    retrieval: _Queries
    confusion: list[tuple[int, int, int]]


def evaluation_details(run: Path, evaluation: str) -> _Details:
    """Return the tables of the last evaluation (``details.json``); empty if there was none."""
    path = run / "eval" / evaluation / "details.json"
    return read_json(path, _Details) if path.is_file() else {}


def worst_samples(run: Path, evaluation: str, source: Source) -> list[int]:
    """Return indices of the samples that the last evaluation lists as its worst, in its order."""
    names = [row["id"] for row in evaluation_details(run, evaluation).get("worst", [])]
    indices = find_ids(source, names)
    return [indices[name] for name in names if name in indices]
