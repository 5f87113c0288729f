"""The optional hooks: freezing, precise batch norm, early stopping, expected scores, loss spikes, profiler, cache."""

from __future__ import annotations

import json
import logging
import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from opabinia.contracts import Batch, Clock, Phase, Predictions, Task
from opabinia.engine.hooks.early_stop import EarlyStopping
from opabinia.engine.hooks.empty_cache import EmptyCache
from opabinia.engine.hooks.expected_scores import ExpectedScores, UnexpectedScore, check_scores
from opabinia.engine.hooks.freeze import Freeze
from opabinia.engine.hooks.loss_spike import LossSpike
from opabinia.engine.hooks.precise_bn import PreciseBN, _Moments, set_statistics
from opabinia.engine.hooks.profiler import Profiler
from opabinia.engine.hooks.timer import Timer
from opabinia.runtime.device import autocast
from opabinia.runtime.durations import Duration
from tests.engine.toys import Line, Setup, lines, make_run, same_tensors, weights

EVALUATED = Phase("evaluate", "val")


# --- freeze -----------------------------------------------------------------------------------------------------------


class Chain(Task):
    """y = w1 * w0 * x; the loss is y."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        for parameter in self.parameters():
            nn.init.ones_(parameter)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        return {"loss": self.layers(torch.ones(1, 1)).sum()}


def test_fastreids_freeze() -> None:
    task = Chain()
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1, momentum=0.9)
    hook, run = Freeze(pattern=r"layers\.0", until=Duration(2, "it")), make_run(task)
    hook.start(run)
    weights_by_step = []
    for step in range(4):
        run.clock = Clock(step, total_steps=4)
        hook.before_step(run, {})
        optimizer.zero_grad()
        task({}, run.clock)["loss"].backward()
        optimizer.step()
        weights_by_step.append([parameter.item() for parameter in task.parameters()])
    assert weights_by_step == [pytest.approx(pair) for pair in ([1, 0.9], [1, 0.71], [0.929, 0.439], [0.8212, 0.1022])]


class Normed(Task):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.head = nn.Linear(4, 3)

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        logits = self.head(self.body(batch["image"]))
        return {"loss": nn.functional.cross_entropy(logits, batch["label"])}

    def predict(self, batch: Batch) -> Predictions:
        return {"logits": self.head(self.body(batch["image"]))}


def test_frozen_norms_keep_their_statistics_until_they_are_unfrozen(tmp_path: Path) -> None:
    hook = Freeze(pattern="^body", until=Duration(3, "it"))
    trainer = Setup(tmp_path, length="3it", best=False, user={"freeze": hook}, task=Normed, sets=()).trainer()
    before = weights(trainer)
    trainer.run()
    after = weights(trainer)
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("body"))
    assert not torch.equal(before["head.weight"], after["head.weight"])
    task: Any = trainer._run.task
    assert not task.body[1].training and not task.body[2].training and task.head.training

    longer = Setup(tmp_path, length="5it", best=False, user={"freeze": hook}, task=Normed, sets=())
    trainer = longer.trainer(resume=True)
    trainer.run()
    assert not torch.equal(after["body.1.running_mean"], weights(trainer)["body.1.running_mean"])
    assert not torch.equal(after["body.0.weight"], weights(trainer)["body.0.weight"])


def test_frozen_modules_can_stay_in_training_mode() -> None:
    task = Normed()
    Freeze(pattern="^body", eval_mode=False).start(make_run(task))
    assert task.body[1].training and not task.body[0].weight.requires_grad


def test_frozen_time_before_a_resume_counts(tmp_path: Path) -> None:
    def setup(folder: Path) -> Setup:
        freeze = Freeze(pattern="bias", until=Duration(6, "it"))
        return Setup(folder, length="10it", save="4it", user={"freeze": freeze})

    reference = setup(tmp_path / "whole").trainer()
    reference.run()
    stop = iter([None] * 5 + ["now"] * 50)
    interrupted = setup(tmp_path / "parts")
    interrupted.interrupted = lambda: next(stop)
    interrupted.trainer().run()
    resumed = setup(tmp_path / "parts").trainer(resume=True)
    resumed.run()
    assert same_tensors(weights(reference), weights(resumed))


@pytest.mark.parametrize(
    ("pattern", "message"), [("nobody", "no parameter's name contains 'nobody'"), ("layer", "matches every parameter")]
)
def test_invalid_patterns(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Freeze(pattern=pattern).start(make_run(Line()))
    with pytest.raises(ValueError, match="is not a regular expression"):
        Freeze(pattern="(")


def test_nothing_is_frozen_in_an_evaluation() -> None:
    task = Line()
    Freeze(pattern="bias").start(make_run(task, loader=None))
    assert all(parameter.requires_grad for parameter in task.parameters())


# --- precise BN -------------------------------------------------------------------------------------------------------


class ScalarNorm(Task):
    """A batch norm of single numbers after a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.9)
        self.norm = nn.BatchNorm1d(1)

    def predict(self, batch: Batch) -> Predictions:
        return {"logits": self.norm(self.drop(batch["image"]))}


