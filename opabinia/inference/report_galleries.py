"""Galleries of a report: samples of the data, ground truth and predictions, mistakes, nearest neighbors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from opabinia.contracts import EMBEDDING, DrawOptions, Indices, Presenter, Sample, Source
from opabinia.data.sources.wrapper import find_ids
from opabinia.inference import compare
from opabinia.inference import embedding_map as maps
from opabinia.inference.predictor import Prediction, Predictor
from opabinia.runtime.progress import progress_bar
from opabinia.visualization.drawing import MAX_MARKED_CLASSES, to_pil
from opabinia.visualization.video_strips import representative_image

SHOWN, PREDICTED = 24, 600
"""Maximum number of images of a gallery, and of samples that are predicted to select them."""

COMPARED, VIDEOS, QUERIES, PAIRS, IN_ROW = 12, 10, 10, 4, 8

PREDICTED_PER_CLASS = 50
"""Samples that are also predicted of each class that is often confused with another."""

THUMBNAIL, LARGE, WIDE = 160, 420, 1120
"""Longer side in pixels of a thumbnail, of a drawn image, of a strip or a map."""

OPTIONS = DrawOptions(min_score=0.5, side=LARGE, text=16)
"""Texts are large because the page shows drawn images smaller than they are."""


@dataclass(frozen=True)
class GalleryImage:
    """An image with its text; ``verdict`` is a key of :data:`opabinia.visualization.drawing.FRAME_COLORS`, ``drawn``
    (on white), or None."""

    image: Image.Image
    text: str
    verdict: str | None = None


@dataclass(frozen=True)
class GalleryRow:
    """Images that belong together."""

    images: Sequence[GalleryImage]
    title: str = ""


@dataclass(frozen=True)
class Gallery:
    """Rows of images under a heading; ``of_data``: they show the data, not predictions."""

    title: str
    rows: Sequence[GalleryRow]
    note: str = ""
    of_data: bool = False


def training_galleries(source: Source, predictor: Predictor) -> list[Callable[[], list[Gallery]]]:
    """Return the function that makes the gallery of some samples of all classes, with their ground truth."""
    return [partial(_training_samples, source, predictor)]


def _training_samples(source: Source, predictor: Predictor) -> list[Gallery]:
    labels = source.info.single_labels
    indices = round_robin(labels, spread_samples(len(source), labels, PREDICTED), SHOWN)
    samples = [source[index] for index in indices]
    images = [
        GalleryImage(_thumbnail(sample), _ground_truth(predictor.presenter(sample), sample, source.classes))
        for sample in samples
    ]
    note = f"{len(indices)} of {len(source):,}, before transforms"
    return [Gallery("Some of the training data", [GalleryRow(images)], note, of_data=True)]


def validation_galleries(
    run: Path, split: str, source: Source, predictor: Predictor
) -> list[Callable[[], list[Gallery]]]:
    """Return functions that make the galleries of a validation set; an error in one leaves the others.

    Images of one class each get a gallery of mistakes if ``probabilities`` are predicted. Other samples get the
    comparisons that are drawn of them (:meth:`opabinia.contracts.Presenter.compare`); without any, ``embedding`` gives
    a map with nearest neighbors, and anything else a gallery of captions.
    """
    evaluation = compare.evaluation_name(run, split, predictor)
    indices = compare.select_samples(predictor, run, evaluation, source, VIDEOS if predictor.takes_video else COMPARED)
    if not indices:
        return []
    is_compared = predictor.takes_video or source.info.single_labels is None
    if is_compared and compare.compare_sample(predictor, source[indices[0]], source.classes, OPTIONS) is not None:
        counted = compare.evaluation_details(run, evaluation).get("counted")
        return [partial(_comparisons, source, predictor, indices, counted["min_score"] if counted else None)]
    return [partial(_queries, run, evaluation, source), partial(_predictions, run, evaluation, source, predictor)]


# --- choice of samples ------------------------------------------------------------------------------------------------


def spread_samples(count: int, labels: Indices | None, most: int) -> list[int]:
    """Return sorted indices of at most about ``most`` samples.

    Labeled samples are whole classes, or the same number of each, so that there are several of a class; others are at
    even distances.
    """
    if count <= most:
        return list(range(count))
    if labels is None:
        return list(compare.evenly_spaced(range(count), most))
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    per_class = max(8, most // len(groups))
    shuffled = np.random.default_rng(0).permutation(len(groups))
    selected = [index for number in shuffled for index in compare.evenly_spaced(groups[number].tolist(), per_class)]
    return sorted(selected[:most])


def round_robin(labels: Indices | None, indices: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of the indices, one of each class in turn."""
    if labels is None:
        return list(compare.evenly_spaced(indices, most))
    seen: Counter[int] = Counter()
    turns = []
    for index in indices:
        label = int(labels[index])
        turns.append((seen[label], label, index))
        seen[label] += 1
    return [index for _, _, index in sorted(turns)[:most]]


