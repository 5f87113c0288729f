import os
import signal
import threading
from collections.abc import Iterator

import pytest

from opabinia.runtime import signals
from opabinia.runtime.signals import SAME_REQUEST_SECONDS, STOP_SIGNALS, Stopped, StopSignal, stop_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    initial = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    assert {number: signal.getsignal(number) for number in initial} == initial


@pytest.mark.parametrize(
    ("number", "name", "status"),
    [(signal.SIGTERM, "SIGTERM", 143), (signal.SIGUSR1, "SIGUSR1", 143), (signal.SIGINT, "SIGINT", 130)],
)
def test_the_first_signal_is_remembered(number: int, name: str, status: int) -> None:
    with stop_signals(StopSignal()) as stop:
        assert (stop.reason, stop.exit_status) == (None, 0)
        os.kill(os.getpid(), number)
        assert (stop.reason, stop.exit_status) == (name, status)
    assert (str(Stopped(name, status)), Stopped(name, status).exit_status) == (name, status)
    assert Stopped("the time limit").exit_status == 0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The simulated time, set by the test."""
    time = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: time[0])
    return time


@pytest.mark.parametrize(
    ("first_signal", "second_signal", "status"),
    [("SIGTERM", "SIGTERM", 143), ("SIGTERM", "SIGINT", 130), ("SIGINT", "SIGUSR1", 143)],
)
def test_a_second_signal_stops_at_once(now: list[float], first_signal: str, second_signal: str, status: int) -> None:
    with pytest.raises(SystemExit) as caught, stop_signals(StopSignal()):
        os.kill(os.getpid(), signal.Signals[first_signal])
        now[0] += SAME_REQUEST_SECONDS + 0.1
        os.kill(os.getpid(), signal.Signals[second_signal])
    assert caught.value.code == status


def test_signals_at_about_the_same_time_are_one_request(now: list[float]) -> None:
    """A scheduler sends a signal to all processes, and the agent forwards its own."""
    with stop_signals(StopSignal()) as stop:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            now[0] += SAME_REQUEST_SECONDS / 3
        assert (stop.reason, stop.exit_status) == ("SIGUSR1", 143)


def test_other_threads_change_no_handlers() -> None:
    results: list[object] = []

    def work() -> None:
        with stop_signals(StopSignal()) as stop:
            results.extend([stop.reason, signal.getsignal(signal.SIGINT)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [None, signal.getsignal(signal.SIGINT)]


def test_an_outer_block_learns_of_a_signal() -> None:
    with stop_signals(StopSignal()) as outer:
        with stop_signals(StopSignal()):
            os.kill(os.getpid(), signal.SIGTERM)
        assert outer.reason == "SIGTERM" and outer.exit_status == 143
