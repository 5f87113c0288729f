"""The hook that freezes a part of the model, for some time or for the whole run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from opabinia.config import register
from opabinia.contracts import Batch, Hook, Run
from opabinia.runtime.durations import Duration


@register.hook(name="freeze")
class Freeze(Hook):
    """Freezes parameters: no gradient, no momentum, no weight decay (FastReID's FREEZE_LAYERS).

    Modules whose parameters are all frozen are in evaluation mode: running statistics of norms do not change, dropout
    and stochastic depth are off. The time is that of the run, so a resumed run unfreezes at the same step. A linear
    probe is ``{name: freeze, pattern: ^backbone}``.

    Args:
        pattern: a regular expression; parameters whose names contain a match are frozen. Example: ``^backbone``.
        until: time from the start of the run at which they are unfrozen; null: never.
        eval_mode: whether frozen modules are in evaluation mode; false leaves norms and dropout in training mode.
    """

    def __init__(self, *, pattern: str, until: Duration | None = None, eval_mode: bool = True) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern: {pattern!r} is not a regular expression: {error}") from error
        self.until, self.eval_mode = until, eval_mode
        self._frozen: list[nn.Parameter] = []
        self._modules: list[nn.Module] = []

    def start(self, run: Run) -> None:
        """Freeze.

        Raises:
            ValueError: no parameter's name matches, or all do.
        """
        if run.loader is None:  # an evaluation-only run
            return
        trainable = {name: param for name, param in run.task.named_parameters() if param.requires_grad}
        self._frozen = [param for name, param in trainable.items() if self._pattern.search(name)]
        if not self._frozen:
            names = ", ".join([*list(trainable)[:3], "...", *list(trainable)[-2:]])
            raise ValueError(f"no parameter's name contains {self._pattern.pattern!r}; names: {names}")
        if self._is_over(run):
            self._frozen = []
            return
        if len(self._frozen) == len(trainable):
            raise ValueError(f"{self._pattern.pattern!r} matches every parameter: none would be trained")
        for param in self._frozen:
            param.requires_grad_(False)
            param.grad = None
        if self.eval_mode:
            self._modules = [module for module in _frozen_modules(run.task) if module.training]
            for module in self._modules:
                module.eval()

    def before_step(self, run: Run, batch: Batch) -> None:
        """Unfreeze when it is time."""
        if self._frozen and self._is_over(run):
            for param in self._frozen:
                param.requires_grad_(True)
            for module in self._modules:
                module.train()
            self._frozen, self._modules = [], []

    def _is_over(self, run: Run) -> bool:
        return self.until is not None and run.clock.step >= run.clock.steps(self.until)


def _frozen_modules(task: nn.Module) -> Iterator[nn.Module]:
    """Yield the largest modules that have parameters, all of them frozen."""
    params = list(task.parameters())
    if params and not any(param.requires_grad for param in params):
        yield task
        return
    for module in task.children():
        yield from _frozen_modules(module)
