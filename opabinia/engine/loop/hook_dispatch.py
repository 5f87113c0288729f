"""Lets hooks act at their moments, and knows which hook is acting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from opabinia.contracts import Hook, Run, Stop
from opabinia.runtime.processes import world_size

_MOMENTS = ("start", "before_phase", "before_step", "after_backward", "after_step", "after_phase")


def _watches(hook: Hook, moment: str) -> bool:
    own = getattr(hook, moment)
    return getattr(own, "__func__", own) is not getattr(Hook, moment)


class Refused(Exception):
    """A hook cannot work in this run, as it says at the start."""

    exit_status = 2


class HookDispatcher:
    """The hooks of a run, in the order in which they act.

    Attributes:
        hooks: by key.
        now: the moment and the key of the hook that is acting; None between moments. Inside an evaluation that a
            hook asked for, it is that hook again as soon as the evaluation's own moments are over.
        wish: the first stop that a hook asked for and that processes have not agreed on yet.
    """

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self.hooks = dict(hooks)
        # Most hooks watch few moments: only those that do are called.
        self._acting = {
            moment: [
                ((moment, key), getattr(hook, moment)) for key, hook in self.hooks.items() if _watches(hook, moment)
            ]
            for moment in _MOMENTS
        }
        self.now: tuple[str, str] | None = None
        self.wish: Stop | None = None
        self._alone = world_size() == 1

    def just_before(self) -> tuple[str, str] | None:
        """The moment and the key of the hook before the one that is acting; no key (``""``) before the first."""
        if self.now is None:
            return None
        moment, acting = self.now
        keys = ["", *self.hooks]
        return moment, keys[keys.index(acting) - 1]

    def start(self, run: Run) -> None:
        """The moment ``start``.

        Raises:
            Refused: a hook raised a ValueError; this names its key.
        """
        try:
            self.call(run, "start")
        except ValueError as error:
            raise Refused(f"hooks.{self.now[1] if self.now else '?'}: {error}") from error

    def call(self, run: Run, moment: str, *values: Any, after: str | None = None) -> None:
        """Let every hook act; only those behind the hook ``after``, if there is such a hook."""
        acting = self._acting[moment]
        if not acting:
            return
        if after is not None and after in self.hooks:
            order = list(self.hooks)
            acting = [(place, act) for place, act in acting if order.index(place[1]) > order.index(after)]
        outer = self.now
        for place, act in acting:
            self.now = place
            before = run.stop
            act(run, *values)
            if not self._alone and before is None and run.stop is not None:
                # A process alone that saved now, or left off, would leave the others waiting for it.
                self.wish, run.stop = self.wish or run.stop, None
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

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of the hooks that have any, by key."""
        return {key: tensors for key, hook in self.hooks.items() if (tensors := hook.tensors())}

    def load_tensors(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Give hooks their tensors back."""
        for key, saved in tensors.items():
            if key in self.hooks:
                self.hooks[key].load_tensors(saved)
