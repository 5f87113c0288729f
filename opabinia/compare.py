"""What the predict command does with pictures whose truth is known: draw it beside what a detector finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Source
from opabinia.drawing import beside, with_things
from opabinia.extract import only
from opabinia.launch import parts_of
from opabinia.loading import load, resolve
from opabinia.pictures import things_found, things_there
from opabinia.predict import tell
from opabinia.runtime.files import told
from opabinia.runtime.log import logging_to


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
    where an evaluation has told which these are.

    Args:
        run: the run folder.
        split: ``train``, or the prefix of a validation set.
        out: where the pictures are written.
        most: how many pictures.
        score: of what is drawn of things found.
        checkpoint: see :func:`opabinia.load`.
        device: likewise.

    Raises:
        ConfigError: there is no such run, checkpoint or set, or its samples do not tell where things are.
        DataError: some pictures could not be read; the others are drawn.
    """
    with logging_to(None):
        predictor = load(run, checkpoint=checkpoint, device=device)
        source = parts_of(only(resolve(run), split)).keywords["data"].validation[0].source
    if not getattr(source, "has_boxes", False):
        raise ConfigError(Problem("command line", "--split", f"{split} does not tell where things are in its pictures"))
    folder = out / "pictures"
    console = Console(highlight=False)
    broken: list[str] = []
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        chosen = _worst_first(run, split, source)[:most]
        for number, index in enumerate(chosen):
            try:
                sample = source[index]
            except (OSError, ValueError) as error:
                broken.append(str(error))
                continue
            picture, truth = sample["image"], sample["truth"]
            found = things_found(predictor(picture), predictor.classes, truth.size, score)
            there = things_there(truth, source.classes)
            drawn = [with_things(picture, there), with_things(picture, found)]
            path = folder / f"{number:05d}-{Path(str(sample['id'])).stem}.png"
            beside(drawn, [f"{sample['id']}: there are {len(there)}", f"found: {len(found)}"]).save(path)
            console.print(f"{sample['id']}  there are {len(there)}, found {len(found)}", soft_wrap=True)
    console.print(f"the pictures are in {folder}", soft_wrap=True)
    tell(broken, len(chosen))


def _worst_first(run: Path, split: str, source: Source) -> list[int]:
    """Indices of the samples, in the order in which an evaluation of the run names its worst pictures."""
    details = run / "eval" / split / "details.json"
    worst: list[Any] = json.loads(details.read_text("utf-8")).get("worst", []) if details.is_file() else []
    id_of: Callable[[int], str] | None = getattr(source, "id", None)
    if not worst or id_of is None:
        return list(range(len(source)))
    places = {one["id"]: place for place, one in enumerate(worst)}
    return sorted(range(len(source)), key=lambda index: places.get(id_of(index), len(places)))
