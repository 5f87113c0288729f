"""Lets hooks act at their moments, and knows which hook is acting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opabinia.contracts import Hook, Run


class Moments:
    """The hooks of a run, in the order in which they act.

    Attributes:
        hooks: by key.
        now: the moment and the key of the hook that is acting; None between moments. Inside an evaluation that a
            hook asked for, it is that hook again as soon as the evaluation's own moments are over.
    """

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self.hooks = dict(hooks)
        self.now: tuple[str, str] | None = None

    def just_before(self) -> tuple[str, str] | None:
        """The moment and the key of the hook before the one that is acting; no key (``""``) before the first."""
        if self.now is None:
            return None
        moment, acting = self.now
        keys = ["", *self.hooks]
        return moment, keys[keys.index(acting) - 1]

    def call(self, run: Run, moment: str, *values: Any, after: str | None = None) -> None:
        """Let every hook act; only those behind the hook ``after``, if there is such a hook."""
        outer = self.now
        waiting = after in self.hooks
        for key, hook in self.hooks.items():
            if not waiting:
                self.now = (moment, key)
                getattr(hook, moment)(run, *values)
            elif key == after:
                waiting = False
        self.now = outer

    def finish(self, run: Run, how: str | BaseException) -> None:
        """Let every hook finish, whatever those before it did; then raise the first error."""
        errors: list[Exception] = []
        for hook in self.hooks.values():
            try:
                hook.finish(run, how)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def state_dict(self) -> dict[str, Any]:
        """State of the hooks that have any, by key."""
        return {key: state for key, hook in self.hooks.items() if (state := hook.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give hooks their state back; that of hooks which are gone is left alone."""
        for key, saved in state.items():
            if key in self.hooks:
                self.hooks[key].load_state_dict(saved)
