"""Calls the hooks of a run at its events, in order, and records which hook is active.

That position, (event, key of the hook), makes a resumed run exact: a checkpoint is saved from inside a hook, and the
position says which hooks of the same event have acted already and which are still due (``Trainer.restore``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from opabinia.contracts import Hook, Run
from opabinia.runtime.log import log

_EVENTS = ("start", "before_phase", "before_step", "after_backward", "after_step", "after_phase")


class HookStartError(Exception):
    """A hook cannot work in this run, as found at its start."""

    exit_status = 2


class HookDispatcher:
    """The hooks of a run, in the order in which they act.

    Attributes:
        hooks: by key.
        active: event and key of the hook that is acting; None between events. During an evaluation that a hook asked
            for, it is that hook again once the evaluation's own events are over.
    """

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self.hooks = dict(hooks)
        # Most hooks override few methods; the others are not called, which matters in a step of a few milliseconds.
        self._methods = {
            event: [((event, key), getattr(hook, event)) for key, hook in self.hooks.items() if _overrides(hook, event)]
            for event in _EVENTS
        }
        self.active: tuple[str, str] | None = None

    def previous_position(self) -> tuple[str, str] | None:
        """Return event and key of the hook before the active one; the key is ``""`` before the first."""
        if self.active is None:
            return None
        event, key = self.active
        keys = ["", *self.hooks]
        return event, keys[keys.index(key) - 1]

    def start(self, run: Run) -> None:
        """Dispatch ``start``.

        Raises:
            HookStartError: a hook raised a ValueError; the message names its key.
        """
        try:
            self.call(run, "start")
        except ValueError as error:
            raise HookStartError(f"hooks.{self.active[1] if self.active else '?'}: {error}") from error

    def call(self, run: Run, event: str, *values: Any, after: str | None = None) -> None:
        """Call the method ``event`` of every hook; with ``after`` only of those behind the hook of that key, if any."""
        methods = self._methods[event]
        if after is not None and after in self.hooks:
            order = list(self.hooks)
            methods = [item for item in methods if order.index(item[0][1]) > order.index(after)]
        outer = self.active
        for position, method in methods:
            self.active = position
            method(run, *values)
        self.active = outer

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Call ``finish`` of every hook, even if earlier ones fail; then raise the first error. If an error has ended
        the run, later ones are logged and do not take its place."""
        errors: list[Exception] = []
        for key, hook in self.hooks.items():
            try:
                hook.finish(run, how)
            except Exception as error:
                errors.append(error)
                if isinstance(how, BaseException):
                    log.warning("hooks.%s failed, too: %s: %s", key, type(error).__name__, error)
        if errors and not isinstance(how, BaseException):
            raise errors[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the hooks that have one, by key."""
        return {key: state for key, hook in self.hooks.items() if (state := hook.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the hooks; that of hooks which no longer exist is ignored."""
        for key, saved in state.items():
            if key in self.hooks:
                self.hooks[key].load_state_dict(saved)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors of the hooks that have any, by key."""
        return {key: tensors for key, hook in self.hooks.items() if (tensors := hook.tensors())}

    def load_tensors(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore the tensors of the hooks; see :meth:`load_state_dict`."""
        for key, saved in tensors.items():
            if key in self.hooks:
                self.hooks[key].load_tensors(saved)


def _overrides(hook: Hook, event: str) -> bool:
    method = getattr(hook, event)  # of the instance: it may have been replaced there
    return getattr(method, "__func__", method) is not getattr(Hook, event)
