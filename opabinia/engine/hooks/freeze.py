"""Leaves a part of the model as it is, for a while or for good."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from opabinia.config import register
from opabinia.contracts import Batch, Hook, Run
from opabinia.runtime.durations import Duration


@register.hook(name="freeze")
class Freeze(Hook):
    """Parameters that do not learn: no gradient, no momentum, no weight decay (FastReID's FREEZE_LAYERS).

    Modules of which every parameter is frozen work as in evaluation: the running statistics of norms stay as they are,
    dropout and stochastic depth are off. The time is that of the run, so a resumed run thaws when it would have.
    A linear probe is ``{name: freeze, pattern: ^backbone}``.

    Args:
        pattern: a regular expression that the names of the parameters contain, such as ``^backbone``.
        duration: from the beginning of the run; null is for good.
        statistics: whether frozen modules work as in evaluation; false leaves their norms and dropouts at work.
    """

    def __init__(self, *, pattern: str, duration: Duration | None = None, statistics: bool = True) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern: {pattern!r} is no regular expression: {error}") from error
        self.duration, self.statistics = duration, statistics
        self._frozen: list[nn.Parameter] = []
        self._resting: list[nn.Module] = []

    def start(self, run: Run) -> None:
        """Freeze.

        Raises:
            ValueError: no parameter has such a name, or none is left to learn.
        """
        if run.loader is None:  # nothing learns in an evaluation
            return
        learning = {name: one for name, one in run.task.named_parameters() if one.requires_grad}
        self._frozen = [one for name, one in learning.items() if self._pattern.search(name)]
        if not self._frozen:
            names = ", ".join([*list(learning)[:3], "...", *list(learning)[-2:]])
            raise ValueError(f"no parameter's name contains {self._pattern.pattern!r}; names: {names}")
        if self._over(run):
            self._frozen = []
            return
        if len(self._frozen) == len(learning):
            raise ValueError(f"{self._pattern.pattern!r} fits every parameter: nothing would be left to learn")
        for parameter in self._frozen:
            parameter.requires_grad_(False)
            parameter.grad = None
        if self.statistics:
            self._resting = [module for module in _wholly_frozen(run.task) if module.training]
            for module in self._resting:
                module.eval()

    def before_step(self, run: Run, batch: Batch) -> None:
        """Thaw when it is time."""
        if self._frozen and self._over(run):
            for parameter in self._frozen:
                parameter.requires_grad_(True)
            for module in self._resting:
                module.train()
            self._frozen, self._resting = [], []

    def _over(self, run: Run) -> bool:
        return self.duration is not None and run.clock.step >= run.clock.steps(self.duration)


def _wholly_frozen(task: nn.Module) -> Iterator[nn.Module]:
    """The largest modules that have parameters, none of which learns."""
    own = list(task.parameters())
    if own and not any(parameter.requires_grad for parameter in own):
        yield task
        return
    for module in task.children():
        yield from _wholly_frozen(module)
