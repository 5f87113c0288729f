"""A task of a multi-task run by itself."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager

from torch import Tensor

from opabinia.contracts import Batch, Predictions, Task
from opabinia.models.backbones.shared import SharedNetwork


class SingleTask(Task):
    """A task that reads each batch as in its multi-task run. Instances are of its class, too.

    Attributes:
        network: shared by the tasks of the run.
        stream: the stream of training data of the task.
    """

    network: SharedNetwork
    stream: str

    @classmethod
    def of(cls, task: Task, network: SharedNetwork, stream: str) -> SingleTask:
        """Return a task as a run of it alone has it, with the backbone among its modules, which from now on has the
        batch norm statistics of the stream. Its weights are those of ``task``."""
        single = copy.copy(task)
        single.__class__ = type(type(task).__name__, (cls, type(task)), {})
        assert isinstance(single, SingleTask)
        if "backbone" in single.__dict__:
            single._modules = {**single._modules, "backbone": single.__dict__.pop("backbone")}
        single.network, single.stream = network, stream
        network.stream.name = stream
        return single

    def _reading(self, batch: Batch) -> AbstractContextManager[None]:
        return self.network.reading(self.stream, batch.get("image"), batch.get("image_sizes"))

    def predict(self, batch: Batch) -> Predictions:
        """See :meth:`opabinia.contracts.Task.predict`."""
        with self._reading(batch):
            return super().predict(batch)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """See :meth:`opabinia.contracts.Task.features`."""
        with self._reading(batch):
            return super().features(batch)

    def explain(self, batch: Batch) -> Tensor | None:
        """See :meth:`opabinia.contracts.Task.explain`."""
        with self._reading(batch):
            return super().explain(batch)
