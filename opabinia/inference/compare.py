"""What the predict command does with pictures and films whose truth is known: draw it beside what a model finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from PIL import Image
from rich.console import Console

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Sample, Source
from opabinia.inference.extract import only
from opabinia.inference.load import load
from opabinia.inference.predict import caption, tell
from opabinia.inference.predictor import Prediction, Predictor
from opabinia.runtime.files import disk_errors
from opabinia.runtime.log import logging_to
from opabinia.training.run_folder import build_parts, resolve
from opabinia.visualization.detections import annotated_objects, predicted_objects
from opabinia.visualization.drawing import draw_objects, side_by_side
from opabinia.visualization.video_strips import Seen, seen_clips, strip

T = TypeVar("T")


def compare(
    run: Path,
    split: str,
    out: Path,
    *,
    most: int = 60,
    score: float = 0.5,
    checkpoint: str = "best",
    device: str | None = None,
) -> None:
    """Draw what is in pictures of a run's data beside what its detector finds there, those with most mistakes first
    where an evaluation has told which these are. Of films draw strips with what is said of each view, half of them of
    such as are taken for something else, if there are so many.

    Args:
        run: the run folder.
        split: ``train``, or the prefix of a validation set.
        out: where the pictures are written.
        most: how many pictures.
        score: of what is drawn of things found.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: there is no such run, checkpoint or set, or its samples do not tell what is to be drawn.
        DataError: some pictures could not be read; the others are drawn.
    """
    with logging_to(None):
        predictor = load(run, checkpoint=checkpoint, device=device)
        source = build_parts(only(resolve(run), split)).keywords["data"].validation[0].source
    if not predictor.films and not getattr(source, "has_boxes", False):
        raise ConfigError(Problem("command line", "--split", f"{split} does not tell where things are in its pictures"))
    folder = out / ("strips" if predictor.films else "pictures")
    console = Console(highlight=False)
    broken: list[str] = []
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        chosen = (wrong_and_right if predictor.films else worst_first)(run, split, source, most)
        for number, index in enumerate(chosen):
            try:
                sample = source[index]
                draw = _strip if predictor.films else _things
                picture, words = draw(predictor, sample, source.classes, score)
            except (OSError, ValueError) as error:
                broken.append(str(error))
                continue
            picture.save(folder / f"{number:05d}-{Path(str(sample['id'])).stem}.png")
            console.print(f"{sample['id']}  {words}", soft_wrap=True)
    console.print(f"the pictures are in {folder}", soft_wrap=True)
    tell(broken, len(chosen))


def _things(predictor: Predictor, sample: Sample, classes: Sequence[str], score: float) -> tuple[Image.Image, str]:
    """What is in a picture beside what is found there, and both in words."""
    picture, ground_truth = sample["image"], sample["ground_truth"]
    found = predicted_objects(predictor(picture), predictor.classes, ground_truth.size, score)
    there = annotated_objects(ground_truth, classes)
    drawn = [draw_objects(picture, there), draw_objects(picture, found)]
    titles = [f"{sample['id']}: there are {len(there)}", f"found: {len(found)}"]
    return side_by_side(drawn, titles), f"there are {len(there)}, found {len(found)}"


class FilmSeen(NamedTuple):
    """What a model says of a film.

    Attributes:
        verdict: ``right`` or ``wrong``.
        words: what is there, and what is found.
        clips: that it has seen.
    """

    verdict: str
    words: str
    clips: list[Seen]


def film_seen(predictor: Predictor, sample: Sample, classes: Sequence[str]) -> FilmSeen:
    """What a model says of a film whose classes are known."""
    seen = predictor.sample(sample["video"])
    (prediction,) = predictor.batch([seen])
    there = torch.as_tensor(sample["label"])
    names = [classes[int(number)] for number in (there.nonzero().flatten() if there.ndim else there.reshape(1))]
    words = f"{', '.join(names) or 'nothing'}; found {caption(prediction, ', ')}"
    clips = seen_clips(seen["frames"], prediction, predictor.classes)
    return FilmSeen("right" if _is_right(prediction, there) else "wrong", words, clips)


def _strip(predictor: Predictor, sample: Sample, classes: Sequence[str], score: float) -> tuple[Image.Image, str]:
    """The strip of a film, framed as it is right or wrong, and what is there and what is found in words."""
    verdict, words, clips = film_seen(predictor, sample, classes)
    return strip(sample["video"], clips, f"{sample['id']}: {words}", verdict), f"{verdict}: {words}"


def _is_right(prediction: Prediction, there: torch.Tensor) -> bool:
    """Whether the likeliest class is the label; of several labels whether those above a half are they."""
    probabilities = prediction["probabilities"]
    if there.ndim:
        return bool(((probabilities > 0.5) == (there > 0.5)).all())
    return int(probabilities.argmax()) == int(there)


def wrong_and_right(run: Path, split: str, source: Source, most: int) -> list[int]:
    """Indices of films, one view of each: those that an evaluation of the run names as its surest mistakes, half of
    them all at most where there are enough others, and then others."""
    ids: Callable[[int], str] = source.id  # type: ignore[attr-defined]
    firsts = list({ids(index): index for index in reversed(range(len(source)))}.values())[::-1]
    named = {one["id"]: place for place, one in enumerate(_worst(run, split))}
    wrong = sorted((index for index in firsts if ids(index) in named), key=lambda index: named[ids(index)])
    right = [index for index in firsts if ids(index) not in named]
    half = max(most - most // 2, most - len(right))
    chosen = wrong[:half]
    return chosen + list(evenly(right, most - len(chosen)))


def evenly(items: Sequence[T], count: int) -> Iterator[T]:
    """Some at equal distances: films of a class often lie beside each other."""
    count = min(count, len(items))
    return (items[place * len(items) // count] for place in range(count))


def _worst(run: Path, split: str) -> list[Any]:
    """What an evaluation of the run names as its worst samples, if there was one that does."""
    details = run / "eval" / split / "details.json"
    found: list[Any] = json.loads(details.read_text("utf-8")).get("worst", []) if details.is_file() else []
    return found


def worst_first(run: Path, split: str, source: Source, most: int) -> list[int]:
    """Indices of samples, those first that an evaluation of the run names as its worst."""
    return list(islice(dict.fromkeys(chain(named_worst(run, split, source), range(len(source)))), most))


def named_worst(run: Path, split: str, source: Source) -> list[int]:
    """Indices of the samples that an evaluation of the run names as its worst, in its order."""
    names = [one["id"] for one in _worst(run, split)]
    wanted, places = set(names), dict[str, int]()
    for index in range(len(source)):
        if len(places) == len(wanted):
            break
        if (name := _id(source, index)) in wanted:
            places[name] = index
    return [places[name] for name in names if name in places]


def _id(source: Source, index: int) -> str:
    """A sample's id, without its picture where the source can tell it so."""
    if hasattr(source, "id"):
        return str(source.id(index))
    sample = source.encoded(index) if hasattr(source, "encoded") else source[index]
    return str(sample["id"])
