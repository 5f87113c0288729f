"""Linear support vector machines on frozen features: VISSL's protocol for VOC07 (Goyal et al. 2019, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import EMBEDDING, Count, DataMismatch, DatasetInfo, Positive
from opabinia.evaluation.detection.voc import voc_ap
from opabinia.evaluation.representation.feature_bank import BankState, FeatureBankEvaluator, Rows, normalize_rows


@register.evaluator(name="linear_svm")
class LinearSvm(FeatureBankEvaluator):
    """Scores of one-vs-rest linear support vector machines: ``svm_top1``, or ``svm_mAP``
    (:func:`opabinia.evaluation.detection.voc.voc_ap`) of multi-label data.

    Features are divided by their length. The loss is the squared hinge; positive samples have the weight
    ``positive_weight``. The cost is the best one in cross-validation on the training samples: by accuracy and the same
    for all classes, or, of multi-label data, by average precision for each class, as in VISSL; the first of equal ones.

    The table (``details``): the cross-validation score of each cost.

    scikit-learn computes on one CPU core: (folds x costs + 1) machines per class.

    Args:
        dataset_info: facts about the data.
        layer: ``embedding``, or the name of a module of the task, whose feature maps or tokens are averaged over
            positions.
        costs: values of the cost C to try (VISSL's are 0.01 and 0.1, and powers of a base if one is given).
        folds: number of folds of the cross-validation (VISSL's).
        positive_weight: weight of positive samples; negative ones have 1 (VISSL's).

    Raises:
        ValueError: images have no classes, ``costs`` is empty, or there are fewer than two folds.
    """

    def __init__(
        self,
        dataset_info: DatasetInfo,
        /,
        *,
        layer: str = EMBEDDING,
        costs: list[Positive] = [0.01, 0.1, 1.0, 10.0],  # noqa: B006 (never changed)
        folds: Count = 3,
        positive_weight: Positive = 2.0,
    ) -> None:
        super().__init__("linear_svm", dataset_info, [layer], multi_label=True)
        if not costs or folds < 2:
            raise ValueError(
                f"linear_svm: costs {costs}, folds {folds}; it takes one cost or more, and two folds or more"
            )
        self._classes, self._multi_label = dataset_info.classes, dataset_info.multi_label
        self._costs, self._folds, self._weight = costs, folds, positive_weight
        self._validated: list[dict[str, Any]] = []
        self.better = {"svm_mAP" if dataset_info.multi_label else "svm_top1": "max"}

    def _scores(self, train: Rows, test: Rows) -> dict[str, float]:
        """Return the score, with the costs that are best in cross-validation.

        Raises:
            DataMismatch: a class has fewer training samples than there are folds.
        """
        features, labels = normalize_rows(train.features), train.known_labels()
        test_features, targets = normalize_rows(test.features), test.known_labels()
        self._validated = []
        if not self._multi_label:
            self._check_counts(np.bincount(labels, minlength=len(self._classes)))
            weights = dict.fromkeys(range(len(self._classes)), self._weight)
            machine = self._fit(features, labels, weights, "accuracy")
            return {"svm_top1": float((machine.predict(test_features) == targets).mean())}
        positive = (labels > 0.5).astype(np.int64)
        self._check_counts(np.minimum(positive.sum(0), (1 - positive).sum(0)))
        precisions = []
        for k, name in enumerate(self._classes):
            machine = self._fit(features, positive[:, k], {1: self._weight}, "average_precision", {"class": name})
            precisions.append(voc_ap(targets[:, k] > 0.5, machine.decision_function(test_features)))
        known = [precision for precision in precisions if not np.isnan(precision)]
        return {"svm_mAP": float(np.mean(known))} if known else {}

    def details(self, states: Sequence[BankState]) -> dict[str, Any]:
        """Return the table."""
        return {"linear_svm": self._validated} if self._validated else {}

    def _check_counts(self, counts: NDArray[Any]) -> None:
        few = [f"{name} ({count})" for name, count in zip(self._classes, counts, strict=True) if count < self._folds]
        if few:
            raise DataMismatch(
                f"linear_svm: cross-validation with {self._folds} folds needs as many training samples with and "
                f"without each class; there are fewer of {', '.join(few[:5])}"
            )

    def _fit(
        self,
        features: NDArray[Any],
        labels: NDArray[Any],
        weights: dict[int, float],
        scoring: str,
        columns: dict[str, str] = {},  # noqa: B006 (never changed)
    ) -> Any:
        """Return the machine with the cost that is best in cross-validation, and note the scores of all costs."""
        from sklearn.model_selection import cross_val_score  # slow to import, and most runs do not need it
        from sklearn.svm import LinearSVC

        # dual: the smaller of the two problems; both have the same solution. Tolerance and bias are liblinear's.
        options = {"class_weight": weights, "dual": "auto", "max_iter": 2000, "random_state": 0}
        machines = [LinearSVC(C=cost, loss="squared_hinge", **options) for cost in self._costs]
        scores = [
            float(cross_val_score(machine, features, labels, cv=self._folds, scoring=scoring).mean())
            for machine in machines
        ]
        self._validated += [
            {**columns, "cost": cost, scoring: score} for cost, score in zip(self._costs, scores, strict=True)
        ]
        return machines[scores.index(max(scores))].fit(features, labels)
