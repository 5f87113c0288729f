"""Samples that an exported model is compared on: real ones, where the validation data is there, or else drawn."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from opabinia.config import ConfigError, Resolved
from opabinia.contracts import Row, Sample
from opabinia.data import ValidationStream
from opabinia.data.loader import DataError, Reader, Request
from opabinia.inference.extract import only
from opabinia.inference.predictor import Predictor
from opabinia.training.run_folder import build_parts, validation_sets

SIDE, FRAMES = 256, 64
"""Of drawn pictures and films."""


class Chosen(NamedTuple):
    """Transformed samples, and where they are from, in words."""

    samples: list[Sample]
    source: str


def chosen(resolved: Resolved, predictor: Predictor, count: int) -> Chosen:
    """Samples from all over the validation data, or drawn ones where it cannot be read.

    Args:
        resolved: the run's config.
        predictor: takes drawn pictures.
        count: how many.
    """
    try:
        return _real(resolved, count)
    except (ConfigError, DataError, OSError, ValueError) as error:
        logging.getLogger("opabinia").info("the validation data cannot be read: %s", error)
        what = "films" if predictor.films else "pictures"
        return Chosen(_drawn(predictor, count), f"{count} drawn {what} (the validation data cannot be read)")


def _real(resolved: Resolved, count: int) -> Chosen:
    """Samples evenly from all over the first validation set.

    Raises:
        ConfigError: there is no such set, or it is not where the config says.
        DataError: a sample cannot be read.
    """
    if not validation_sets(resolved.config):
        raise ValueError("the run has none")
    stream: ValidationStream = build_parts(only(resolved, "val")).keywords["data"].validation[0]
    total = len(stream.source)
    numbers = np.linspace(0, total - 1, min(count, total)).astype(np.int64)
    reader = Reader(stream.source, stream.transforms)
    samples = [sample for number in numbers for sample in _read(reader, int(number))]
    return Chosen(samples, f"{len(samples)} samples of the validation data")


def _read(reader: Reader, number: int) -> Sequence[Sample]:
    place = np.array([number])
    batch = reader.read(Request(Row(step=0, epoch=0, first=number, count=1), place, place)).batch
    return [] if batch is None else [{"image": batch["image"][0]}]


def _drawn(predictor: Predictor, count: int) -> list[Sample]:
    draw = torch.Generator().manual_seed(0)
    shape = (predictor.channels, SIDE, SIDE)
    frames = (FRAMES,) if predictor.films else ()
    pictures = (torch.randint(0, 256, (*frames, *shape), generator=draw, dtype=torch.uint8) for _ in range(count))
    return [predictor.sample(picture) for picture in pictures]
