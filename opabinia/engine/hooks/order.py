"""The order in which the hooks of a run act."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opabinia.contracts import Hook

_TASK, _USER = "the task's", "the user's"
_ORDER = (
    # First, so that it measures all that takes time.
    "timer",
    # Sets how batch norms work in this epoch, before any forward pass.
    "batch_schedule",
    # What the method itself needs (a momentum teacher) acts on the new weights before anything reads them.
    _TASK,
    # Follows every update, and is evaluated and saved with it.
    "ema",
    # They may add values to the metrics log and request a stop.
    _USER,
    # Checks and writes pending values before saving: no checkpoint is saved of weights that are not finite.
    "metrics_log",
    # After the first step.
    "compiled",
    # These two read the line that was just written.
    "training_bar",
    "bottleneck",
    # Before the evaluation: if that fails, the weights are saved, and a resumed run repeats it.
    "save",
    # The weights that were saved are evaluated.
    "evaluate",
    # Needs the scores.
    "save_best",
    # Counts the time of the evaluation.
    "eta",
)
FILES = ("model", "optimizer", "state", "statistics")
"""The other files of a checkpoint: a hook with tensors has a file named after its key."""


def check_hooks(user: Mapping[str, Hook], of_task: Collection[str] = ()) -> None:
    """Check the user's hooks.

    Raises:
        ValueError: a hook has the key of a built-in hook or one ``of_task``, or is not an
            :class:`opabinia.contracts.Hook`.
    """
    for key, hook in user.items():
        if key in _ORDER or key in of_task:
            raise ValueError(f"{key!r} is the key of a built-in hook; choose another, such as my_{key}")
        if key in FILES:
            raise ValueError(f"{key!r} is the name of a file in checkpoints; choose another key")
        if not isinstance(hook, Hook):
            raise ValueError(f"{key!r} is a {type(hook).__name__}; a hook must inherit from opabinia.contracts.Hook")


def order_hooks(
    built_in: Mapping[str, Hook | None], task: Mapping[str, Hook], user: Mapping[str, Hook]
) -> dict[str, Hook]:
    """Return all hooks of a run by key, in the order in which they act at every event.

    Args:
        built_in: built-in hooks by key; None: this run does not have it.
        task: hooks of the task.
        user: hooks of the config.

    Raises:
        ValueError: see :func:`check_hooks`.
        KeyError: a built-in hook has no place in the order.
    """
    if unknown := built_in.keys() - set(_ORDER):
        raise KeyError(f"no place in the order of hooks: {', '.join(sorted(unknown))}")
    check_hooks(user, task)
    hooks: dict[str, Hook | None] = {}
    for key in _ORDER:
        hooks |= {_TASK: task, _USER: user}.get(key, {key: built_in.get(key)})
    return {key: hook for key, hook in hooks.items() if hook is not None}
