"""Host waits and other events on the pretended device, with the place in the package that caused each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = f"{ROOT / 'opabinia'}/", f"{ROOT / 'tests'}/"
PRETENDED = {
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("installation", "phases", "pretended", "program", "records", "runs")
}
"""Files that run below or around what is tested."""


class Event(NamedTuple):
    """An event on the device.

    Attributes:
        kind: ``item``, ``nonzero``, ``boolean index`` ...; of operations without a deterministic implementation and of
            those in float64 their name.
        function: qualified name of the innermost function of the package that was running.
        where: lines of the package that were running, innermost first, such as ``models/heads.py:179 < tasks/...``.
    """

    kind: str
    function: str
    where: str


class Record:
    """Events by the phase of the run in which they occurred, and the rules that make events errors.

    Attributes:
        phase: of the following events.
        waits: the host waited for the device.
        pageable: copies to the device from memory that is not pinned; the host only waits until it is copied.
        nondeterministic: operations that CUDA refuses with ``torch.use_deterministic_algorithms``, while it is set.
        float64: operations with a result in float64, which MPS refuses.
        pending_copies: memory of the host to which the device copies, as long as nothing has waited for that.
        forbid_waits: set by ``torch.cuda.set_sync_debug_mode("error")``.
        forbid_float64: refuse float64 as MPS does.
        forbid_nondeterministic: refuse as CUDA does. If False, they are only recorded, so that one run shows all.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all events, and forbid what CUDA forbids."""
        self.forbid_waits = False
        self.forbid_float64 = False
        self.forbid_nondeterministic = True
        self.phase = "other"
        self.waits: dict[str, Counter[Event]] = {}
        self.pageable: dict[str, Counter[Event]] = {}
        self.nondeterministic: dict[str, Counter[Event]] = {}
        self.float64: dict[str, Counter[Event]] = {}
        self.pending_copies: list[StorageWeakRef] = []

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Record under this phase."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def add_wait(self, kind: str, *, explicit: bool = False) -> None:
        """Record that the host waits for the device; ``explicit`` for calls that only wait, which no mode forbids.

        Raises:
            RuntimeError: waits are forbidden.
        """
        event = self._add(self.waits, kind)
        if not explicit:
            self.pending_copies.clear()  # everything queued before has been done
        if self.forbid_waits and not explicit:
            raise RuntimeError(f"called a synchronizing CUDA operation: {kind} at {event.where}")

    def add_pageable_copy(self) -> None:
        """Record a copy from memory that is not pinned."""
        self._add(self.pageable, "copy")

    def add_nondeterministic(self, operation: str) -> None:
        """Record an operation without a deterministic implementation if deterministic algorithms are required.

        Raises:
            RuntimeError: these are forbidden.
        """
        if not torch.are_deterministic_algorithms_enabled():
            return
        event = self._add(self.nondeterministic, operation)
        if self.forbid_nondeterministic:
            message = f"{operation} does not have a deterministic implementation, but you set train.deterministic"
            raise RuntimeError(f"{message}, at {event.where}")

    def add_float64(self, operation: str) -> None:
        """Record an operation that results in float64.

        Raises:
            RuntimeError: these are forbidden.
        """
        event = self._add(self.float64, operation)
        if self.forbid_float64:
            message = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64"
            raise RuntimeError(f"{message}: {operation} at {event.where}")

    def table(self) -> str:
        """Return all events as lines: how often, kind, phase and place."""
        groups = {
            "host waits": self.waits,
            "copies from memory that is not pinned": self.pageable,
            "without a deterministic implementation": self.nondeterministic,
            "float64": self.float64,
        }
        lines = []
        for title, phases in groups.items():
            lines += [f"--- {title}"] * bool(phases)
            for phase, events in phases.items():
                lines += [
                    f"{phase:12} {count:5} {kind:20} {function} {where}"
                    for (kind, function, where), count in events.items()
                ]
        return "\n".join(lines)

    def _add(self, events: dict[str, Counter[Event]], kind: str) -> Event:
        event = Event(kind, *current_place())
        events.setdefault(self.phase, Counter())[event] += 1
        return event


RECORD = Record()
"""The record of this process."""


def current_place(lines: int = 3) -> tuple[str, str]:
    """Return the innermost function of the package, or of a part in the tests, that is running, and innermost lines."""
    frame: FrameType | None = sys._getframe(1)
    function, where = "", list[str]()
    while frame is not None and len(where) < lines:
        code = frame.f_code
        file = code.co_filename
        if file.startswith((PACKAGE, TESTS)) and file not in PRETENDED:
            function = function or code.co_qualname
            where.append(f"{file.removeprefix(PACKAGE).removeprefix(f'{ROOT}/')}:{frame.f_lineno}")
        frame = frame.f_back
    return function, " < ".join(where)
