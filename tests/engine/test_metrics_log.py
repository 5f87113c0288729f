"""The metrics log: each value is in exactly one line, also over a resume; one copy to the host for all values."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opabinia.contracts import Clock
from opabinia.engine.loggers.metrics_log import MetricsLogger
from opabinia.engine.loop.nonfinite import NonFiniteError
from opabinia.runtime.files import DiskError
from tests.engine.toys import LineCollector
from tests.host_waits import HostWaits


def clock(step: int) -> Clock:
    return Clock(step=step, epoch=step // 4, epoch_step=step % 4, samples=2 * step, total_steps=100, steps_per_epoch=4)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tensor(value: float) -> torch.Tensor:
    return torch.tensor(value)


Open = Callable[..., MetricsLogger]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens metrics logs and closes them after the test."""
    opened_logs: list[MetricsLogger] = []

    def open_log(*arguments: Any) -> MetricsLogger:
        opened_logs.append(MetricsLogger(*arguments))
        return opened_logs[-1]

    yield open_log
    for metrics_log in opened_logs:
        metrics_log.close()


# --- lines ------------------------------------------------------------------------------------------------------------


def test_a_line_is_the_mean_of_its_steps(opened: Open, tmp_path: Path) -> None:
    logger = LineCollector()
    metrics_log = opened(tmp_path / "metrics.jsonl", [logger])
    for step, loss in enumerate((1.0, 2.0, 6.0), 1):
        metrics_log.add(step, {"train/loss": tensor(loss), "lr": 0.1 * step, "samples": 4.0, "time/step": 0.5})
    metrics_log.flush(clock(3))
    metrics_log.close()
    line = {"step": 3, "epoch": 0.75, "samples": 6, "train/loss": 3.0, "lr": pytest.approx(0.3)}
    # The time that the host waits for the values counts as step time.
    times = {"time/step": pytest.approx(0.5, abs=0.2), "samples_per_s": pytest.approx(8.0, rel=0.4)}
    assert read(tmp_path / "metrics.jsonl") == [{**line, **times}]
    assert logger.lines == read(tmp_path / "metrics.jsonl")


def test_a_value_that_some_steps_lack_is_the_mean_over_the_others(opened: Open, tmp_path: Path) -> None:
    metrics_log = opened(tmp_path / "m")
    metrics_log.add(1, {"a": 1.0})
    metrics_log.add(1, {"b": 4.0})  # a hook adds to the step
    metrics_log.add(2, {"a": 2.0})
    metrics_log.flush(clock(2))
    assert read(tmp_path / "m") == [{"step": 2, "epoch": 0.5, "samples": 4, "a": 1.5, "b": 4.0}]


def test_a_line_is_in_the_file_at_once_and_empty_ones_are_not_written(opened: Open, tmp_path: Path) -> None:
    metrics_log = opened(tmp_path / "m")
    metrics_log.write(clock(4), {"val/top1": 0.5})
    assert read(tmp_path / "m") == [{"step": 4, "epoch": 1.0, "samples": 8, "val/top1": 0.5}]
    metrics_log.flush(clock(5))
    metrics_log.add(5, {"a": 1.0})
    for _ in range(2):
        metrics_log.flush(clock(5), {"sample_ids": ["x", "y"]})
    assert [line.get("sample_ids") for line in read(tmp_path / "m")] == [None, ["x", "y"]]


def test_without_a_file_the_loggers_get_the_lines(opened: Open) -> None:
    logger = LineCollector()
    metrics_log = opened(None, [logger])
    metrics_log.add(1, {"a": 1.0})
    metrics_log.flush(clock(1))
    assert metrics_log.state_dict() == {"offset": 0, "pending": []}
    metrics_log.load_state_dict({"offset": 5, "pending": []})
    metrics_log.close()
    metrics_log.close()
    assert [line["a"] for line in logger.lines] == [1.0]
    assert logger.closed == 1


values = st.one_of(st.floats(-(2.0**99), 2.0**99, width=32), st.sampled_from([math.nan, math.inf, -math.inf]))
rounds = st.lists(st.tuples(st.dictionaries(st.sampled_from("abc"), values, max_size=3), st.booleans()), max_size=12)


@given(rounds, st.integers(0, 12), st.booleans())
def test_every_value_is_in_exactly_one_line_whether_resumed_or_not(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[dict[str, float], bool]], cut: int, later: bool
) -> None:
    """Steps with values, some followed by a line; saved after ``cut`` steps, perhaps continued, and resumed."""
    folder = tmp_path_factory.mktemp("metrics")

    def replay(metrics_log: MetricsLogger, begin: int, end: int) -> None:
        for step, (row, flush) in enumerate(rounds[begin:end], begin + 1):
            metrics_log.add(step, {name: tensor(value) for name, value in row.items()})
            if flush:
                metrics_log.flush(clock(step))

    reference = MetricsLogger(folder / "whole")
    replay(reference, 0, len(rounds))
    reference.flush(clock(len(rounds)))

    interrupted = MetricsLogger(folder / "parts")
    replay(interrupted, 0, cut)
    state = json.loads(json.dumps(interrupted.state_dict(), allow_nan=False))
    if later:
        replay(interrupted, cut, len(rounds))
    interrupted.close()
    resumed = MetricsLogger(folder / "parts")
    resumed.load_state_dict(state)
    replay(resumed, min(cut, len(rounds)), len(rounds))
    resumed.flush(clock(len(rounds)))
    for metrics_log in (reference, interrupted, resumed):
        metrics_log.close()

    assert (folder / "parts").read_bytes() == (folder / "whole").read_bytes()
    for line in read(folder / "whole"):
        assert all(value is None or isinstance(value, float | int) for value in line.values())


