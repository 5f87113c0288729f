"""Training on a GPU: device by local rank, losses of the CPU, no synchronization, several processes, exact resuming.

Run: ``pytest tests/gpu``. ``python tests/gpu/test_cuda.py FOLDER OPTIONS`` is a process of a test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchvision.transforms import v2

from opabinia.contracts import Batch, Clock, DatasetInfo, GlobalBatch, Hook, Run, StepOptions, Task
from opabinia.data import Data, Stream, ValidationStream
from opabinia.data.batch_mixing import cutmix, mixup
from opabinia.data.sources import Digits
from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from opabinia.engine.loop.prefetch import prefetch, to_host
from opabinia.engine.loop.step import StandardStep
from opabinia.models.backbones.timm import timm
from opabinia.optim.ema import Ema
from opabinia.optim.schedules import cosine
from opabinia.runtime.device import choose_device
from opabinia.runtime.durations import Duration
from opabinia.tasks.classification import Classification
from opabinia.training.planning import plan_training
from opabinia.training.session import Session, TrainingRun
from opabinia.training.settings import Checkpointing, Evaluation, Training

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda"
STEPS = 30


@pytest.fixture(autouse=True)
def restore_backends() -> Iterator[None]:
    """Restore the settings that a run changes for the process."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = False


# --- runs -------------------------------------------------------------------------------------------------------------


def model(dtype: torch.dtype, dataset_info: DatasetInfo, dropout: float = 0.0) -> Task:
    backbone = partial(timm, model="test_resnet")
    return Classification(dataset_info, backbone=backbone, dropout=dropout, mean=[0.3], std=[0.38]).to(dtype)


def run(
    folder: Path,
    device: Any,
    *,
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    workers: int = 0,
    mixing: bool = False,
    averaged: bool = False,
    save_every: int = 5,
    hook: Hook | None = None,
    **training: Any,
) -> dict[str, float]:
    """Train thirty steps on digits, from the newest checkpoint in the folder if any; log every step."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    newest = load_latest_checkpoint(checkpoints)
    run = TrainingRun(
        task=partial(model, dtype, dropout=dropout),
        data=Data(
            train=Stream(source=Digits(split="train"), transforms=[v2.Resize(32), v2.RandomAffine(10)]),
            val=ValidationStream(source=Digits(split="val"), transforms=[v2.Resize(32)]),
            batch_size=64,
            num_workers=workers,
            mix=[partial(mixup, alpha=0.2)] if mixing else [],
        ),
        optimizer=partial(torch.optim.AdamW, lr=0.004, fused=True),
        schedule=partial(cosine, warmup=Duration(5, "it")),
        train=Training(
            length=Duration(STEPS, "it"),
            step=partial(StandardStep, clip_norm=5.0),
            device=device,
            num_threads=1,
            **{"log_every": 1, **training},
        ),
        ema=Ema(decay=0.9) if averaged else None,
        evaluate=Evaluation(every=Duration(0, "ep")),
        checkpoint=Checkpointing(every=Duration(save_every, "it")),
        hooks={"own": hook} if hook else None,
        loggers=[],
        seed=0,
    )
    return run(Session(folder, newest[1] if newest else None))


def losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["train/loss"] for line in lines if "train/loss" in line]


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def as_local_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """``as_local_rank(2)`` sets the environment of the third process that a launcher starts on a node."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield lambda number: monkeypatch.setenv("LOCAL_RANK", str(number))
    dist.destroy_process_group()
    torch.cuda.set_device(0)


@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_the_device_is_that_of_the_local_rank(name: str, as_local_rank: Callable[[int], None]) -> None:
    count = torch.cuda.device_count()
    for number in reversed(range(count)):
        as_local_rank(number)
        assert choose_device(name) == torch.device("cuda", number)
        assert torch.cuda.current_device() == number
    as_local_rank(count)
    with pytest.raises(ValueError, match=f"local rank {count} has no GPU of its own: this machine has {count}"):
        choose_device(name)


def test_without_a_launcher_the_device_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "5")  # a leftover: no launcher started this process
    assert choose_device("cuda") == torch.device("cuda", 0)
    assert choose_device("cpu") == torch.device("cpu")


# --- losses of the CPU ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], dict[str, float]]:
    """Losses and scores of a run on the CPU in double precision."""
    folder = tmp_path_factory.mktemp("cpu")
    scores = run(folder, "cpu", dtype=torch.float64, averaged=True)
    return losses(folder), scores


