"""What the predict command does: find pictures or films, tell what is on them or what is like them, write it down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Sample
from opabinia.data.decoding.images import EXTENSIONS
from opabinia.data.decoding.video import EXTENSIONS as FILM_EXTENSIONS
from opabinia.data.loader import DataError
from opabinia.evaluation.retrieval.distances import nearest as nearest_of
from opabinia.inference.load import load
from opabinia.inference.predictor import Prediction, Predictor, film_of, image_of
from opabinia.inference.retrieval.gallery import Found, Gallery, embedded, read
from opabinia.runtime.files import disk_errors, write_atomic
from opabinia.runtime.log import logging_to
from opabinia.visualization.detections import predicted_objects
from opabinia.visualization.drawing import draw_objects, overlay_heatmap, sheet, to_pil
from opabinia.visualization.video_strips import picture_of, seen_clips, strip, write_clip

PER_SHEET = 60


def predict(
    run: Path,
    paths: Sequence[Path],
    out: Path,
    *,
    explain: bool = False,
    score: float = 0.5,
    checkpoint: str = "best",
    device: str | None = None,
) -> None:
    """Print and write predictions of pictures, and of all pictures in folders; of films if the task learns from clips.

    ``predictions.jsonl`` has one line a picture, with its ``path`` and the task's readable prediction; ``sheet-1.png``
    and so on show the pictures. Of a detector the folder ``pictures`` has each picture with what was found in it. Of
    films the folder ``strips`` has frames of the clips that were seen, and ``clips`` has these clips themselves, with
    what is said of them. Files that are no pictures are told and left out, the others are still done.

    Args:
        run: the run folder.
        paths: pictures or films, and folders of them.
        out: where it is written.
        explain: write each picture with a map of where its prediction comes from to ``explained``, too.
        score: of what is drawn and told of things found; predictions.jsonl has all of them.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: there is no such run, checkpoint, file or folder, or the task's predictions cannot be explained.
        DataError: some pictures could not be read; everything else is written.
    """
    with logging_to(None):
        predictor = load(run, checkpoint=checkpoint, device=device)
    pictures = list(found(paths, films=predictor.films))
    console = Console(highlight=False)
    done: list[tuple[Path, Prediction]] = []
    broken: list[str] = []
    for names, samples in read(predictor, pictures, broken):
        if explain:
            _write_heat(out, len(done), names, samples, _explained(predictor, samples))
        for path, sample, prediction in zip(names, samples, predictor.batch(samples), strict=True):
            console.print(f"{path}  {caption(prediction, ', ', score=score)}", soft_wrap=True)
            if predictor.films:
                broken += _write_film(out, len(done), predictor, path, sample, prediction)
            done.append((path, prediction))
    _write_lines(out, [{"path": str(path), **prediction.readable} for path, prediction in done])
    if not predictor.films:
        _write_sheets(out, predictor, done, score)
    what = "films; predictions.jsonl, strips and clips" if predictor.films else "pictures; predictions.jsonl and sheets"
    console.print(f"{len(done)} {what} are in {out}", soft_wrap=True)
    tell(broken, len(pictures))


def retrieve(
    run: Path,
    paths: Sequence[Path],
    gallery: Path,
    out: Path,
    *,
    nearest: int = 10,
    explain: bool = False,
    checkpoint: str = "best",
    device: str | None = None,
) -> None:
    """Print and write which pictures of a gallery are nearest to some pictures, by the cosine of their embeddings.

    ``predictions.jsonl`` has one line a picture, with its ``path`` and the ``nearest`` ones: their ``path``, their
    ``distance`` (1 - cosine) and a ``verdict``. A sheet for each picture in ``sheets`` shows it with those. Where names
    tell whose the pictures are (see :func:`opabinia.inference.retrieval.gallery.whose`) the right ones are framed in green, others in red,
    and in grey what evaluations leave out: the same identity on the same camera.

    Args:
        run: the run folder.
        paths: pictures, and folders of them.
        gallery: the folder that is searched.
        out: where it is written.
        nearest: how many to show.
        explain: write each picture with a map of where its similarity to the nearest one comes from, too.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: there is no such run, checkpoint, file or folder, or similarities cannot be explained.
        DataError: some pictures could not be read; everything else is written.
    """
    with logging_to(None):
        predictor = load(run, checkpoint=checkpoint, device=device)
    pictures, others = list(found(paths, films=predictor.films)), list(found([gallery], films=predictor.films))
    console = Console(highlight=False)
    broken: list[str] = []
    kept, features = _features(predictor, others, gallery, broken)
    searched = Gallery(kept, gallery, lambda embeddings, k: nearest_of(embeddings, features, k))
    done: list[dict[str, Any]] = []
    for names, samples, embeddings in embedded(predictor, pictures, broken):
        near = searched.nearest(names, embeddings, nearest)
        if explain:
            heats = _explained(predictor, samples, _first_of(features, near))
            _write_heat(out, len(done), names, samples, heats)
        for path, some in zip(names, near, strict=True):
            _write_query(_numbered(out / "sheets", len(done), path), predictor, path, some)
            first = f"{some[0].path} {some[0].distance:.3f}" if some else "nothing else"
            console.print(f"{path}  {first}", soft_wrap=True)
            done.append({"path": str(path), "nearest": [line(one) for one in some]})
    _write_lines(out, done)
    console.print(f"{len(done)} pictures; predictions.jsonl and sheets are in {out}", soft_wrap=True)
    tell(broken, len(pictures) + len(others))


def found(paths: Sequence[Path], *, films: bool = False) -> Iterator[Path]:
    """The files among ``paths``, and all pictures, or all films, below the folders among them, sorted.

    Raises:
        ConfigError: a path does not exist, or a folder holds no pictures; all such are told.
    """
    wanted, what = (FILM_EXTENSIONS, "films") if films else (EXTENSIONS, "pictures")
    problems = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in wanted and file.is_file())
            yield from inside
            if not inside:
                problems.append(Problem("command line", "", f"{path} holds no {what} ({', '.join(wanted)})"))
        elif path.is_file():
            yield path
        else:
            problems.append(Problem("command line", "", f"there is no file or folder {path}"))
    if problems:
        raise ConfigError(problems)


def caption(prediction: Prediction, separator: str = "\n", most: int = 3, score: float = 0.5) -> str:
    """The likeliest classes in words, or how many of each class were found; a task without them: its values."""
    if "things" in prediction.readable:
        counts = Counter(one["class"] for one in prediction.readable["things"] if one["score"] >= score)
        return separator.join(f"{count} x {name}" for name, count in counts.most_common(most)) or "nothing"
    top = prediction.readable.get("top")
    if top is None:
        return separator.join(f"{name}: {_short(value)}" for name, value in prediction.readable.items())
    return separator.join(f"{one['class']} {one['probability']:.1%}" for one in top[:most])


def _short(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, list) and len(value) > 5 else str(value)


def line(one: Found) -> dict[str, Any]:
    """A picture found, as it is written down."""
    return {"path": str(one.path), "distance": round(one.distance, 6), "verdict": one.verdict}


def _features(
    predictor: Predictor, paths: Sequence[Path], gallery: Path, broken: list[str]
) -> tuple[list[Path], Tensor]:
    """The N pictures of a gallery that can be read, and their embeddings (N x D)."""
    kept: list[Path] = []
    features: list[Tensor] = []
    for names, _, embeddings in embedded(predictor, paths, broken):
        kept += names
        features.append(embeddings)
    if not kept:
        raise DataError(f"none of the {len(paths)} pictures in {gallery} can be read; the first: {broken[0]}")
    return kept, torch.cat(features)


def _first_of(features: Tensor, near: Sequence[Sequence[Found]]) -> Tensor:
    """Embeddings of the nearest picture of each query (B x D).

    Raises:
        ConfigError: a query has none.
    """
    if not all(near):
        raise ConfigError(Problem("command line", "--gallery", "it holds nothing but the picture that is looked for"))
    return features[torch.tensor([some[0].number for some in near])]


def _explained(predictor: Predictor, samples: Sequence[Sample], toward: Tensor | None = None) -> Tensor:
    try:
        return predictor.explain(samples, toward)
    except ValueError as error:
        raise ConfigError(Problem("command line", "--explain", str(error))) from error


def _numbered(folder: Path, number: int, path: Path) -> Path:
    """Where the picture of this line of predictions.jsonl is drawn: names alone may be there twice."""
    return folder / f"{number:05d}-{path.stem}.png"


def _write_heat(
    out: Path, done: int, names: Sequence[Path], samples: Sequence[Sample], heats: Tensor, side: int = 256
) -> None:
    folder = out / "explained"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for number, (path, sample, heat) in enumerate(zip(names, samples, heats, strict=True), done):
            picture = overlay_heatmap(sample["image"], heat)
            scale = max(1, side // max(picture.size))
            picture.resize((picture.width * scale, picture.height * scale)).save(_numbered(folder, number, path))


def _write_query(path: Path, predictor: Predictor, query: Path, near: Sequence[Found]) -> None:
    files = [query, *(one.path for one in near)]
    captions = [f"{query.name}\nlooked for", *(f"{one.path.name}\n{one.distance:.3f}" for one in near)]
    pictures = [to_pil(_picture(predictor, file)) for file in files]
    frames = [None, *(one.verdict for one in near)]
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet(pictures, captions, columns=len(files), size=120, frames=frames).save(path)


def _write_lines(out: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / "predictions.jsonl", "".join(json.dumps(one) + "\n" for one in lines))


def _picture(predictor: Predictor, path: Path) -> Tensor:
    """A picture, or a frame of a film."""
    if predictor.films:
        return picture_of({"video": film_of(path, predictor.channels)})
    return image_of(path, predictor.channels)


def _write_film(
    out: Path, number: int, predictor: Predictor, path: Path, sample: Sample, prediction: Prediction
) -> list[str]:
    """The strip of a film and its labelled clip; what is wrong with the film if it cannot be read again."""
    film = film_of(path, predictor.channels)
    clips = seen_clips(sample["frames"], prediction, predictor.classes)
    name = _numbered(out / "strips", number, path)
    try:
        whole = strip(film, clips, f"{path.name}: {caption(prediction, ', ')}")
        write_clip(out / "clips" / f"{name.stem}.mp4", film, clips)
    except (OSError, ValueError) as error:
        return [str(error)]
    with disk_errors(name):
        name.parent.mkdir(parents=True, exist_ok=True)
        whole.save(name)
    return []


def _write_sheets(out: Path, predictor: Predictor, done: Sequence[tuple[Path, Prediction]], score: float) -> None:
    with disk_errors(out):
        for number, start in enumerate(range(0, len(done), PER_SHEET), 1):
            some = [_drawn(predictor, *one, score) for one in done[start : start + PER_SHEET]]
            _write_pictures(out, start, done, some)
            _write_sheet(out / f"sheet-{number}.png", some, done[start : start + PER_SHEET], score)


def _drawn(predictor: Predictor, path: Path, prediction: Prediction, score: float) -> Image.Image:
    """A picture, with what was found in it."""
    image = image_of(path, predictor.channels)
    if "boxes" not in prediction:
        return to_pil(image)
    size = (image.shape[-2], image.shape[-1])
    return draw_objects(image, predicted_objects(prediction, predictor.classes, size, score))


def _write_pictures(
    out: Path, start: int, done: Sequence[tuple[Path, Prediction]], pictures: Sequence[Image.Image]
) -> None:
    """Of a detector each picture by itself: on a sheet little would be seen of it."""
    if not done or "boxes" not in done[0][1]:
        return
    folder = out / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pictures, start):
        picture.save(_numbered(folder, number, done[number][0]))


def _write_sheet(
    path: Path, pictures: Sequence[Image.Image], done: Sequence[tuple[Path, Prediction]], score: float
) -> None:
    captions = [f"{file.name}\n{caption(prediction, score=score)}" for file, prediction in done]
    sheet(pictures, captions).save(path)


def tell(broken: Sequence[str], count: int) -> None:
    """Say which files were left out.

    Raises:
        DataError: some were.
    """
    if broken:
        raise DataError(f"{len(broken)} of {count} files were left out:\n" + "\n".join(broken))
