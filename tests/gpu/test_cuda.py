"""The same engine on a GPU: devices by local rank, the CPU's losses, no waiting, bit-identical resumes.

Beside torch, torchvision and timm it needs what ``opabinia.run`` imports (NumPy, scikit-learn, safetensors, pydantic,
PyYAML, rich), and neither the command line's packages nor TensorBoard. Run: ``pytest tests/gpu``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchvision.transforms import v2

from opabinia.contracts import Batch, Clock, DatasetInfo, GlobalBatch, Hook, Run, StepOptions, Task
from opabinia.data import Data, Stream
from opabinia.data.batch_mixing import cutmix, mixup
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.permutation import EpochSampler
from opabinia.data.sources import Digits
from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from opabinia.engine.loop.prefetch import to_host
from opabinia.engine.loop.step import StandardStep
from opabinia.models.backbones.timm import timm
from opabinia.optim.schedules import cosine
from opabinia.runtime.device import choose_device
from opabinia.runtime.durations import Duration
from opabinia.tasks.classification import Classification
from opabinia.training.loaders import TrainingBatches
from opabinia.training.session import Session, TrainingRun
from opabinia.training.settings import Checkpointing, Evaluation, Training

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda"
STEPS = 30


@pytest.fixture(autouse=True)
def arithmetic_kept() -> Iterator[None]:
    """What a run sets for its process is not to last."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = False


# --- runs -------------------------------------------------------------------------------------------------------------


