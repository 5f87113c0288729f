"""Predictors of multi-task runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from opabinia.config import ConfigError, Problem
from opabinia.config.errors import listing, nearest
from opabinia.contracts import Sample
from opabinia.inference.predictor import Predictor
from opabinia.tasks.multitask import Multitask
from opabinia.training.trained_model import TrainedModel


class MultitaskPredictor(Predictor):
    """Predict images with several tasks, for each with the transforms of its own validation data.

    Args:
        task: the trained model with these tasks.
        predictors: predictors of tasks that see the same images.
        options: see :class:`opabinia.inference.predictor.Predictor`.
    """

    def __init__(self, task: Multitask, predictors: Sequence[Predictor], **options: Any) -> None:
        super().__init__(task, predictors[0].transforms, task.dataset_info, **options)
        self.predictors, self._choice = predictors, f"name it with --task: {', '.join(task.tasks)}"

    def _transformed(self, sample: Sample) -> Sample:
        inputs = [predictor.transform(sample) for predictor in self.predictors]
        return {**inputs[0], "inputs": inputs}

    def tensors(self, samples: Sequence[Sample]) -> list[dict[str, Tensor]]:
        """See :meth:`opabinia.inference.predictor.Predictor.tensors`."""
        columns = [
            predictor.tensors([sample["inputs"][number] for sample in samples])
            for number, predictor in enumerate(self.predictors)
        ]
        return [
            {name: value for tensors in row for name, value in tensors.items()} for row in zip(*columns, strict=True)
        ]

    def embeddings(self, samples: Sequence[Sample]) -> Tensor:
        """Refuse: each task has embeddings of its own.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(Problem("command line", "--task", f"embeddings are those of one task; {self._choice}"))

    def explain(self, samples: Sequence[Sample], toward: Tensor | None = None) -> Tensor:
        """Refuse: a heatmap explains the prediction of one task.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"a heatmap explains the prediction of one task; {self._choice}")


def predictor_of(trained: TrainedModel, names: Sequence[str], **options: Any) -> Predictor:
    """Return the predictor of some tasks of a multi-task model; of a single one as that of a run of it alone.

    Tasks whose validation transforms and padding are the same see an image once.

    Args:
        trained: the model.
        names: names of the tasks; empty: all that predict something for an image.
        options: options of :class:`opabinia.inference.predictor.Predictor`.

    Raises:
        ConfigError: the model has no such task.
    """
    task = trained.task
    known = list(task.tasks) if isinstance(task, Multitask) else []
    for name in names:
        if name not in known:
            message = f"there is no task {name!r}" if known else "the run has one task only"
            allowed = f"tasks: {listing(known)}" if known else ""
            raise ConfigError(Problem("command line", "--task", message, "", nearest(name, known), allowed))
    assert isinstance(task, Multitask)
    reading = {name: group for group in trained.task_transforms for name in group.tasks}
    if len(names) == 1:
        (name,) = names
        dataset_info = task.dataset_info.streams[task.stream_of(name)]
        group = reading[name]
        return Predictor(task.single_task(name), group.transforms, dataset_info, views=group.views, **options)
    selected = task.select(names or task.predicting_tasks())
    by_reading: dict[tuple[int, int | None], list[str]] = {}
    for name in selected.tasks:
        by_reading.setdefault((id(reading[name]), task.size_multiple_of(name)), []).append(name)
    predictors = [
        Predictor(selected.select(group), reading[group[0]].transforms, task.dataset_info, **options)
        for group in by_reading.values()
    ]
    return MultitaskPredictor(selected, predictors, **options)
