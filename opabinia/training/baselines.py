"""Scores that need no training, which a trained model should beat: a constant answer, and the most similar image."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize
from torchvision.transforms.v2 import InterpolationMode

from opabinia.config import Resolved
from opabinia.contracts import SINGLE, Sample, Source
from opabinia.data.decoding.images import Box, LazyImage, decode_sample
from opabinia.data.decoding.resized import ResizedCrop, resize_pixels
from opabinia.evaluation.retrieval.retrieval import evaluate, recall
from opabinia.training.run_folder import build_parts
from opabinia.training.streams import training_streams

THUMBNAIL = 16
"""Height and width of the images that are compared, in pixels."""

_BILINEAR = InterpolationMode.BILINEAR
_MAX_TRAINING, _MAX_VALIDATION = 5000, 1000
_RANKED = re.compile(r"mAP|mAP@R|mINP|r_precision|(rank|recall)\d+")
_ACCURACIES = ("top1", "knn_top1", "linear_top1", "svm_top1", "mean_recall")


class Baseline(NamedTuple):
    """A baseline and its score.

    Attributes:
        text: what it does, such as ``always answering "shirt"``.
        score: its value of the metric.
    """

    text: str
    score: float


def constant_baseline(metric: str, details: Mapping[str, Any], samples: int | None) -> Baseline | None:
    """Return the score of the best constant answer, from the tables of an evaluation; None if it is not known.

    Args:
        metric: such as ``val/top1``.
        details: content of ``eval/<set>/details.json``.
        samples: number of validation samples; None: unknown.
    """
    name = metric.rpartition("/")[2]
    rows = details.get("per_class") or []
    counts = {row["class"]: row.get("samples", row.get("pixels", 0)) for row in rows}
    present = [count for count in counts.values() if count]
    if name.startswith(("AP", "mask_AP", "keypoint_AP", "PQ")):
        return Baseline("finding nothing", 0.0)
    if not present:
        return None
    largest = max(counts, key=counts.__getitem__)
    share = counts[largest] / sum(present)
    scores = {
        "top1": Baseline(f'always answering "{largest}"', share),
        "mean_recall": Baseline("always answering one class", 1 / len(present)),
        "mIoU": Baseline(f'"{largest}" for all pixels', share / len(present)),
        "mA": Baseline("the same answer for all images", 0.5),
    }
    if samples:
        scores["mAP"] = Baseline("equal scores for all images", sum(present) / len(present) / samples)
    return scores.get(name)


def pixel_baseline(resolved: Resolved, metric: str, seconds: float) -> Baseline | None:
    """Return the score of comparing thumbnails (16 x 16 pixels, by cosine after subtraction of the mean): the class of
    the most similar training image, or the ranking of a gallery.

    Args:
        resolved: the config of a run.
        metric: its score: top-1 accuracy or mean recall, or one of retrieval; others have no such baseline.
        seconds: maximum time for reading images, of which some are taken at random if they are too many. A gallery
            must be read as a whole, and has no baseline otherwise.

    Raises:
        ConfigError: the data cannot be opened.
    """
    prefix, _, name = metric.rpartition("/")
    if name not in _ACCURACIES and not _RANKED.fullmatch(name):
        return None
    parts = build_parts(resolved).keywords
    streams = training_streams(parts["task"], parts["data"])
    validation = {stream.prefix: stream.source for stream in parts["data"].validation}
    source = validation.get(prefix.removesuffix("_ema"))
    if source is None or SINGLE not in streams or source.info.multi_label or source.info.boxes or source.info.maps:
        return None
    if name in _ACCURACIES:
        return _nearest_class(streams[SINGLE].source, source, name, seconds)
    return _retrieval(source, name, seconds)


class _Thumbnails(NamedTuple):
    """Thumbnails of N images (float32, N x D), and the values of their samples other than the image."""

    vectors: Tensor
    samples: list[Sample]

    def column(self, key: str) -> NDArray[Any]:
        return np.array([sample[key] for sample in self.samples])


def _nearest_class(train: Source, val: Source, name: str, seconds: float) -> Baseline | None:
    known = _read(train, _MAX_TRAINING, seconds / 2)
    new = _read(val, _MAX_VALIDATION, seconds / 2)
    if not all(isinstance(sample.get("label"), int) for sample in (*known.samples, *new.samples)):
        return None
    if not known.samples or not new.samples:
        return None
    nearest = (new.vectors @ known.vectors.T).argmax(1).numpy()
    labels = new.column("label")
    right = known.column("label")[nearest] == labels
    of_classes = [right[labels == label].mean() for label in np.unique(labels)]
    score = float(np.mean(of_classes) if name == "mean_recall" else right.mean())
    few = "" if len(known.samples) == len(train) else f" of {len(known.samples)}"
    return Baseline(f"class of the most similar training image{few} ({THUMBNAIL} x {THUMBNAIL} pixels)", score)


def _retrieval(source: Source, name: str, seconds: float) -> Baseline | None:
    images = _read(source, len(source), seconds)
    if len(images.samples) < len(source) or not images.samples or "label" not in images.samples[0]:
        return None
    ids = images.column("label")
    if source.info.queries is None:
        scores = recall(images.vectors, ids) if len(np.unique(ids)) < len(ids) else {}
    else:
        queries = np.asarray(source.info.queries, bool)
        sides = [torch.from_numpy(queries), torch.from_numpy(~queries)]
        cameras = images.column("camera") if "camera" in images.samples[0] else None
        of_sides = [None, None] if cameras is None else [cameras[queries], cameras[~queries]]
        vectors = [images.vectors[side] for side in sides]
        scores = evaluate(vectors[0], vectors[1], ids[queries], ids[~queries], *of_sides)
    return (
        Baseline(f"ranking images by their {THUMBNAIL} x {THUMBNAIL} pixels", scores[name]) if name in scores else None
    )


def _read(source: Source, limit: int, seconds: float) -> _Thumbnails:
    """Read at most ``limit`` samples in a random order, or those that can be read in this time; all of them in the
    order of the source. Broken ones are skipped."""
    deadline = time.monotonic() + seconds
    order = np.arange(len(source)) if limit >= len(source) else np.random.default_rng(0).permutation(len(source))
    vectors, samples = [], []
    for index in order[:limit].tolist():
        if time.monotonic() > deadline:
            break
        try:
            sample = source.encoded(index) if source.info.encoded else source[index]
            vectors.append(_thumbnail(sample))
        except (ValueError, OSError):
            continue
        samples.append({key: value for key, value in sample.items() if key not in ("image", "video")})
    return _Thumbnails(torch.stack(vectors) if vectors else torch.zeros(0, 1), samples)


def _thumbnail(sample: Sample) -> Tensor:
    """Return an image, or the first, middle and last frame of a video, as a vector of length 1 (float32)."""
    size, image = (THUMBNAIL, THUMBNAIL), sample.get("image")
    if "video" in sample:
        count = sample["video"].frames
        frames = sample["video"].read([0, count // 2, count - 1])
        small = torch.stack([resize_pixels(frame, size, _BILINEAR, antialias=True) for frame in frames])
    elif isinstance(image, LazyImage) and image.size is not None:
        small = ResizedCrop(image, Box(0, 0, *image.size), size, _BILINEAR).decode()
    else:
        small = resize_pixels(decode_sample(sample)["image"], size, _BILINEAR, antialias=True)
    vector = small.flatten().float()
    return normalize(vector - vector.mean(), dim=0)
