"""The built-in hooks. The order in which they act is part of the contract; each place has its reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opabinia.contracts import Hook
from opabinia.engine.hooks.batch_schedule import ApplyBatchSchedule
from opabinia.engine.hooks.bottleneck import Bottleneck
from opabinia.engine.hooks.ema import EmaHook
from opabinia.engine.hooks.eta import Eta
from opabinia.engine.hooks.evaluate import Evaluate
from opabinia.engine.hooks.log_metrics import LogMetrics, LogSamples
from opabinia.engine.hooks.save_best import SaveBest
from opabinia.engine.hooks.save_checkpoint import SaveCheckpoint
from opabinia.engine.hooks.watch import Timer

__all__ = [
    "Bottleneck",
    "Eta",
    "Evaluate",
    "LogMetrics",
    "LogSamples",
    "EmaHook",
    "SaveCheckpoint",
    "SaveBest",
    "Timer",
    "in_order",
    "refuse_wrong",
]


BUILT_IN = ("timer", "stages", "ema", "journal", "bottleneck", "save", "evaluate", "best", "estimate")
FILES = ("model", "optimizer", "state", "statistics")
"""What a checkpoint's other files are called: a hook with tensors of its own has one named after its key."""


def refuse_wrong(user: Mapping[str, Hook], taken: Collection[str] = BUILT_IN) -> None:
    """Tell what cannot work among the user's hooks; keys that are ``taken`` are those of other hooks.

    Raises:
        ValueError: one has the key of a built-in hook, or is no :class:`opabinia.contracts.Hook`.
    """
    for key, hook in user.items():
        if key in taken:
            raise ValueError(f"{key!r} is the key of a built-in hook; choose another, such as my_{key}")
        if key in FILES:
            raise ValueError(f"{key!r} is what another file of a checkpoint is called; choose another key")
        if not isinstance(hook, Hook):
            raise ValueError(f"{key!r} is a {type(hook).__name__}; a hook's class inherits opabinia.contracts.Hook")


def in_order(
    *,
    task: Mapping[str, Hook],
    user: Mapping[str, Hook],
    flush: LogMetrics,
    save: SaveCheckpoint,
    evaluate: Evaluate,
    best: SaveBest | None,
    average: EmaHook | None = None,
    timer: Timer | None = None,
    stages: ApplyBatchSchedule | None = None,
    bottleneck: Bottleneck | None = None,
    estimate: Eta | None = None,
) -> dict[str, Hook]:
    """All hooks of a run by their keys, in the order in which they act at every moment.

    Raises:
        ValueError: a hook of the user has the key of another one, or is none.
    """
    refuse_wrong(user, {*BUILT_IN, *task})
    return {
        # Around everything that takes time.
        **({"timer": timer} if timer else {}),
        # Says how norms work in this epoch, before anybody asks for a forward pass.
        **({"stages": stages} if stages else {}),
        # What the method itself needs (a momentum teacher) acts on the fresh weights, before anybody looks at them.
        **task,
        # Follows every update, and is measured and saved with it.
        **({"ema": average} if average else {}),
        # The user's own: they may add numbers, which the journal is to write, and ask the run to stop.
        **user,
        # Pending numbers are checked and written before saving: no checkpoint is made of weights that went wrong.
        "journal": flush,
        # Reads the line that was just written.
        **({"bottleneck": bottleneck} if bottleneck else {}),
        # Before the evaluation: a crash there leaves the weights to look at, and a resume finds what is still due.
        "save": save,
        # The weights that were saved are the weights that are measured.
        "evaluate": evaluate,
        # Needs the scores.
        **({"best": best} if best else {}),
        # Counts what an evaluation of this moment has taken.
        **({"estimate": estimate} if estimate else {}),
    }
