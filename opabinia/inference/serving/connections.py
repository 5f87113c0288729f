"""Connections whose clients do not send a request are closed, so that they keep nobody out."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_TIMEOUT = 10
"""Seconds in which the headers of a request must arrive, from its first byte or from the start of the connection."""

MAX_CONNECTIONS = 256
"""With more, the one that has waited longest for headers is closed: a process has 1024 files in many systems, and one
that has none left accepts no connection at all."""

BACKLOG = 128
"""Connections that are accepted at once, before any is closed: uvicorn's 2048 would open all files of the process."""


class Connection(H11Protocol):  # type: ignore[misc]  # uvicorn is optional: no types
    """A connection in uvicorn, with a time limit for headers. Their size is limited as well, to 64 kB, by h11."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._start()
        if len(self.connections) > MAX_CONNECTIONS:
            waiting: list[Connection] = [other for other in self.connections if other.waiting]
            min(waiting, key=Connection.deadline).close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.waiting:
            self._stop()
        elif self._timer is None:
            self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    @property
    def waiting(self) -> bool:
        """Whether headers are missing: no request has begun, or the last one has been answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def deadline(self) -> float:
        """Return when the headers must be here, by the clock of the loop; 0 between two requests."""
        return self._timer.when() if self._timer else 0.0

    def close(self) -> None:
        """Close the connection without an answer."""
        self._stop()
        self.connections.discard(self)  # so that it is not chosen again before the loop has closed it
        transport: Any = self.transport
        transport.close()

    def _start(self) -> None:
        self._timer = self.loop.call_later(HEADER_TIMEOUT, self.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
