"""Export of all tasks of a multi-task run as one function of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opabinia.contracts import Batch, ExportModule, Predictions, Sample, Task
from opabinia.tasks.dense_base import PaddedExport, padded_inputs


class MultitaskExport(ExportModule):
    """The outputs of each task as ``NAME/OUTPUT``, such as ``boxes/scores``.

    The backbone is computed once, or with batch norm statistics per stream once for each stream.

    Inputs are ``image`` and, if a task takes padded images, ``image_sizes``; see
    :class:`opabinia.tasks.dense_base.PaddedExport`.

    Args:
        task: a multi-task model in evaluation mode, on the CPU.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        exports = {name: self.task.single_task(name).export_module() for name in self.task.tasks}
        self.exports: Any = nn.ModuleDict(exports)

    def check_static(self) -> None:
        for name, export in self.exports.items():
            try:
                export.check_static()
            except ValueError as error:
                raise ValueError(f"{name}: {error}; the other tasks can be exported with --task") from error

    def inputs(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """Return transformed samples as inputs, padded if a task takes padded images."""
        if any(isinstance(export, PaddedExport) for export in self.exports.values()):
            return padded_inputs(samples, self.task.size_multiple)
        return super().inputs(samples)

    def forward(self, image: Tensor, image_sizes: Tensor | None = None) -> Predictions:
        """Return the outputs of all tasks."""
        inputs = {"image": image} if image_sizes is None else {"image": image, "image_sizes": image_sizes}
        return self._outputs(inputs, expected=False)

    @torch.no_grad()
    def expected(self, inputs: Mapping[str, Tensor]) -> Predictions:
        return self._outputs(inputs, expected=True)

    def _outputs(self, inputs: Mapping[str, Tensor], *, expected: bool) -> dict[str, Tensor]:
        """Return what the exported functions compute, or what their tasks predict."""
        batch: Batch = dict(inputs)
        outputs: dict[str, Tensor] = {}
        for stream, names in self.task.joint_tasks():
            self.task.use_stream(stream)
            features = None if expected else self.task.extract_for(names, batch, stream)
            for name in names:
                export = self.exports[name]
                if features is None:
                    values = export.expected(batch)
                elif export.task.reads:
                    values = export.outputs(features, **batch)
                else:
                    values = export(batch["image"])
                outputs |= {f"{name}/{key}": value for key, value in values.items()}
        return outputs

    def difference(self, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> float:
        """Return the largest difference of a task."""
        differences: list[float] = [
            export.difference(prediction_of(expected, name), prediction_of(actual, name))
            for name, export in self.exports.items()
        ]
        return max(differences)


def prediction_of(prediction: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the prediction of one task out of that of all."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in prediction.items() if key.startswith(prefix)}