def _thumbnail(sample: Sample) -> Image.Image:
    return _shrink(to_pil(representative_image(sample)), THUMBNAIL)


def _shrink(image: Image.Image, side: int) -> Image.Image:
    """Shrink an image until its longer side has at most this many pixels."""
    scale = side / max(image.size)
    if scale >= 1:
        return image
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))


def _ground_truth(presenter: Presenter, sample: Sample, classes: Sequence[str]) -> str:
    return ", ".join(presenter.ground_truth_caption(sample, classes)) or str(sample["id"])


# --- comparisons ------------------------------------------------------------------------------------------------------


def _comparisons(
    source: Source, predictor: Predictor, indices: Sequence[int], min_score: float | None
) -> list[Gallery]:
    """Return a gallery of ground truth beside predictions; of a detector those that its tables of errors count."""
    options = OPTIONS if min_score is None else OPTIONS._replace(min_score=min_score)
    rows: list[GalleryRow] = []
    with progress_bar("predict", len(indices)) as bar:
        for index in bar.track(indices):
            sample = source[index]
            comparison = compare.compare_sample(predictor, sample, source.classes, options)
            if comparison is not None:
                side, verdict = WIDE if len(comparison.panels) == 1 else LARGE, comparison.verdict
                images = [GalleryImage(_shrink(panel.image, side), panel.title, verdict) for panel in comparison.panels]
                rows.append(GalleryRow(images, str(sample["id"])))
    note = "samples with most errors in the last evaluation first"
    note += "" if min_score is None else f"; detections with a score of at least {min_score:.3g}"
    return [Gallery("Ground truth and predictions", rows, note)]


# --- retrieval --------------------------------------------------------------------------------------------------------


def _queries(run: Path, evaluation: str, source: Source) -> list[Gallery]:
    """Return the queries that the last evaluation lists, with their nearest images."""
    details = compare.evaluation_details(run, evaluation).get("retrieval", {})
    selected: dict[str, Sequence[Mapping[str, Any]]] = {
        "Queries, from the worst to the best": details.get("others", [])[:QUERIES],
        "The worst queries": details.get("worst", [])[:QUERIES],
    }
    queries = list(chain.from_iterable(selected.values()))
    if not queries:
        return []
    needed = {name for query in queries for name in (query["query"], *query["nearest"])}
    indices = find_ids(source, needed)
    note = "the query is the first in its row, followed by the images nearest to it"
    return [
        Gallery(title, [_query_row(source, query, indices) for query in queries], note)
        for title, queries in selected.items()
        if queries
    ]


def _query_row(source: Source, query: Mapping[str, Any], indices: Mapping[str, int]) -> GalleryRow:
    images = [GalleryImage(_thumbnail(source[indices[query["query"]]]), Path(query["query"]).stem)]
    for name, right in zip(query["nearest"], query["right"], strict=True):
        images.append(GalleryImage(_thumbnail(source[indices[name]]), Path(name).stem, "right" if right else "wrong"))
    return GalleryRow(images, f"average precision {query['AP']:.3f}; the first match has rank {query['first_match']}")


# --- predictions ------------------------------------------------------------------------------------------------------


