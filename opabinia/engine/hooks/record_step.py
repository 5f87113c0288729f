"""Writes down one step: its batch, its losses and the norms of its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from opabinia.contracts import Batch, Hook, Run
from opabinia.engine.checkpointing.checkpoint import save_tensors
from opabinia.engine.loggers.metrics_log import told_in_json
from opabinia.engine.loop.evaluate import write_json
from opabinia.runtime.processes import is_rank_zero, rank


class Recorded(Exception):
    """The step is written down: there is nothing more to do."""


class Record(Hook):
    """Writes ``batch.safetensors``, ``batch.json`` (what of it are no tensors, without ``ground_truth``), ``gradients.json``
    (the norm of each) and, of a step that came to its end, ``step.json``; of further processes
    ``batch.rank1.safetensors`` and so on. Then it ends the run.

    Args:
        step: the optimizer step, from 1 on.
        folder: where to write.
    """

    def __init__(self, step: int, folder: Path) -> None:
        self.step, self.folder = step, folder
        self._norms: dict[str, float | str] = {}

    def before_step(self, run: Run, batch: Batch) -> None:
        """Write the batch, before anything can go wrong with it."""
        if run.clock.step + 1 != self.step:
            return
        name = "batch" if is_rank_zero() else f"batch.rank{rank()}"
        tensors = dict(_tensors(batch))
        save_tensors(self.folder / f"{name}.safetensors", tensors)
        told = {one.split(".")[0] for one in tensors} | {"ground_truth"}  # which only evaluations read
        plain = {key: value for key, value in batch.items() if key not in told}
        write_json(self.folder / f"{name}.json", plain)

    def after_backward(self, run: Run) -> None:
        """Note the norm of every gradient."""
        if run.clock.step + 1 == self.step:
            gradients = {name: one.grad for name, one in run.task.named_parameters() if one.grad is not None}
            self._norms = _norms(gradients)
            if is_rank_zero():
                write_json(self.folder / "gradients.json", self._norms)

    def after_step(self, run: Run) -> None:
        """Write what the step said.

        Raises:
            Recorded: it is written.
        """
        if run.clock.step != self.step:
            return
        run.metrics_log.flush(run.clock)
        if is_rank_zero():
            write_json(self.folder / "step.json", {**(run.metrics_log.newest or {}), "gradients": self._norms})
        raise Recorded


def _norms(gradients: Mapping[str, Tensor]) -> dict[str, float | str]:
    """The 2-norm of each gradient; of sharded ones all processes have to ask."""
    norms = dict(zip(gradients, torch._foreach_norm(list(gradients.values())), strict=True))
    whole = {name: norm.full_tensor() if isinstance(norm, DTensor) else norm for name, norm in norms.items()}
    return told_in_json({name: float(norm) for name, norm in whole.items()})


def _tensors(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch by name; those in a list or a tuple by its name and their number."""
    for key, value in batch.items():
        if isinstance(value, Tensor):
            yield key, value
        elif isinstance(value, list | tuple):
            parts: Sequence[Any] = value
            yield from ((f"{key}.{number}", one) for number, one in enumerate(parts) if isinstance(one, Tensor))
