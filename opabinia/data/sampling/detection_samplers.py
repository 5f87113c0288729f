"""Samplers for detection: batches of similar aspect ratios, and images of rare classes more often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import Indices, Sampler, SamplerPart, Source
from opabinia.data.sampling.epoch_order import EpochSampler, Order, OrderSampler, Permutation
from opabinia.runtime.seeds import DRAW, ORDER, hash32

# --- aspect ratios ----------------------------------------------------------------------------------------------------


@register.sampler
def aspect_ratio_batches(
    source: Source, seed: int, batch_size: int, /, *, sampler: SamplerPart | None = None
) -> Sampler:
    """Batches of only landscape or only portrait images, so that a padded batch has little padding (detectron2's
    aspect-ratio grouping, which holds images back until they fill a batch).

    The rest of both kinds fills the last batches of an epoch together: no image is lost.

    Args:
        source: knows the ``sizes`` of its images.
        seed: of the run.
        batch_size: samples of a batch over all processes.
        sampler: chooses the images of an epoch; null takes each once.

    Raises:
        ValueError: the source does not know the sizes.

    Example:
        7 landscape and 6 portrait images in batches of 4: one batch of each kind, in random order; then one of 3
        landscape images and a portrait one, and the last portrait image.
    """
    if source.info.sizes is None:
        raise ValueError(
            f"{type(source).__name__} does not know the sizes of its images, which aspect_ratio_batches needs; "
            "detection sources do"
        )
    sizes = np.asarray(source.info.sizes).reshape(-1, 2)
    is_landscape = sizes[:, 1] > sizes[:, 0]
    inner: Sampler = EpochSampler(len(source), seed) if sampler is None else sampler(source, seed, batch_size)

    def order(epoch: int) -> Order:
        """Full batches of each kind, shuffled together; then the rest."""
        drawn = inner.order(epoch)(np.arange(len(inner)))
        landscape = is_landscape[drawn]
        kinds = [
            np.split(kind, [len(kind) // batch_size * batch_size]) for kind in (drawn[landscape], drawn[~landscape])
        ]
        batches = np.concatenate([full for full, _ in kinds]).reshape(-1, batch_size)
        shuffled = batches[Permutation(len(batches), hash32(ORDER, seed, epoch, 1))(np.arange(len(batches)))]
        indices = np.concatenate([shuffled.ravel(), *(rest for _, rest in kinds)])
        return lambda positions: indices[np.asarray(positions)]

    return OrderSampler(len(inner), order)


# --- rare classes -----------------------------------------------------------------------------------------------------


@register.sampler
def repeat_factor(
    source: Source,
    seed: int,
    batch_size: int,
    /,
    *,
    threshold: Annotated[float, Interval(gt=0, le=1)] = 0.001,
    sqrt: bool = True,
) -> Sampler:
    """Images of rare classes several times per epoch (Gupta et al. 2019, LVIS, section 5.1).

    An image's factor is that of its rarest class (:func:`repeat_factors`). In each epoch it is repeated as often as the
    factor, rounded up with the probability of its fraction, else down. All epochs have the same length.

    Args:
        source: knows the classes in each image (``present``).
        seed: of the run.
        batch_size: not used.
        threshold: share of images below which a class is rare (default: the paper's, for LVIS).
        sqrt: dampen the factor by a square root, as in the paper; without it a class below the threshold appears about
            as often as if it were at the threshold.

    Raises:
        ValueError: the source does not know the classes.
    """
    if source.info.present is None:
        raise ValueError(
            f"{type(source).__name__} does not know the classes in its images, which repeat_factor needs; detection "
            "sources do"
        )
    return stochastic_rounding(repeat_factors(source.info.present, len(source.classes), threshold, sqrt), seed)


def stochastic_rounding(factors: NDArray[np.float64], seed: int) -> Sampler:
    """Return a sampler that repeats each sample by its factor, randomly rounded up or down in each epoch.

    Args:
        factors: repeats per epoch, at least 0 (float64, N).
        seed: of the run.
    """
    whole = np.floor(factors).astype(np.int64)
    fractions = factors - whole
    rounded_up = round(float(fractions.sum()))
    probabilities = rescale_to_sum(fractions, rounded_up)

    def order(epoch: int) -> Order:
        """All repeats, shuffled."""
        key = hash32(DRAW, seed, epoch)
        samples = Permutation(len(whole), key)(np.arange(len(whole)))
        # Systematic sampling: a sample is rounded up if the running sum of probabilities crosses a whole number there.
        ends = np.minimum(np.cumsum(probabilities[samples]), rounded_up)
        ends[-1:] = rounded_up
        crossed: Indices = np.floor(ends + hash32(key) / 2**32).astype(np.int64)
        times = whole.copy()
        times[samples] += crossed - np.concatenate([[0], crossed[:-1]])
        indices = np.repeat(np.arange(len(times)), times)
        shuffled = Permutation(len(indices), hash32(ORDER, seed, epoch))
        return lambda positions: indices[shuffled(positions)]

    return OrderSampler(int(whole.sum()) + rounded_up, order)


def repeat_factors(
    present: Sequence[Indices], classes: int, threshold: float, sqrt: bool = True
) -> NDArray[np.float64]:
    """Return the repeats of each image per epoch (float64, N): max(1, sqrt(threshold / share)) of its rarest class,
    where share is that of images with the class; 1 for images without objects.

    Args:
        present: the classes in each image (N arrays of int64, each class once).
        classes: number of classes.
        threshold: share above which a class is not repeated.
        sqrt: take the square root; otherwise threshold / share itself.

    Example: with a threshold of 0.1, classes in 0.99, 0.09 and 0.01 of the images have 1, 1.054 and 3.162.
    """
    counts = [len(image_classes) for image_classes in present]
    labels = np.concatenate([np.empty(0, np.int64), *present]).astype(np.int64)
    shares = np.bincount(labels, minlength=classes) / max(1, len(counts))
    # A class without images is never looked up.
    factors = np.maximum(1, (threshold / np.where(shares, shares, 1)) ** (0.5 if sqrt else 1.0))
    largest = np.ones(len(counts))
    np.maximum.at(largest, np.repeat(np.arange(len(counts)), counts), factors[labels])
    return largest


def rescale_to_sum(probabilities: NDArray[np.float64], total: int) -> NDArray[np.float64]:
    """Rescale probabilities (0 to below 1) to the integer ``total`` nearest to their sum; 0 stays 0, none exceeds 1.

    Example: 0.5, 0.5, 0.7 with the sum 2 become 0.615, 0.615, 0.769: the differences to 1 are scaled.
    """
    current = float(probabilities.sum())
    if total <= current:
        return probabilities * (total / current if current else 0.0)
    missing = np.where(probabilities > 0, 1 - probabilities, 0)
    positive = int((probabilities > 0).sum())
    return np.where(probabilities > 0, 1 - missing * ((positive - total) / (positive - current)), 0)