def _predictions(run: Path, evaluation: str, source: Source, predictor: Predictor) -> list[Gallery]:
    """Return the mistakes of a classifier; of other models a map of embeddings, or captions."""
    labels = source.info.single_labels
    indices = spread_samples(len(source), labels, PREDICTED)
    first = next(_predict(source, indices[:1], predictor))
    if "probabilities" in first:
        if len(first["probabilities"]) != len(source.classes):
            return []
        cells = compare.evaluation_details(run, evaluation).get("confusion", [])
        confusions = sorted(((count, label, other) for label, other, count in cells if label != other), reverse=True)
        suspects = compare.worst_samples(run, evaluation, source)
        if labels is not None:
            for label in {label for _, label, _ in confusions[:PAIRS]}:
                suspects += compare.evenly_spaced(np.flatnonzero(labels == label).tolist(), PREDICTED_PER_CLASS)
        chosen = list(dict.fromkeys([*suspects, *indices]))
        with progress_bar("predict", len(chosen)) as bar:
            outcomes = list(map(partial(_outcome, source), chosen, bar.track(_predict(source, chosen, predictor))))
        total = sum(count for _, _, count in cells)
        return _mistakes(source, [outcome for outcome in outcomes if outcome is not None], total, confusions)
    if EMBEDDING not in first:
        return _captions(source, round_robin(labels, indices, SHOWN), predictor)
    embeddings = list[Tensor]()
    with progress_bar("embed", len(indices)) as bar:
        for samples in _batches(source, indices, predictor):
            embeddings.append(predictor.embeddings(samples))
            bar.advance(len(samples))
    return _embedding_galleries(source, labels, indices, torch.cat(embeddings))


def _batches(source: Source, indices: Sequence[int], predictor: Predictor) -> Iterator[list[Sample]]:
    """Yield transformed samples, as many as the predictor takes at once."""
    key, size = "video" if predictor.takes_video else "image", predictor.batch_size
    for start in range(0, len(indices), size):
        yield [predictor.sample(source[index][key]) for index in indices[start : start + size]]


def _predict(source: Source, indices: Sequence[int], predictor: Predictor) -> Iterator[Prediction]:
    return chain.from_iterable(map(predictor.batch, _batches(source, indices, predictor)))


def _captions(source: Source, indices: Sequence[int], predictor: Predictor) -> list[Gallery]:
    images = []
    for index, prediction in zip(indices, _predict(source, indices, predictor), strict=True):
        sample, presenter = source[index], predictor.presenter(prediction)
        predicted = ", ".join(presenter.caption(prediction.readable))
        text = f"{predicted} (ground truth {_ground_truth(presenter, sample, source.classes)})"
        images.append(GalleryImage(_thumbnail(sample), text))
    return [Gallery("Predictions", [GalleryRow(images)], f"{len(indices)} of {len(source):,} samples")]


class Outcome(NamedTuple):
    """A sample and the prediction of a classifier.

    Attributes:
        number: index of the sample in its source.
        truth, predicted: names of classes.
        confidence: probability of the predicted class.
        correct: whether it is the label.
        error: from 0 to 1; for one label the probability of the predicted class minus that of the label.
    """

    number: int
    truth: str
    predicted: str
    confidence: float
    correct: bool
    error: float


def _outcome(source: Source, index: int, prediction: Prediction) -> Outcome | None:
    """Return the outcome for a sample; None if it has no class."""
    label, probabilities = torch.as_tensor(source[index].get("label", -1)), prediction["probabilities"]
    names = source.classes
    if label.ndim:
        masks = (label > 0.5, probabilities > 0.5)
        truth, predicted = (", ".join(compress(names, mask.tolist())) or "none" for mask in masks)
        error = float((label - probabilities).abs().max())
        return Outcome(index, truth, predicted, 1 - error, torch.equal(*masks), error)
    if label < 0:
        return None
    number, confidence = int(probabilities.argmax()), float(probabilities.max())
    error = float(probabilities[number] - probabilities[int(label)])
    return Outcome(index, names[int(label)], names[number], confidence, number == int(label), error)