@pytest.mark.parametrize("training", [{}, {"channels_last": True, "cudnn_benchmark": True}])
def test_thirty_steps_have_the_losses_of_the_cpu(
    training: dict[str, Any], on_cpu: tuple[list[float], dict[str, float]], tmp_path: Path
) -> None:
    """In double precision, because training a network with batch norm from scratch amplifies a difference of 1e-7 to
    1e-2 within thirty steps. Doubles that differ by 1e-14 at first still agree to the float32 of the log."""
    scores = run(tmp_path, DEVICE, dtype=torch.float64, averaged=True, **training)
    expected, expected_scores = on_cpu
    assert len(expected) == STEPS
    assert expected[-1] < expected[0] / 2
    assert losses(tmp_path) == pytest.approx(expected, rel=1e-6)
    assert "val_ema/top1" in scores and scores == pytest.approx(expected_scores, rel=1e-6)


def test_the_first_loss_is_that_of_the_cpu_in_single_precision(tmp_path: Path) -> None:
    """TensorFloat-32 has ten bits, a precision of 1e-3."""
    for device in ("cpu", DEVICE):
        run(tmp_path / device, device)
    assert losses(tmp_path / DEVICE)[0] == pytest.approx(losses(tmp_path / "cpu")[0], rel=2e-3)


# --- non-finite values ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("fused", [True, False])
def test_a_non_finite_update_is_skipped_on_the_device(fused: bool) -> None:
    """With a fused optimizer the host does not read the result; other optimizers synchronize."""
    torch.manual_seed(0)
    task = model(torch.float32, DatasetInfo(samples=8, channels=1, classes=tuple("0123456789"))).to(DEVICE)
    optimizer = torch.optim.AdamW(task.parameters(), lr=0.1, fused=fused)
    step = StandardStep(task, optimizer, {}, StepOptions(0, skip_non_finite=True))
    global_batch = GlobalBatch(step=0, epoch=0, first=0, count=8)
    image, label = torch.rand(8, 1, 32, 32, device=DEVICE), torch.arange(8, device=DEVICE)

    def train(pixels: torch.Tensor) -> Any:
        batch = {"image": pixels, "label": label, "id": [str(number) for number in range(8)]}
        return step(batch, global_batch, Clock(total_steps=10), lambda: None)["skipped"]

    assert float(train(image)) == 0
    before = {name: value.clone() for name, value in task.state_dict().items()}
    broken = image.clone()
    broken[3] = torch.nan
    torch.cuda.set_sync_debug_mode("error" if fused else "default")
    try:
        skipped = train(broken)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(skipped) == 1
    assert all(torch.equal(value, before[name]) for name, value in task.state_dict().items())


# --- no synchronization -----------------------------------------------------------------------------------------------


