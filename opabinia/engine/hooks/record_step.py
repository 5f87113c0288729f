"""The hook that records one step: its batch, its losses and its gradient norms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from opabinia.contracts import Batch, Hook, Run
from opabinia.engine.checkpointing.checkpoint import save_tensors
from opabinia.engine.loggers.metrics_log import to_json_numbers
from opabinia.runtime.json_files import write_json
from opabinia.runtime.processes import is_rank_zero, rank


class StepRecorded(Exception):
    """The step is recorded; ends the run."""


class RecordStep(Hook):
    """Records a step, then ends the run.

    Files: ``batch.safetensors``; ``batch.json`` (values of the batch that are not tensors, without ground truth);
    ``gradients.json`` (the norm of each gradient); ``step.json``, if the step completes. Other ranks write
    ``batch.rank1.safetensors`` and so on.

    Args:
        step: the optimizer step, from 1 on.
        folder: folder of the files.
    """

    def __init__(self, step: int, folder: Path) -> None:
        self.step, self.folder = step, folder
        self._norms: dict[str, float | str] = {}

    def before_step(self, run: Run, batch: Batch) -> None:
        """Write the batch, before the step can fail."""
        if run.clock.step + 1 != self.step:
            return
        name = "batch" if is_rank_zero() else f"batch.rank{rank()}"
        tensors = dict(_tensors(batch))
        save_tensors(self.folder / f"{name}.safetensors", tensors)
        excluded = {tensor_name.split(".")[0] for tensor_name in tensors}
        write_json(self.folder / f"{name}.json", {key: value for key, value in batch.items() if key not in excluded})

    def after_backward(self, run: Run) -> None:
        """Write the 2-norm of every gradient. Norms of sharded gradients need all processes."""
        if run.clock.step + 1 != self.step:
            return
        gradients = {name: param.grad for name, param in run.task.named_parameters() if param.grad is not None}
        norms = dict(zip(gradients, torch._foreach_norm(list(gradients.values())), strict=True))
        full = {name: norm.full_tensor() if isinstance(norm, DTensor) else norm for name, norm in norms.items()}
        self._norms = to_json_numbers({name: float(norm) for name, norm in full.items()})
        if is_rank_zero():
            write_json(self.folder / "gradients.json", self._norms)

    def after_step(self, run: Run) -> None:
        """Write the values of the step.

        Raises:
            StepRecorded: always, after the step.
        """
        if run.clock.step != self.step:
            return
        run.metrics_log.flush(run.clock)
        if is_rank_zero():
            write_json(self.folder / "step.json", {**(run.metrics_log.newest or {}), "gradients": self._norms})
        raise StepRecorded


def _tensors(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a batch by name; those in a list or tuple by its name and their index."""
    for key, value in batch.items():
        if isinstance(value, Tensor):
            yield key, value
        elif isinstance(value, list | tuple):
            yield from ((f"{key}.{index}", item) for index, item in enumerate(value) if isinstance(item, Tensor))
