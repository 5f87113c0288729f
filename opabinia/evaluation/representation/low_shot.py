"""Few-shot classification of frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import EMBEDDING, Count, DataMismatch, DatasetInfo, Positive
from opabinia.evaluation.representation.feature_bank import BankState, FeatureBankEvaluator, Rows, normalize_rows


@register.evaluator(name="low_shot")
class LowShot(FeatureBankEvaluator):
    """Accuracy of logistic regression trained on a few images of each class: ``low_shot_1``, ``low_shot_2`` ..., means
    over several random choices of these images.

    The regression is MSN's (Assran et al. 2022, section 5): each vector is centered on its own mean and divided by its
    length; there is no bias. Within a repeat the first image of a class is also among its first two.

    The table (``details``): mean, standard deviation, and the accuracy of each repeat (``draws``).

    Args:
        dataset_info: facts about the data.
        layer: ``embedding``, or the name of a module of the task, whose feature maps or tokens are averaged over
            positions.
        shots: images per class.
        repeats: random choices of training images; VISSL's 5.
        regularization: half of it times the squared weights is added to the sum of the losses (VISSL's).
        seed: seed of the choices.

    Raises:
        ValueError: images have no classes, or several labels; or ``shots`` is empty.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        layer: str = EMBEDDING,
        shots: list[Count] = [1, 2, 4, 8, 16],  # noqa: B006 (never changed)
        repeats: Count = 5,
        regularization: Positive = 0.025,
        seed: int = 0,
    ) -> None:
        super().__init__("low_shot", dataset_info, [layer])
        if not shots:
            raise ValueError("low_shot: shots is empty; it takes one number of images or more")
        self._classes, self._shots, self._repeats, self._seed = dataset_info.classes, shots, repeats, seed
        self._regularization = regularization
        self._accuracies: dict[int, list[float]] = {}
        self.better = dict.fromkeys((f"low_shot_{shot}" for shot in shots), "max")

    def _scores(self, train: Rows, test: Rows) -> dict[str, float]:
        """Return the means over the repeats.

        Raises:
            DataMismatch: a class has fewer training images than the most shots.
        """
        from sklearn.linear_model import LogisticRegression  # slow to import, and most runs do not need it

        (features, labels), (test_features, test_labels) = (
            (normalize_rows(rows.features - rows.features.mean(1, keepdims=True)), rows.known_labels())
            for rows in (train, test)
        )
        orders = [self._sampling_order(labels, repeat) for repeat in range(self._repeats)]

        def accuracy(rows: NDArray[Any]) -> float:
            # C multiplies the sum of the losses, beside half the squared weights.
            model = LogisticRegression(C=1 / self._regularization, fit_intercept=False, max_iter=1000)
            return float((model.fit(features[rows], labels[rows]).predict(test_features) == test_labels).mean())

        self._accuracies = {shot: [accuracy(order[:, :shot].ravel()) for order in orders] for shot in self._shots}
        return {f"low_shot_{shot}": float(np.mean(values)) for shot, values in self._accuracies.items()}

    def details(self, states: Sequence[BankState]) -> dict[str, Any]:
        """Return the table."""
        rows = [
            {"shots": shot, "mean": float(np.mean(values)), "deviation": float(np.std(values)), "draws": values}
            for shot, values in self._accuracies.items()
        ]
        return {"low_shot": rows} if rows else {}

    def _sampling_order(self, labels: NDArray[Any], repeat: int) -> NDArray[np.int64]:
        """Return the training samples of each class in the order in which this repeat takes them (K x most shots)."""
        generator = np.random.default_rng((self._seed, repeat))
        needed = max(self._shots)
        rows = []
        for label, name in enumerate(self._classes):
            samples = np.flatnonzero(labels == label)
            if len(samples) < needed:
                raise DataMismatch(
                    f"low_shot: the class {name} has {len(samples)} training images, fewer than {needed}; lower shots"
                )
            rows.append(generator.permutation(samples)[:needed])
        return np.stack(rows)
