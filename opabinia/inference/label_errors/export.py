"""The samples with suspicious labels as drafts for an annotation tool."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL.Image import Image

from opabinia.config import ConfigError, Problem
from opabinia.contracts import Sample, Source
from opabinia.evaluation.label_errors.suspects import Suspect
from opabinia.inference.annotation_files.drafts import Draft, from_ground_truth, image_name, mark_suspects
from opabinia.inference.annotation_files.write import Tool, write_drafts
from opabinia.inference.label_errors.collect import CollectedRun, find_samples
from opabinia.inference.label_errors.page import Located
from opabinia.visualization.drawing import to_pil


def export_suspects(suspects: Sequence[Located], out: Path, tool: Tool) -> int:
    """Write the samples with suspicious labels as drafts, the most suspicious first, and return their number. Samples
    that can no longer be read are omitted.

    Args:
        suspects: each with its run, see :class:`opabinia.inference.label_errors.find.FoundLabels`.
        out: the folder to write.
        tool: the annotation tool.

    Raises:
        ConfigError: there are none, they are videos, or ``out`` exists.
        DiskError: a file cannot be written.
    """
    if not suspects:
        raise ConfigError(Problem("command line", "--export", "no label is suspicious: there is nothing to export"))
    info = suspects[0][1].source.info
    return write_drafts(
        _drafts(suspects),
        out,
        tool,
        info.classes,
        of_images=not (info.boxes or info.maps),
        multi_label=info.labels is not None and info.single_labels is None,
    )


def _drafts(suspects: Sequence[Located]) -> Iterator[tuple[Draft, Path | Image]]:
    by_sample: dict[str, tuple[CollectedRun, list[Suspect]]] = {}
    for suspect, run in suspects:
        by_sample.setdefault(suspect.id, (run, []))[1].append(suspect)
    indices = find_samples((name, run) for name, (run, _) in by_sample.items())
    for name, (run, of_sample) in by_sample.items():
        index = indices[name]
        try:
            sample = run.source[index]
        except (OSError, ValueError):
            continue
        if "video" in sample:
            raise ConfigError(Problem("command line", "--export", f"{name} is a video: only images are exported"))
        annotations = mark_suspects(from_ground_truth(sample, run.source.classes), of_sample)
        notes = [f"{suspect.issue}: {suspect.reason}" for suspect in of_sample if suspect.place is None]
        height, width = sample["image"].shape[-2:]
        score = max(suspect.score for suspect in of_sample)
        draft = Draft(image_name(name), (height, width), annotations, score, "" if annotations else "; ".join(notes))
        yield draft, _image(run.source, index, sample)


def _image(source: Source, index: int, sample: Sample) -> Path | Image:
    """Return the file of a sample's image, or its pixels if it has none."""
    for path in map(os.fsdecode, source.paths(index)):
        if path.endswith(Path(image_name(sample["id"])).suffix) and os.path.isfile(path):
            return Path(path)
    return to_pil(sample["image"])
