"""Linear support vector machines on frozen features: VISSL's protocol for VOC07 (Goyal et al. 2019, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opabinia.config import register
from opabinia.contracts import EMBEDDING, Count, DataMismatch, DatasetInfo, Positive
from opabinia.evaluation.detection.voc import voc_ap
from opabinia.evaluation.representation.feature_bank import Learner, Sides, normalised, refuse_unlabelled


@register.evaluator(name="linear_svm")
class LinearSvm(Learner):
    """Scores of linear support vector machines, one for each class against the others: ``svm_top1``, or ``svm_mAP``
    (:func:`opabinia.evaluation.detection.voc.voc_ap`) where an image may have several labels.

    Features are divided by their length. The loss is the squared hinge, and a sample of the class counts
    ``positive_weight`` times. The cost is the one that is best in cross-validation on the training samples: by accuracy
    and one for all classes, or, of several labels, by average precision and one for each class, as in VISSL. Of equal
    ones it is the first.

    The table (``details``): what each cost reached in cross-validation.

    scikit-learn computes on one CPU core: folds times costs plus one machines for each class.

    Args:
        facts: of the data.
        layer: ``embedding``, or the name of a module of the task, whose maps and tokens are averaged over their places.
        costs: to try (VISSL's are 0.01 and 0.1, and powers of a base where it is told one).
        folds: of the cross-validation (VISSL's).
        positive_weight: of a sample of the class; of the others it is 1 (VISSL's).

    Raises:
        ValueError: images have no classes, or there are no costs or folds to choose by.
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
        refuse_unlabelled("linear_svm", dataset_info, several=True)
        if not costs or folds < 2:
            raise ValueError(
                f"linear_svm: costs {costs}, folds {folds}; it takes one cost or more, and two folds or more"
            )
        super().__init__([layer])
        self._classes, self._several = dataset_info.classes, dataset_info.multi_label
        self._costs, self._folds, self._weight = costs, folds, positive_weight
        self._tried: list[dict[str, Any]] = []
        self.better = {"svm_mAP" if dataset_info.multi_label else "svm_top1": "max"}

    def compute(self, states: Sequence[Sides]) -> dict[str, float]:
        """The score, with the costs that are best in cross-validation.

        Raises:
            Unfit: a class has fewer training samples than there are folds, or a feature is not finite.
        """
        sides = self.sides(states, self.layers[0])
        if sides is None:
            return {}
        (known, labels), (asked, right) = ((normalised(side.features), side.known_labels()) for side in sides)
        self._tried = []
        if not self._several:
            self._refuse_rare(np.bincount(labels, minlength=len(self._classes)))
            machine = self._fitted(known, labels, dict.fromkeys(range(len(self._classes)), self._weight), "accuracy")
            return {"svm_top1": float((machine.predict(asked) == right).mean())}
        there, right = (labels > 0.5).astype(np.int64), right > 0.5
        self._refuse_rare(np.minimum(there.sum(0), (1 - there).sum(0)))
        precisions = [
            voc_ap(right[:, k], self._fitted(known, there[:, k], {1: self._weight}, _AP, name).decision_function(asked))
            for k, name in enumerate(self._classes)
        ]
        told = [one for one in precisions if not np.isnan(one)]
        return {"svm_mAP": float(np.mean(told))} if told else {}

    def details(self, states: Sequence[Sides]) -> dict[str, Any]:
        """The table, in plain values."""
        return {"linear_svm": self._tried} if self._tried else {}

    def _refuse_rare(self, counts: NDArray[Any]) -> None:
        few = [f"{name} ({count})" for name, count in zip(self._classes, counts, strict=True) if count < self._folds]
        if few:
            raise DataMismatch(
                f"linear_svm: cross-validation by {self._folds} folds needs as many training samples with and without "
                f"each class; fewer are of {', '.join(few[:5])}"
            )

    def _fitted(
        self, features: NDArray[Any], labels: NDArray[Any], weights: dict[int, float], scoring: str, name: str = ""
    ) -> Any:
        """The machine with the cost that is best in cross-validation."""
        from sklearn.model_selection import cross_val_score  # most runs need none of it
        from sklearn.svm import LinearSVC

        # The primal where it is the smaller one; both have the same solution. Tolerance and bias are liblinear's.
        ways = {"class_weight": weights, "dual": "auto", "max_iter": 2000, "random_state": 0}
        machines = [LinearSVC(C=cost, loss="squared_hinge", **ways) for cost in self._costs]
        reached = [
            float(cross_val_score(one, features, labels, cv=self._folds, scoring=scoring).mean()) for one in machines
        ]
        of = {"class": name} if name else {}
        self._tried += [{**of, "cost": cost, scoring: one} for cost, one in zip(self._costs, reached, strict=True)]
        return machines[reached.index(max(reached))].fit(features, labels)


_AP = "average_precision"
