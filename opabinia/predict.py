"""What the predict command does: find the pictures, tell what is on them, write it down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from opabinia.config import ConfigError, Problem
from opabinia.data.decode import EXTENSIONS
from opabinia.data.loader import DataError
from opabinia.drawing import sheet, to_pil
from opabinia.loading import load
from opabinia.predictor import Prediction, Predictor, image_of
from opabinia.runtime.files import told, write_aside
from opabinia.runtime.log import logging_to

PER_SHEET = 60


def predict(
    run: Path, paths: Sequence[Path], out: Path, *, checkpoint: str = "best", device: str | None = None
) -> None:
    """Print and write predictions of pictures, and of all pictures in folders.

    ``predictions.jsonl`` has one line a picture, with its ``path`` and the task's readable prediction; ``sheet-1.png``
    and so on show the pictures. Files that are no pictures are told and left out, the others are still done.

    Raises:
        ConfigError: there is no such run, checkpoint, file or folder.
        DataError: some pictures could not be read; everything else is written.
    """
    pictures = list(found(paths))
    with logging_to(None):
        predictor = load(run, checkpoint=checkpoint, device=device)
    console = Console(highlight=False)
    done: list[tuple[Path, Prediction]] = []
    broken: list[str] = []
    for start in range(0, len(pictures), predictor.batch_size):
        samples, names = [], []
        for path in pictures[start : start + predictor.batch_size]:
            try:
                samples.append(predictor.sample(path))
                names.append(path)
            except (OSError, ValueError) as error:
                broken.append(str(error))
        for path, prediction in zip(names, predictor.batch(samples) if samples else [], strict=True):
            console.print(f"{path}  {caption(prediction, ', ')}", soft_wrap=True)
            done.append((path, prediction))
    with told(out):
        out.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"path": str(path), **prediction.readable}) + "\n" for path, prediction in done]
        write_aside(out / "predictions.jsonl", "".join(lines))
        for number, start in enumerate(range(0, len(done), PER_SHEET), 1):
            _write_sheet(out / f"sheet-{number}.png", predictor, done[start : start + PER_SHEET])
    console.print(f"{len(done)} pictures; predictions.jsonl and sheets are in {out}", soft_wrap=True)
    if broken:
        raise DataError(f"{len(broken)} of {len(pictures)} files were left out:\n" + "\n".join(broken))


def found(paths: Sequence[Path]) -> Iterator[Path]:
    """The files among ``paths``, and all pictures below the folders among them, sorted.

    Raises:
        ConfigError: a path does not exist, or a folder holds no pictures; all such are told.
    """
    problems = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in EXTENSIONS and file.is_file())
            yield from inside
            if not inside:
                problems.append(Problem("command line", "", f"{path} holds no pictures ({', '.join(EXTENSIONS)})"))
        elif path.is_file():
            yield path
        else:
            problems.append(Problem("command line", "", f"there is no file or folder {path}"))
    if problems:
        raise ConfigError(problems)


def caption(prediction: Prediction, separator: str = "\n", most: int = 3) -> str:
    """The likeliest classes in words; a task without them: its values."""
    top = prediction.readable.get("top")
    if top is None:
        return str(prediction.readable)
    return separator.join(f"{one['class']} {one['probability']:.1%}" for one in top[:most])


def _write_sheet(path: Path, predictor: Predictor, done: Sequence[tuple[Path, Prediction]]) -> None:
    pictures = [to_pil(image_of(file, predictor.channels)) for file, _ in done]
    captions = [f"{file.name}\n{caption(prediction)}" for file, prediction in done]
    sheet(pictures, captions).save(path)