def test_means_of_infinities(opened: Open, tmp_path: Path) -> None:
    metrics_log = opened(tmp_path / "m")
    for step, value in enumerate((math.inf, -math.inf, 1.0), 1):
        metrics_log.add(step, {"grad_norm": tensor(value), "x": 0.1, "train/loss_scale": 1024.0})  # fp16 may overflow
    metrics_log.flush(clock(3))
    assert read(tmp_path / "m")[0]["grad_norm"] is None  # JSON cannot represent it
    assert read(tmp_path / "m")[0]["x"] == pytest.approx(0.1)


# --- non-finite values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "look", [lambda metrics_log: metrics_log.flush(clock(3)), MetricsLogger.state_dict], ids=["line", "save"]
)
def test_the_error_for_a_non_finite_loss_names_step_and_loss(
    opened: Open, tmp_path: Path, value: float, look: Callable[[MetricsLogger], object]
) -> None:
    metrics_log = opened(tmp_path / "m")
    metrics_log.add(1, {"train/loss": tensor(1.0), "train/loss_b": tensor(1.0)})
    metrics_log.add(2, {"train/loss": tensor(1.0), "train/loss_b": tensor(value)})
    metrics_log.add(3, {"train/loss": tensor(1.0), "train/loss_b": tensor(1.0)})
    with pytest.raises(NonFiniteError, match=rf"^train/loss_b is {value} at step 2$"):
        look(metrics_log)
    assert not (tmp_path / "m").read_bytes()


# --- copies -----------------------------------------------------------------------------------------------------------


def test_all_values_are_copied_to_the_host_at_once_when_a_line_is_written(opened: Open, tmp_path: Path) -> None:
    metrics_log = opened(tmp_path / "m")
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
    with HostWaits() as waits:
        for step in range(1, 11):
            metrics_log.add(step, {f"v{dtype}": torch.tensor(step, dtype=dtype) for dtype in dtypes})
        assert not waits.calls
        metrics_log.flush(clock(10))
    assert waits.calls == {"tolist": 1}
    assert [read(tmp_path / "m")[0][f"v{dtype}"] for dtype in dtypes] == [5.5] * 4


def test_values_that_a_save_has_copied_are_not_copied_again(opened: Open, tmp_path: Path) -> None:
    metrics_log = opened(tmp_path / "m")
    metrics_log.add(1, {"a": tensor(1.0)})
    metrics_log.state_dict()
    with HostWaits() as waits:
        metrics_log.flush(clock(1))
    assert not waits.calls


# --- the file ---------------------------------------------------------------------------------------------------------


def test_resuming_truncates_lines_after_the_checkpoint(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "m"
    metrics_log = opened(path)
    metrics_log.write(clock(1), {"a": 1})
    metrics_log.add(2, {"b": 2.0})
    state = metrics_log.state_dict()
    metrics_log.write(clock(2), {"a": 2})
    metrics_log.close()
    path.write_bytes(path.read_bytes() + b'{"step": 3, "a"')
    metrics_log = opened(path)
    metrics_log.load_state_dict(state)
    metrics_log.flush(clock(2))
    assert [line.get("a", line.get("b")) for line in read(path)] == [1, 2.0]


def test_nothing_is_truncated_before_the_run_continues(opened: Open, tmp_path: Path) -> None:
    """The run may still be refused, or killed before it continues."""
    path = tmp_path / "m"
    metrics_log = opened(path)
    state = metrics_log.state_dict()
    metrics_log.write(clock(1), {"a": 1})
    metrics_log.close()
    content = path.read_bytes()
    metrics_log = opened(path)
    metrics_log.load_state_dict(state)
    assert path.read_bytes() == content
    metrics_log.state_dict()
    assert path.read_bytes() == b""


def test_a_lost_file_is_started_again(opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Truncating a file to a larger size would fill it with zeros."""
    path = tmp_path / "m"
    metrics_log = opened(path)
    metrics_log.write(clock(1), {"a": 1})
    state = metrics_log.state_dict()
    metrics_log.close()
    path.unlink()
    metrics_log = opened(path)
    metrics_log.load_state_dict(state)
    metrics_log.write(clock(2), {"a": 2})
    assert [line["a"] for line in read(path)] == [2]
    assert f"{path} is shorter than when the checkpoint was saved: lines are missing" in caplog.text


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    return path


def test_a_full_disk_is_an_error_and_closing_raises_no_second_one(opened: Open, full: Path) -> None:
    """It would hide the error that ends the run."""
    logger = LineCollector()
    metrics_log = opened(full, [logger])
    with pytest.raises(DiskError, match=r"cannot write .*/metrics.jsonl: the disk is full"):
        metrics_log.write(clock(1), {"a": 1})
    metrics_log.close()
    assert logger.closed == 1


def test_a_missing_folder_is_an_error(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"cannot write .*/absent/m: No such file"):
        MetricsLogger(tmp_path / "absent" / "m")
