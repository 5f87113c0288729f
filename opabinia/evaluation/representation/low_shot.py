"""What a classifier learns from a few images of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import EMBEDDING, Count, DataMismatch, DatasetInfo, Positive
from opabinia.evaluation.representation.feature_bank import Learner, Rows, Sides, normalised, refuse_unlabelled


@register.evaluator(name="low_shot")
class LowShot(Learner):
    """Shares of samples that logistic regression tells rightly after a few training images of each class:
    ``low_shot_1``, ``low_shot_2`` ..., means over several draws.

    The regression is MSN's (Assran et al. 2022, section 5): of each vector its own mean is taken off, and it is divided
    by its length; there is no bias. Within a draw, who is among the first image of a class is among the first two, too.

    The table (``details``): mean, deviation and each draw's share.

    Args:
        facts: of the data.
        layer: ``embedding``, or the name of a module of the task, whose maps and tokens are averaged over their places.
        shots: images of each class.
        draws: of other images; VISSL's 5.
        regularization: half of it times the squared weights is added to the sum of the losses (VISSL's).
        seed: of the draws.

    Raises:
        ValueError: images have no classes, or several; or there are no shots.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        layer: str = EMBEDDING,
        shots: list[Count] = [1, 2, 4, 8, 16],  # noqa: B006 (never changed)
        draws: Count = 5,
        regularization: Positive = 0.025,
        seed: int = 0,
    ) -> None:
        refuse_unlabelled("low_shot", dataset_info)
        if not shots:
            raise ValueError("low_shot: shots is empty; it takes one number of images or more")
        super().__init__([layer])
        self._classes, self._shots, self._draws, self._seed = dataset_info.classes, shots, draws, seed
        self._regularization = regularization
        self._found: dict[int, list[float]] = {}
        self.better = dict.fromkeys((f"low_shot_{shot}" for shot in shots), "max")

    def compute(self, states: Sequence[Sides]) -> dict[str, float]:
        """Means over the draws.

        Raises:
            Unfit: a class has fewer training images than there are shots, or a feature is not finite.
        """
        sides = self.sides(states, self.layers[0])
        if sides is None:
            return {}
        (known, labels), (asked, right) = (_preprocessed(side) for side in sides)
        orders = [self._order(labels, draw) for draw in range(self._draws)]
        self._found = {
            shot: [self._share(known, labels, order[:, :shot].ravel(), asked, right) for order in orders]
            for shot in self._shots
        }
        return {f"low_shot_{shot}": float(np.mean(shares)) for shot, shares in self._found.items()}

    def details(self, states: Sequence[Sides]) -> dict[str, Any]:
        """The table, in plain values."""
        rows = [
            {"shots": shot, "mean": float(np.mean(shares)), "deviation": float(np.std(shares)), "draws": shares}
            for shot, shares in self._found.items()
        ]
        return {"low_shot": rows} if rows else {}

    def _order(self, labels: NDArray[Any], draw: int) -> NDArray[np.int64]:
        """Numbers of training samples of each class, in the order in which this draw takes them (K x largest shot)."""
        generator = np.random.default_rng((self._seed, draw))
        most = max(self._shots)
        rows = []
        for number, name in enumerate(self._classes):
            own = np.flatnonzero(labels == number)
            if len(own) < most:
                raise DataMismatch(
                    f"low_shot: the class {name} has {len(own)} training images, fewer than {most}; lower shots"
                )
            rows.append(generator.permutation(own)[:most])
        return np.stack(rows)

    def _share(
        self, known: NDArray[Any], labels: NDArray[Any], rows: NDArray[Any], asked: NDArray[Any], right: NDArray[Any]
    ) -> float:
        from sklearn.linear_model import LogisticRegression  # most runs need none of it

        # Its C stands before the sum of the losses, with half the squared weights beside it.
        model = LogisticRegression(C=1 / self._regularization, fit_intercept=False, max_iter=1000)
        return float((model.fit(known[rows], labels[rows]).predict(asked) == right).mean())


def _preprocessed(rows: Rows) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Centred vectors of length 1, and the labels."""
    return normalised(rows.features - rows.features.mean(1, keepdims=True)), rows.known_labels()
