"""Ensembles: several trained models of one task, which predict as one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from opabinia.contracts import EMBEDDING, Batch, DatasetInfo, Evaluator, Predictions, Presenter, Task
from opabinia.models.embeddings import join_embeddings


class Ensemble(Task):
    """Models of one task whose predictions are combined by :meth:`opabinia.contracts.Task.predict_together`.

    It is evaluated, and its predictions are shown, as those of the first model.

    Args:
        models: of the same task, classes and padding.

    Raises:
        ValueError: the task has no rule by which predictions are combined.
    """

    def __init__(self, models: Sequence[Task]) -> None:
        super().__init__()
        first = models[0]
        if type(first).predict_together is Task.predict_together:
            raise ValueError(f"predictions of several models of {type(first).__name__} cannot be combined")
        self.models = nn.ModuleList(models)
        self.size_multiple, self.takes_video = first.size_multiple, first.takes_video
        self.predicts_embedding_only, self.masks_of_files = first.predicts_embedding_only, first.masks_of_files

    @property
    def members(self) -> list[Task]:
        """The models."""
        return [model for model in self.models if isinstance(model, Task)]

    def predict(self, batch: Batch) -> Predictions:
        """Return the combined predictions of all models."""
        return self.members[0].predict_together(self.members, batch)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """Return ``embedding`` (B x D), see :func:`opabinia.models.embeddings.join_embeddings`."""
        return {EMBEDDING: join_embeddings([model.features(batch)[EMBEDDING] for model in self.members])}

    def evaluators(self, dataset_info: DatasetInfo) -> list[Evaluator]:
        """Return the evaluators of the first model."""
        return self.members[0].evaluators(dataset_info)

    def presenter(self) -> Presenter | None:
        """Return the presenter of the first model."""
        return self.members[0].presenter()

    def explain(self, batch: Batch) -> Tensor | None:
        """Refuse: a heatmap explains the prediction of one model.

        Raises:
            ValueError: always.
        """
        raise ValueError("a heatmap explains the prediction of one model, not of an ensemble: give one of its runs")