class ForbidSynchronization(Hook):
    """Between the log lines of steps 10 and 20, any synchronization of the host with the device is an error."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def before_step(self, run: Run, batch: Batch) -> None:
        if run.clock.step == 11:
            torch.cuda.set_sync_debug_mode("error")

    def after_step(self, run: Run) -> None:
        if torch.cuda.get_sync_debug_mode():
            self.steps.append(run.clock.step)
        if run.clock.step == 19:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_steps_between_log_lines_never_synchronize(tmp_path: Path) -> None:
    """With workers, mixing, dropout, a schedule, gradient clipping and an average of the weights."""
    hook, options = ForbidSynchronization(), {"precision": "bf16", "channels_last": True, "log_every": 10}
    try:
        run(
            tmp_path, DEVICE, workers=2, mixing=True, dropout=0.1, averaged=True, save_every=STEPS, hook=hook, **options
        )
        assert hook.steps == list(range(12, 20))
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(1, device=DEVICE).item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(losses(tmp_path)) == STEPS // 10 + 1, (
        "lines at steps 10, 20, 30 and at the end of the first epoch of 23 steps"
    )


def training_batches(device: torch.device, **keys: Any) -> list[Batch]:
    """Return ten mixed batches of two epochs."""
    transforms = [
        v2.Resize(32),
        v2.RandomAffine(10),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4),
        v2.RandomErasing(),
    ]
    train = Stream(source=Digits(split="val"), transforms=transforms)
    data = Data(train=train, batch_size=72, mix=[partial(cutmix, alpha=1.0), partial(mixup, alpha=0.2)], **keys)
    loader = plan_training(lambda info: None, data, Duration(10, "it"), None, 0).loader(device)
    batches = []
    try:
        for _, loaded, batch, _ in prefetch(loader._loader, device, loader._transform):
            assert loaded["image"].is_pinned() == (device.type == "cuda")
            # Delay the read: memory that is freed too early would be overwritten by the next batch.
            torch.cuda._sleep(2_000_000 if device.type == "cuda" else 0)
            batches.append({key: batch[key].clone() for key in ("image", "label")})
        return batches
    finally:
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_copied_during_the_steps_unchanged(workers: int) -> None:
    on_host = training_batches(torch.device("cpu"), num_workers=workers)
    on_gpu = training_batches(torch.device(DEVICE, 0), num_workers=workers)
    assert all(batch[key].is_cuda for batch in on_gpu for key in batch)
    assert all(torch.equal(a[key], b[key].cpu()) for a, b in zip(on_host, on_gpu, strict=True) for key in a)


def test_augmentation_on_the_gpu_equals_that_in_workers() -> None:
    """Rounding may differ by one of 255, which mixing leaves at one at most."""
    on_host = training_batches(torch.device("cpu"), num_workers=1)
    on_gpu = training_batches(torch.device(DEVICE, 0), num_workers=1, augment_on="device")
    for expected, batch in zip(on_host, on_gpu, strict=True):
        assert torch.allclose(expected["label"], batch["label"].cpu(), atol=1e-6)
        assert (expected["image"] - batch["image"].cpu()).abs().max() < 1.5 / 255


def test_features_are_copied_to_the_host_during_later_work() -> None:
    values = torch.arange(1000.0, device=DEVICE)
    wait_for_features = to_host({"a": values * 2})
    torch.cuda._sleep(2_000_000_000)
    features = wait_for_features()["a"]
    assert not torch.cuda.current_stream().query(), "the host has not waited for later work"
    assert torch.equal(features, torch.arange(1000.0) * 2)


# --- killed and resumed -----------------------------------------------------------------------------------------------


class Kill(Hook):
    """A power cut after this step, before anything of the moment is saved."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, run: Run) -> None:
        if run.clock.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def start(folder: Path, environment: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that trains in ``folder``, with the options of :func:`run`, or ``kill_at`` a step."""
    program = [sys.executable, __file__, str(folder), json.dumps(options)]
    return subprocess.Popen(program, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})})


RESUMED = {"mixing": True, "dropout": 0.1, "averaged": True, "deterministic": True, "channels_last": True}


def test_a_killed_and_resumed_run_is_bitwise_identical(tmp_path: Path) -> None:
    """In fp16, whose loss scale is part of the state, with an average of the weights."""
    options = {**RESUMED, "precision": "fp16"}
    uninterrupted = start(tmp_path / "uninterrupted", workers=2, **options)
    for kill_at, workers in ((8, 1), (20, 0), (0, 2)):
        expected = -signal.SIGKILL if kill_at else 0
        assert start(tmp_path / "killed", kill_at=kill_at, workers=workers, **options).wait() == expected
    assert uninterrupted.wait() == 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "uninterrupted")
    for name in ("model", "optimizer", "ema"):
        file = Path("checkpoints", f"step-{STEPS:08d}", f"{name}.safetensors")
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "uninterrupted" / file).read_bytes(), name


# --- several processes ------------------------------------------------------------------------------------------------


def test_two_processes_with_synchronized_norms_have_the_losses_of_one(
    on_cpu: tuple[list[float], dict[str, float]], tmp_path: Path
) -> None:
    """Both on the first GPU, where NCCL refuses two processes and gloo does not."""
    meeting = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MEETING": str(tmp_path / "meeting")}
    options = {"dtype": "float64", "averaged": True, "sync_batch_norm": True}
    processes = [start(tmp_path, {**meeting, "RANK": str(rank)}, **options) for rank in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert losses(tmp_path) == pytest.approx(on_cpu[0], rel=1e-6)


def main(folder: Path, options: dict[str, Any]) -> None:
    """Train as a single process, or as one of several that find each other by a file."""
    if "MEETING" in os.environ:
        rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        dist.init_process_group("gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=world)
    dtype, kill_at = getattr(torch, options.pop("dtype", "float32")), options.pop("kill_at", 0)
    run(folder, DEVICE, dtype=dtype, hook=Kill(kill_at), **options)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
