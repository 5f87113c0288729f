"""Parameters that take no part in a step of a multi-task run."""

from __future__ import annotations

from torch import Tensor, nn

from opabinia.contracts import Hook, Run
from opabinia.runtime.processes import world_size


class IdleParameters(Hook):
    """Gives DDP, which waits for the gradient of every parameter, zeros for those that the tasks of a step do not use:
    other heads, or layers of the backbone that only other tasks read. They are discarded before the update, so that the
    optimizer skips these weights as on one process. A step in which nothing is trained changes no weight.

    Which parameters are idle depends on the tasks of the step alone; the graph is searched once for each combination.

    Args:
        model: the multi-task model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parameters: list[nn.Parameter] = []
        self._known: dict[tuple[tuple[str, ...], tuple[bool, ...]], list[nn.Parameter]] = {}
        self._idle: list[nn.Parameter] = []

    def start(self, run: Run) -> None:
        """Begin. Parameters that FSDP shards (DTensor) need no gradient."""
        params = list(self._model.parameters())
        if not any(hasattr(param, "to_local") for param in params):
            self._parameters = params

    def __call__(self, loss: Tensor, tasks: tuple[str, ...]) -> Tensor:
        """Return the loss (0-d) with 0 times every idle parameter.

        Args:
            loss: of the step.
            tasks: names of those that take part.
        """
        self._idle = []
        if not self._parameters or (world_size() == 1 and loss.requires_grad):
            return loss
        key = tasks, tuple(param.requires_grad for param in self._parameters)
        if key not in self._known:
            used = _leaves(loss)
            self._known[key] = [p for p in self._parameters if p.requires_grad and id(p) not in used]
        self._idle = self._known[key]
        return loss + sum((param.sum() * 0 for param in self._idle), loss.new_zeros(()))

    def after_backward(self, run: Run) -> None:
        """Discard the gradients."""
        for param in self._idle:
            param.grad = None


def _leaves(loss: Tensor) -> set[int]:
    """Return the ids of the leaf tensors that a loss depends on."""
    pending, seen, leaves = [loss.grad_fn], set(), set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaves.add(id(getattr(node, "variable", None)))
        pending += [following for following, _ in node.next_functions]
    return leaves