def _mistakes(
    source: Source, outcomes: Sequence[Outcome], evaluated: int, confusions: Sequence[tuple[int, int, int]]
) -> list[Gallery]:
    """Return galleries of the most wrong predictions, the most frequent confusions, and the least confident correct
    predictions.

    Args:
        source: source of the samples.
        outcomes: outcomes of samples that were predicted.
        evaluated: number of samples in the last evaluation; 0 without one.
        confusions: its mistakes, (number of them, class, predicted class), most frequent first.
    """
    names = source.classes
    wrong = sorted((outcome for outcome in outcomes if not outcome.correct), key=lambda outcome: -outcome.error)
    unsure = sorted((outcome for outcome in outcomes if outcome.correct), key=lambda outcome: outcome.confidence)
    if evaluated:
        counted = f"{sum(count for count, _, _ in confusions):,} of {evaluated:,} samples are wrong"
        pairs = [((names[label], names[other]), count) for count, label, other in confusions[:PAIRS]]
    else:
        counted = f"{len(wrong):,} of {len(outcomes):,} predicted samples are wrong"
        pairs = Counter((outcome.truth, outcome.predicted) for outcome in wrong).most_common(PAIRS)
    rows = []
    for (truth, predicted), count in pairs if len(wrong) > len(pairs) else ():
        confused = [outcome for outcome in wrong if (outcome.truth, outcome.predicted) == (truth, predicted)]
        images = [_outcome_image(source, outcome) for outcome in confused[:IN_ROW]]
        rows.append(GalleryRow(images, f"{truth} taken for {predicted}: {count}"))
    worst = [_outcome_image(source, outcome) for outcome in wrong[:SHOWN]]
    least_sure = [_outcome_image(source, outcome) for outcome in unsure[: SHOWN // 2]]
    galleries = [
        Gallery(
            "Most wrong", [GalleryRow(worst)], f"{counted}; largest margin of the predicted over the true class first"
        ),
        Gallery("Most confused", [row for row in rows if row.images], counted),
        Gallery("Right, but least sure", [GalleryRow(least_sure)], f"of {len(outcomes):,} predicted samples"),
    ]
    return [gallery for gallery in galleries if any(row.images for row in gallery.rows)]


def _outcome_image(source: Source, outcome: Outcome) -> GalleryImage:
    sample = source[outcome.number]
    words = outcome.truth if outcome.correct else f"{outcome.truth}, predicted {outcome.predicted}"
    text = f"{words} ({outcome.confidence:.0%}) · {sample['id']}"
    return GalleryImage(_thumbnail(sample), text, "right" if outcome.correct else "wrong")


# --- embeddings -------------------------------------------------------------------------------------------------------


def _embedding_galleries(
    source: Source, labels: Indices | None, indices: Sequence[int], features: Tensor
) -> list[Gallery]:
    if len(indices) < 3:
        return []
    numbers = np.asarray(indices)
    shown_labels = (np.full(len(indices), -1) if labels is None else labels[numbers]).astype(np.int64)
    embeddings = maps.EmbeddingSet(features, shown_labels, numbers, len(source), {"split": "embeddings"})
    names = [str(name) for name in source.classes] or [str(number) for number in range(int(shown_labels.max()) + 1)]
    note = f"{len(indices)} of {len(source):,} samples; at most {MAX_MARKED_CLASSES} classes have a mark of their own"
    methods: tuple[maps.Method, ...] = ("pca", "tsne")
    scatters = [(_shrink(maps.draw_scatter(embeddings, names, method), WIDE), method) for method in methods]
    drawn = [GalleryImage(image, f"by {maps.METHOD_NAMES[method]}", "drawn") for image, method in scatters]
    rows = [
        GalleryRow([GalleryImage(_shrink(image, THUMBNAIL), " ".join(texts), verdict) for image, texts, verdict in row])
        for row in maps.neighbor_rows(embeddings, source, names)
    ]
    return [
        Gallery("Map of embeddings", [GalleryRow(drawn)], note),
        Gallery("Nearest neighbors", rows, "some samples (first in each row) and their nearest neighbors, with cosine"),
    ]