def batches_of(*values: list[float]) -> list[Batch]:
    return [{"image": torch.tensor(numbers).float()[:, None], "id": list(map(str, numbers))} for numbers in values]


def test_population_statistics() -> None:
    task = ScalarNorm().train()
    set_statistics(task, {"norm": task.norm}, batches_of([1, 3], [2, 4, 6, 8]))
    assert task.norm.running_mean is not None and task.norm.running_var is not None
    assert (task.norm.running_mean.item(), task.norm.running_var.item()) == (4.0, pytest.approx(5.6667, abs=5e-5))
    assert task.norm.momentum == 0.1 and task.norm.num_batches_tracked == 0
    assert task.training and task.drop.training and task.norm.training


def test_each_view_is_measured() -> None:
    task = ScalarNorm()
    view, other_view = (batch["image"] for batch in batches_of([1, 3], [2, 4, 6, 8]))
    set_statistics(task, {"norm": task.norm}, [{"views": (view, other_view), "id": ["a", "b"]}])
    assert task.norm.running_mean is not None and task.norm.running_mean.item() == 4.0


def test_only_norms_in_training_mode_are_measured() -> None:
    requests = []

    def batches(name: str, count: int) -> list[Batch]:
        requests.append((name, count))
        return batches_of([1, 3])

    task = ScalarNorm()
    task.norm.eval()
    PreciseBN(batches=2).act(make_run(task, models=[task], batches=batches))
    assert not requests
    task.norm.train()
    PreciseBN(batches=2, data="val").act(make_run(task, models=[task, ScalarNorm()], batches=batches))
    assert requests == [("val", 2), ("val", 2)]


def test_images_are_measured_by_channel() -> None:
    images = torch.randn(6, 2, 3, 3) * 4 + 1

    class Images(Task):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(2)

        def predict(self, batch: Batch) -> Predictions:
            return {"logits": self.norm(batch["image"])}

    task = Images()
    set_statistics(task, {"norm": task.norm}, [{"image": images[:2]}, {"image": images[2:]}])
    torch.testing.assert_close(task.norm.running_mean, images.mean((0, 2, 3)))
    torch.testing.assert_close(task.norm.running_var, images.var((0, 2, 3), correction=0))


def test_statistics_are_those_of_the_precision_of_the_run() -> None:
    class Rounded(Task):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(1, 1), nn.BatchNorm1d(1)

        def predict(self, batch: Batch) -> Predictions:
            return {"logits": self.norm(self.layer(batch["image"]))}

    means = []
    for context in (nullcontext, partial(autocast, torch.device("cpu"), "bf16")):
        task = Rounded()
        nn.init.ones_(task.layer.weight)
        nn.init.zeros_(task.layer.bias)
        run = make_run(task, models=[task], autocast=context, batches=lambda *_: batches_of([1.001, 1.001]))
        PreciseBN().act(run)
        assert task.norm.running_mean is not None
        means.append(task.norm.running_mean.item())
    assert means == [pytest.approx(1.001), 1.0], "bf16 has 8 bits"


@pytest.mark.parametrize(("device", "dtype"), [("mps", torch.float32), ("cuda", torch.float64)])
def test_moments_are_in_float64_where_the_device_has_it(device: str, dtype: torch.dtype) -> None:
    moments = _Moments()
    with FakeTensorMode():
        moments.add_input(nn.BatchNorm1d(3), (torch.empty(4, 3, device=device),))
        assert moments.mean.dtype == moments.squares.dtype == dtype


# --- early stopping ---------------------------------------------------------------------------------------------------


def ended_at(hook: EarlyStopping, scores: list[float]) -> int | None:
    run = make_run()
    for number, score in enumerate(scores, 1):
        run.scores["val/x"] = score
        hook.after_phase(run, EVALUATED)
        if run.stop:
            assert run.stop.final
            return number
    return None


@pytest.mark.parametrize(
    ("keys", "scores", "expected"),
    [
        ({"patience": 2}, [0.1, 0.2, 0.2, 0.1, 0.3], 4),
        ({"patience": 2}, [0.1, 0.2, 0.1, 0.3, 0.1], None),
        ({"patience": 2, "min_delta": 0.05}, [0.1, 0.12, 0.14, 0.2], 3),
        ({"patience": 1, "better": "min"}, [3.0, 2.0, 1.0, 1.0], 4),
        ({"patience": 2}, [0.1, math.nan, math.nan], 3),
    ],
)
def test_early_stopping(keys: dict[str, Any], scores: list[float], expected: int | None) -> None:
    assert ended_at(EarlyStopping(metric="val/x", **keys), scores) == expected