def digits(split: Any) -> Stream:
    transforms = [v2.Resize(32), v2.RandomAffine(10)] if split == "train" else [v2.Resize(32)]
    return Stream(source=Digits(split=split), transforms=transforms)


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
    log_every: int = 1,
    save_every: int = 5,
    deterministic: bool = False,
    hook: Hook | None = None,
) -> dict[str, float]:
    """Thirty steps of digits, from the newest checkpoint in the folder if there is one."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    newest = load_latest_checkpoint(checkpoints)
    run = TrainingRun(
        task=partial(model, dtype, dropout=dropout),
        data=Data(
            train=digits("train"),
            val=digits("val"),
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
            deterministic=deterministic,
            num_threads=1,
            log_every=log_every,
        ),
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
    """``as_local_rank(2)``: as if a launcher had started this process as the third of its machine."""
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


def test_without_a_launcher_it_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "5")  # left over from somewhere: nobody launched this process
    assert choose_device("cuda") == torch.device("cuda", 0)
    assert choose_device("cpu") == torch.device("cpu")


# --- the same numbers -------------------------------------------------------------------------------------------------


def test_thirty_steps_have_the_losses_of_the_cpu(tmp_path: Path) -> None:
    """In double precision, because a network with batch norm trained from scratch makes a difference of 1e-7 into one
    of 1e-2 within thirty steps. Doubles that differ by 1e-14 at first still agree to the float32 of the journal."""
    scores = {device: run(tmp_path / device, device, dtype=torch.float64) for device in ("cpu", DEVICE)}
    found = {device: losses(tmp_path / device) for device in scores}
    assert len(found["cpu"]) == STEPS
    assert found["cpu"][-1] < found["cpu"][0] / 2
    assert found[DEVICE] == pytest.approx(found["cpu"], rel=1e-6)
    assert scores[DEVICE] == scores["cpu"]


def test_the_first_loss_is_that_of_the_cpu_in_single_precision(tmp_path: Path) -> None:
    """Ten bits of TensorFloat-32 are 1e-3."""
    for device in ("cpu", DEVICE):
        run(tmp_path / device, device)
    assert losses(tmp_path / DEVICE)[0] == pytest.approx(losses(tmp_path / "cpu")[0], rel=2e-3)


# --- numbers that go wrong --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("fused", [True, False])
def test_an_update_is_left_out_on_the_device(fused: bool) -> None:
    """A fused optimizer needs no look of the host; another waits for it."""
    torch.manual_seed(0)
    task = model(torch.float32, DatasetInfo(samples=8, channels=1, classes=tuple("0123456789"))).to(DEVICE)
    optimizer = torch.optim.AdamW(task.parameters(), lr=0.1, fused=fused)
    step = StandardStep(task, optimizer, {}, StepOptions(0, skip_non_finite=True))
    row = GlobalBatch(step=0, epoch=0, first=0, count=8)
    image, label = torch.rand(8, 1, 32, 32, device=DEVICE), torch.arange(8, device=DEVICE)

    def trained(pixels: torch.Tensor) -> Any:
        batch = {"image": pixels, "label": label, "id": [str(one) for one in range(8)]}
        return step(batch, row, Clock(total_steps=10), lambda: None)["skipped"]

    assert float(trained(image)) == 0
    before = {name: value.clone() for name, value in task.state_dict().items()}
    broken = image.clone()
    broken[3] = torch.nan
    torch.cuda.set_sync_debug_mode("error" if fused else "default")
    try:
        skipped = trained(broken)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert float(skipped) == 1
    assert all(torch.equal(value, before[name]) for name, value in task.state_dict().items())


# --- no waiting -------------------------------------------------------------------------------------------------------


class MustNotWait(Hook):
    """Between the lines of steps 10 and 20, any wait of the host for the device is an error."""

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
def test_a_step_between_two_lines_never_waits_for_the_device(tmp_path: Path) -> None:
    """With all that a step may do: workers, mixing, dropout, a schedule, clipping."""
    watch = MustNotWait()
    try:
        run(tmp_path, DEVICE, workers=2, mixing=True, dropout=0.1, log_every=10, save_every=STEPS, hook=watch)
        assert watch.steps == list(range(12, 20))
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(1, device=DEVICE).item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(losses(tmp_path)) == STEPS // 10 + 1, "lines at 10, 20, 30 and where the first epoch of 23 steps ends"


def training_batches(device: torch.device, **keys: Any) -> list[Batch]:
    """Ten batches of two epochs; mixed."""
    transforms = [
        v2.Resize(32),
        v2.RandomAffine(10),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4),
        v2.RandomErasing(),
    ]
    train = Stream(source=Digits(split="val"), transforms=transforms)
    data = Data(train=train, batch_size=72, mix=[partial(cutmix, alpha=1.0), partial(mixup, alpha=0.2)], **keys)
    dataset_info = DatasetInfo(len(train.source), 1, classes=Digits.classes)
    plan = ConstantPlan(dataset_info.samples, 72, Duration(10, "it"))
    loader = TrainingBatches(data, dataset_info, EpochSampler(dataset_info.samples, 0, True), plan, 0).loader(device)
    try:
        found = []
        for _, batch in loader.iterate():
            # Long work before it is read: memory that were given back too early would be overwritten by the next batch.
            torch.cuda._sleep(2_000_000)
            found.append({key: batch[key].clone() for key in ("image", "label")})
        return found
    finally:
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_copied_beside_the_steps_unchanged(workers: int) -> None:
    on_host = training_batches(torch.device("cpu"), workers=workers)
    fed = training_batches(torch.device(DEVICE, 0), workers=workers)
    assert all(batch[key].is_cuda for batch in fed for key in batch)
    assert all(torch.equal(a[key], b[key].cpu()) for a, b in zip(on_host, fed, strict=True) for key in a)


def test_augmented_on_the_gpu_as_in_workers() -> None:
    """Rounding may differ by one of 255, which mixing leaves at one at most."""
    on_host = training_batches(torch.device("cpu"), workers=1)
    found = training_batches(torch.device(DEVICE, 0), workers=1, augment_on="device")
    for one, other in zip(on_host, found, strict=True):
        assert torch.allclose(one["label"], other["label"].cpu(), atol=1e-6)
        assert (one["image"] - other["image"].cpu()).abs().max() < 1.5 / 255


def test_features_come_to_the_host_beside_later_work() -> None:
    values = torch.arange(1000.0, device=DEVICE)
    arrived = to_host({"a": values * 2})
    torch.cuda._sleep(2_000_000_000)
    found = arrived()["a"]
    assert not torch.cuda.current_stream().query(), "nobody has waited for what came behind"
    assert torch.equal(found, torch.arange(1000.0) * 2)


# --- killed and resumed -----------------------------------------------------------------------------------------------


class Kill(Hook):
    """A power cut after this step, before anything of the moment is saved."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, run: Run) -> None:
        if run.clock.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def start(folder: Path, kill_at: int, workers: int) -> int:
    """A process of its own that trains in ``folder`` and is killed at this step (0: never); its exit status."""
    program = [sys.executable, __file__, str(folder), str(kill_at), str(workers)]
    done = subprocess.run(program, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    return done.returncode


def test_killed_and_resumed_it_ends_in_the_same_bits(tmp_path: Path) -> None:
    assert start(tmp_path / "undisturbed", 0, 2) == 0
    assert start(tmp_path / "killed", 8, 1) == -signal.SIGKILL
    assert start(tmp_path / "killed", 20, 0) == -signal.SIGKILL
    assert start(tmp_path / "killed", 0, 2) == 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "undisturbed")
    for name in ("model", "optimizer"):
        file = Path("checkpoints", f"step-{STEPS:08d}", f"{name}.safetensors")
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "undisturbed" / file).read_bytes(), name


if __name__ == "__main__":
    path, step, readers = sys.argv[1:]
    run(Path(path), DEVICE, deterministic=True, workers=int(readers), mixing=True, dropout=0.1, hook=Kill(int(step)))
