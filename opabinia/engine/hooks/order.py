"""The order in which the hooks of a run act."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opabinia.contracts import Hook

BUILT_IN = (
    *("timer", "batch_schedule", "ema", "metrics_log", "training_bar"),
    *("compiled", "bottleneck", "save", "evaluate", "save_best", "eta"),
)
FILES = ("model", "optimizer", "state", "statistics")
"""The other files of a checkpoint: a hook with tensors has a file named after its key."""


def check_hooks(user: Mapping[str, Hook], taken: Collection[str] = BUILT_IN) -> None:
    """Check the user's hooks; keys that are ``taken`` belong to other hooks.

    Raises:
        ValueError: a hook has the key of a built-in hook, or is not an :class:`opabinia.contracts.Hook`.
    """
    for key, hook in user.items():
        if key in taken:
            raise ValueError(f"{key!r} is the key of a built-in hook; choose another, such as my_{key}")
        if key in FILES:
            raise ValueError(f"{key!r} is the name of a file in checkpoints; choose another key")
        if not isinstance(hook, Hook):
            raise ValueError(f"{key!r} is a {type(hook).__name__}; a hook must inherit from opabinia.contracts.Hook")


def order_hooks(
    *,
    task: Mapping[str, Hook],
    user: Mapping[str, Hook],
    metrics_log: Hook,
    save: Hook,
    evaluate: Hook,
    save_best: Hook | None,
    ema: Hook | None = None,
    timer: Hook | None = None,
    batch_schedule: Hook | None = None,
    bottleneck: Hook | None = None,
    eta: Hook | None = None,
    training_bar: Hook | None = None,
    compiled: Hook | None = None,
) -> dict[str, Hook]:
    """Return all hooks of a run by key, in the order in which they act at every event.

    Raises:
        ValueError: see :func:`check_hooks`.
    """
    check_hooks(user, {*BUILT_IN, *task})
    hooks: dict[str, Hook | None] = {
        # First, so that it measures all that takes time.
        "timer": timer,
        # Sets how batch norms work in this epoch, before any forward pass.
        "batch_schedule": batch_schedule,
        # What the method itself needs (a momentum teacher) acts on the new weights before anything reads them.
        **task,
        # Follows every update, and is evaluated and saved with it.
        "ema": ema,
        # The user's: they may add values to the metrics log and request a stop.
        **user,
        # Checks and writes pending values before saving: no checkpoint is saved of weights that are not finite.
        "metrics_log": metrics_log,
        # After the first step.
        "compiled": compiled,
        # These two read the line that was just written.
        "training_bar": training_bar,
        "bottleneck": bottleneck,
        # Before the evaluation: if that fails, the weights are saved, and a resumed run repeats it.
        "save": save,
        # The weights that were saved are evaluated.
        "evaluate": evaluate,
        # Needs the scores.
        "save_best": save_best,
        # Counts the time of the evaluation.
        "eta": eta,
    }
    return {key: hook for key, hook in hooks.items() if hook is not None}