def test_early_stopping_by_a_score_of_a_task() -> None:
    hook, run = EarlyStopping(metric="boxes/val/AP", patience=1), make_run(scores={"boxes/val/AP": 0.5})
    for name in ("boxes/val", "digits/val", "boxes/val"):
        assert run.stop is None
        hook.after_phase(run, Phase("evaluate", name))
    assert run.stop is not None


def test_early_stopping_continues_from_its_state() -> None:
    hook = EarlyStopping(metric="val/x", patience=3)
    assert ended_at(hook, [0.5, 0.4, 0.4]) is None
    resumed = EarlyStopping(metric="val/x", patience=3)
    resumed.load_state_dict(json.loads(json.dumps(hook.state_dict())))
    assert ended_at(resumed, [0.4]) == 1
    run = make_run()
    resumed.start(run)
    assert run.stop is not None, "an ended run does not begin again"


def test_a_run_that_is_stopped_early_is_done(tmp_path: Path) -> None:
    hook = EarlyStopping(metric="val/top1", patience=1, min_delta=1.0)  # no score improves by 1
    trainer = Setup(tmp_path, length="20ep", evaluate="1ep", user={"early": hook}).trainer()
    assert trainer.run().keys() >= {"val/top1"}
    assert trainer.stopped is None and lines(tmp_path)[-1]["step"] == 8
    resumed = Setup(tmp_path, length="20ep", evaluate="1ep", user={"early": hook}).trainer(resume=True)
    resumed.run()
    assert lines(tmp_path)[-1]["step"] == 8


def test_a_missing_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="there is no score 'val/x'; scores: val/y"):
        EarlyStopping(metric="val/x").after_phase(make_run(scores={"val/y": 1.0}), EVALUATED)


# --- expected scores --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "fits"),
    [(38.31, True), (38.3, True), (38.29, False), (38.7, True), (38.71, False), (math.nan, False), (math.inf, False)],
)
def test_tolerances(score: float, fits: bool) -> None:
    """The edge is within the tolerance, also for 38.7 - 38.5, which is a little more than 0.2 in binary."""
    with nullcontext() if fits else pytest.raises(UnexpectedScore):
        check_scores({"AP": score}, {"AP": (38.5, 0.2)})


def test_missing_scores_are_an_error_when_the_run_is_done() -> None:
    hook = ExpectedScores(scores={"val/top1": (0.5, 0.1), "val/top2": (0.5, 0.1)})
    run = make_run(scores={"val/top1": 0.7})
    with pytest.raises(UnexpectedScore, match=r"val/top1 is 0\.7, expected 0\.5 \+- 0\.1; val/top2 is missing"):
        hook.finish(run, "done")
    hook.finish(run, "stopped")


# --- other hooks ------------------------------------------------------------------------------------------------------


def test_spikes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Log:
        newest: dict[str, Any] | None = None

    hook, metrics_log = LossSpike(factor=2.0, window=4), Log()
    run = make_run(metrics_log=metrics_log)
    with caplog.at_level(logging.WARNING, "opabinia"):
        for step, loss in enumerate([1.0, 1.1, 0.9, 5.0, 1.0, 2.5]):
            metrics_log.newest = {"step": step, "train/loss": loss}
            hook.after_step(run)
            hook.after_step(run)
    assert [record.getMessage() for record in caplog.records] == [
        "train/loss is 5 at step 3; its recent median is 1",
        "train/loss is 2.5 at step 5; its recent median is 1.05",
    ]


def test_a_profile_is_a_trace(tmp_path: Path) -> None:
    Setup(tmp_path, length="6it", user={"profile": Profiler(skip_first=2, steps=2)}).trainer().run()
    (path,) = (tmp_path / "profile").iterdir()
    assert path.name == "step-00000004.json"
    assert json.loads(path.read_text())["traceEvents"]


def test_the_cache_hook_and_the_timer_run_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "opabinia"):
        user = {"cache": EmptyCache(every=Duration(2, "it")), "time": Timer()}
        Setup(tmp_path, length="6it", user=user).trainer().run()
    assert any(record.getMessage().startswith("6 steps in ") for record in caplog.records)


def test_an_evaluation_that_was_stopped_is_no_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    times = iter([0.0, 2.0, 32.0, 32.0])
    monkeypatch.setattr("opabinia.engine.hooks.timer.time", SimpleNamespace(monotonic=lambda: next(times)))
    timer = Timer()
    run: Any = SimpleNamespace(clock=Clock(step=0))
    timer.start(run)
    run.clock = Clock(step=4)
    timer.before_phase(run, Phase("evaluate", "val"))
    with caplog.at_level(logging.INFO, "opabinia"):
        timer.finish(run, "stopped")
    assert caplog.records[-1].getMessage() == "4 steps in 32.0 s, 30.0 s of it evaluation; 0.5000 s per step"


def test_lines_have_the_memory(tmp_path: Path) -> None:
    Setup(tmp_path, length="3it").trainer().run()
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert line["memory/host_mb"] > 50
