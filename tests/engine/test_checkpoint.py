"""Checkpoints: round trips, detection of any changed byte, and a valid one after a kill at any point."""

import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from opabinia.engine.checkpointing import checkpoint, manager
from opabinia.engine.checkpointing.checkpoint import (
    BadCheckpoint,
    Snapshot,
    read_checkpoint,
    save_tensors,
    write_checkpoint,
)
from opabinia.engine.checkpointing.content import load_optimizer_state, optimizer_state
from opabinia.engine.checkpointing.manager import (
    CheckpointManager,
    list_checkpoints,
    load_latest_checkpoint,
    read_pointer,
)
from opabinia.runtime.files import DiskError, remove_leftovers
from opabinia.runtime.shards import load_safetensors
from tests.engine.toys import run_state, same_tensors
from tests.faults.injections import die_at

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def snapshot(step: int, **state: Any) -> Snapshot:
    tensors = {"model": {"w": torch.full((3, 4), float(step))}, "optimizer": {"w.step": torch.tensor(float(step))}}
    return Snapshot(step, tensors, {**run_state(step), **state})


def checkpoints(folder: Path, keep: int = 2) -> tuple[CheckpointManager, Callable[[int], Path]]:
    """Return a checkpoint manager, and a function that saves a step and waits until it is written."""
    now = {"step": 0}
    saves = CheckpointManager(folder, keep, lambda: snapshot(now["step"]))

    def save(step: int) -> Path:
        now["step"] = step
        path = saves.save()
        saves.wait()
        return path

    return saves, save


def mark_best(saves: CheckpointManager, step: int) -> None:
    saves.mark_best(step)
    saves.wait()


def steps(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in list_checkpoints(folder)]


# --- tensors ----------------------------------------------------------------------------------------------------------

BASE = torch.arange(24.0).reshape(2, 3, 4)

TENSORS = {
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(4, 3).T,
    "a slice": lambda: torch.arange(10.0)[3:7],
    "every other element": lambda: torch.arange(10.0)[::2],
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "a single number": lambda: torch.tensor(2.5),
    "empty": lambda: torch.empty(0),
    "empty with a shape": lambda: torch.empty(0, 3),
    "bfloat16": lambda: torch.randn(5).bfloat16(),
    "float16": lambda: torch.randn(5).half(),
    "float64": lambda: torch.randn(5).double(),
    "integers": lambda: torch.tensor([-(2**62), 0, 2**62]),
    "booleans": lambda: torch.tensor([True, False]),
    "bytes": lambda: torch.arange(256, dtype=torch.uint8),
    "not numbers": lambda: torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45]),
    "a parameter": lambda: nn.Parameter(torch.randn(3)),
}


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS.keys())
def test_a_tensor_round_trip_is_exact(tmp_path: Path, make: Callable[[], Tensor]) -> None:
    tensor = make()
    save_tensors(tmp_path / "t", {"x": tensor})
    loaded = load_safetensors(tmp_path / "t")["x"]
    assert loaded.dtype == tensor.dtype
    assert loaded.shape == tensor.shape
    assert loaded.is_contiguous()
    raw = tensor.detach().contiguous()
    assert loaded.flatten().view(torch.uint8).tolist() == raw.flatten().view(torch.uint8).tolist()


def test_tensors_that_share_memory(tmp_path: Path) -> None:
    """Slices of one tensor, the tensor itself, and the same values under two names."""
    tensors = {name: make() for name, make in TENSORS.items() if name != "not numbers"}
    shared = {"whole": BASE, "first": BASE[0], "turned": BASE.permute(2, 0, 1), "again": BASE, "flat": BASE.view(-1)}
    save_tensors(tmp_path / "t", {**tensors, **shared})
    assert same_tensors(load_safetensors(tmp_path / "t"), {**tensors, **shared})


def test_tied_tensors_are_written_once_and_tied_again(tmp_path: Path) -> None:
    big, empty = torch.randn(1000), {name: torch.empty(2, 0) for name in ("empty", "also empty")}
    save_tensors(tmp_path / "tied", {"a": big, "b": big, "c": big.view(-1), **empty})
    loaded = load_safetensors(tmp_path / "tied")
    assert (tmp_path / "tied").stat().st_size < 5000
    assert loaded["empty"] is not loaded["also empty"], "they have no memory: all have the same address"
    assert loaded["a"] is loaded["b"] is loaded["c"]
    assert torch.equal(loaded["a"], big)


def test_a_view_is_saved_without_the_rest_of_its_memory(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"x": torch.randn(100_000)[:10]})
    assert (tmp_path / "t").stat().st_size < 1000


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, dtype=torch.int64)}
    save_tensors(tmp_path / "1", tensors)
    save_tensors(tmp_path / "2", dict(reversed(tensors.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize(("text", "number"), [("I/O error: No space left (os error 28)", 28), ("something else", 5)])
def test_disk_errors_of_safetensors_become_oserrors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, number: int
) -> None:
    def full(*arguments: Any) -> None:
        raise SafetensorError(f"Error while serializing: {text}")

    monkeypatch.setattr(checkpoint.sharded, "save_file", full)
    with pytest.raises(OSError) as caught:
        save_tensors(tmp_path / "t", {"x": torch.ones(3)})
    assert caught.value.errno == number


# --- the optimizer's state --------------------------------------------------------------------------------------------


def net(memory_format: torch.memory_format = torch.contiguous_format) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2, bias=False))
    return model.to(memory_format=memory_format)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(int(sum(len(state) for state in optimizer.state.values())))
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3, 8, 8, generator=generator)).square().sum().backward()
        optimizer.step()


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "sgd with momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "adamw": torch.optim.AdamW,
    "adamw fused": partial(torch.optim.AdamW, fused=True),
    "adamw foreach": partial(torch.optim.AdamW, foreach=True),
    "adam with amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "rmsprop": partial(torch.optim.RMSprop, momentum=0.5, centered=True),
    "nadam": torch.optim.NAdam,
    "adafactor": torch.optim.Adafactor,
    "asgd": torch.optim.ASGD,
}


ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_a_restored_optimizer_continues_exactly(
    tmp_path: Path, make: Callable[..., torch.optim.Optimizer], layout: torch.memory_format
) -> None:
    model = net(layout)
    optimizer = make(model.parameters())
    train(model, optimizer, 3)
    tensors, plain = optimizer_state(model, optimizer)
    write_checkpoint(
        tmp_path / "step-00000003", Snapshot(3, {"model": model.state_dict(), "optimizer": tensors}, run_state(3))
    )
    plain = json.loads(json.dumps(plain))
    train(model, optimizer, 3)

    folder = tmp_path / "step-00000003"
    saved = {name: load_safetensors(folder / f"{name}.safetensors") for name in ("model", "optimizer")}
    resumed_model = net(layout)
    resumed_model.load_state_dict(saved["model"])
    resumed = make(resumed_model.parameters())
    load_optimizer_state(resumed_model, resumed, saved["optimizer"], plain)
    train(resumed_model, resumed, 3)
    assert same_tensors(resumed_model.state_dict(), model.state_dict())
    assert {name: tensor.stride() for name, tensor in optimizer_state(resumed_model, resumed)[0].items()} == {
        name: tensor.stride() for name, tensor in optimizer_state(model, optimizer)[0].items()
    }


def test_state_finds_its_parameter_in_another_order_and_grouping() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    tensors, plain = optimizer_state(model, optimizer)
    assert set(tensors) == {f"{name}.{key}" for name in dict(model.named_parameters()) for key in ADAM_STATE}
    weight, bias, linear = model.parameters()
    regrouped = torch.optim.AdamW([{"params": [linear, bias], "lr": 0.5}, {"params": [weight]}], lr=0.25)
    load_optimizer_state(model, regrouped, tensors, plain)
    assert same_tensors(optimizer_state(model, regrouped)[0], tensors)
    assert [group["lr"] for group in regrouped.param_groups] == [0.5, 0.25], "options are config, not state"


def test_a_parameter_without_saved_state_starts_without() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    tensors, plain = optimizer_state(model, optimizer)
    fewer = {name: tensor for name, tensor in tensors.items() if not name.startswith("2.")}
    resumed = torch.optim.AdamW(model.parameters())
    load_optimizer_state(model, resumed, fewer, plain)
    assert set(optimizer_state(model, resumed)[0]) == set(fewer)
    train(model, resumed, 1)
    assert set(optimizer_state(model, resumed)[0]) == set(tensors)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint_dir(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000007"
    write_checkpoint(path, snapshot(7, hooks={"best": {"best": 0.25}}, pending=[[7, {"train/loss": 1.5, "n": "nan"}]]))
    return path


def test_a_valid_checkpoint_is_read(checkpoint_dir: Path) -> None:
    loaded = read_checkpoint(checkpoint_dir)
    assert loaded.step == 7
    assert loaded.state["hooks"] == {"best": {"best": 0.25}}
    assert same_tensors(loaded.tensors["model"], snapshot(7).tensors["model"])
    assert {path.name for path in checkpoint_dir.iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_every_changed_byte_is_refused_by_name(checkpoint_dir: Path, name: str) -> None:
    file = checkpoint_dir / name
    original = file.read_bytes()
    for at in range(len(original)):
        damaged = bytearray(original)
        damaged[at] ^= (0x01, 0x02, 0x20, 0x80, 0xFF)[at % 5]
        file.write_bytes(damaged)
        with pytest.raises(BadCheckpoint, match=f"/step-00000007/{name}: "):
            read_checkpoint(checkpoint_dir)
    file.write_bytes(original)
    read_checkpoint(checkpoint_dir)


@pytest.mark.parametrize("name", FILES)
def test_every_cut_and_every_addition_is_refused_by_name(checkpoint_dir: Path, name: str) -> None:
    file = checkpoint_dir / name
    original = file.read_bytes()
    for content in (
        *(original[:end] for end in range(len(original))),
        original + b"\0",
        original + b"\n",
        b" " + original,
    ):
        file.write_bytes(content)
        with pytest.raises(BadCheckpoint, match=f"/step-00000007/{name}: "):
            read_checkpoint(checkpoint_dir)
    file.unlink()
    with pytest.raises(BadCheckpoint, match=f"/step-00000007/{name}: No such file"):
        read_checkpoint(checkpoint_dir)


@pytest.mark.parametrize(
    "text", ["[]", "null", "{}", '"state"', "[" * 100_000, "1" * 10_000, "\x00", "{'a': 1}", '{"checksum": 5}']
)
def test_an_invalid_state_file_is_refused(checkpoint_dir: Path, text: str) -> None:
    (checkpoint_dir / "state.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"state.json: damaged"):
        read_checkpoint(checkpoint_dir)


def test_files_of_two_checkpoints_do_not_mix(checkpoint_dir: Path, tmp_path: Path) -> None:
    other_dir = tmp_path / "step-00000008"
    write_checkpoint(other_dir, snapshot(8))
    shutil.copy(other_dir / "model.safetensors", checkpoint_dir / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"step-00000007/model.safetensors: damaged"):
        read_checkpoint(checkpoint_dir)


def test_a_disk_that_cannot_be_read_is_a_damaged_checkpoint(
    checkpoint_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoint, "_sha256", broken)
    with pytest.raises(BadCheckpoint, match=r"model.safetensors: Input/output error"):
        read_checkpoint(checkpoint_dir)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("files", [], "files: input should be a valid dictionary"),
        ("files", {"model.safetensors": {}}, "files.model.safetensors.bytes: field required"),
        ("files", {"/etc/passwd": {"bytes": 1, "sha256": ""}}, "files./etc/passwd.*: string should match pattern"),
        ("files", {"../x.safetensors": {"bytes": 1, "sha256": ""}}, "string should match pattern"),
        ("step", "text", "step: input should be a valid integer"),
        ("step", -1, "step: input should be greater than or equal to 0"),
        ("step", None, "step: input should be a valid integer"),
        ("samples", 2**70, "samples: input should be less than"),
        ("seed", 2**70, "seed: input should be less than"),
        ("facts", {}, "facts.samples: field required"),
        ("facts", {"samples": 3, "classes": 5}, "facts.classes: input should be a valid tuple"),
        ("hooks", {"a": 5}, "hooks.a: input should be a valid dictionary"),
        ("journal", {"offset": 0, "pending": [[1]]}, "journal.pending.0.1: field required"),
        ("due", ["a"], "due.*at least 2 items"),
        ("optimizer", {"no dot": 1}, "optimizer.no dot.*: string should match pattern"),
    ],
)
def test_a_signed_state_with_a_wrong_field_is_refused_by_its_name(
    checkpoint_dir: Path, field: str, value: Any, message: str
) -> None:
    state = json.loads((checkpoint_dir / "state.json").read_text())
    del state["checksum"]
    (checkpoint_dir / "state.json").write_bytes(checkpoint._encode_state({**state, field: value}))
    with pytest.raises(BadCheckpoint, match=rf"state\.json: .*{message}"):
        read_checkpoint(checkpoint_dir)
    del state[field]
    (checkpoint_dir / "state.json").write_bytes(checkpoint._encode_state(state))
    with pytest.raises(BadCheckpoint, match=rf"state\.json: {field}: field required"):
        read_checkpoint(checkpoint_dir)


def test_a_later_format_is_an_error(checkpoint_dir: Path) -> None:
    state = {**json.loads((checkpoint_dir / "state.json").read_text()), "format": 2}
    del state["checksum"]
    (checkpoint_dir / "state.json").write_bytes(checkpoint._encode_state(state))
    with pytest.raises(BadCheckpoint, match=r"state.json: format 2; this version reads format 1"):
        read_checkpoint(checkpoint_dir)


@pytest.mark.parametrize(
    "state",
    [
        {"counts": {number: number for number in range(12)}},  # as JSON its keys are texts, in another order
        {"text": "größer ∞ \u2028 \ud83d\ude00 \x00"},
        {"numbers": [0.1, 1e-320, 1e300, -0.0, 2**70, True, None]},
        {"pair": (1, 2)},
    ],
    ids=str,
)
def test_any_json_state_round_trips(tmp_path: Path, state: dict[str, Any]) -> None:
    write_checkpoint(tmp_path / "step-00000001", snapshot(1, hooks={"a": state}))
    assert read_checkpoint(tmp_path / "step-00000001").state["hooks"]["a"] == json.loads(json.dumps(state))


# --- the latest -------------------------------------------------------------------------------------------------------


def damage(path: Path) -> None:
    raw = bytearray((path / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (path / "model.safetensors").write_bytes(raw)


def test_the_newest_valid_checkpoint_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, save = checkpoints(tmp_path, keep=9)
    for step in (2, 4, 6, 10_000_000_000):
        save(step)
    for expected in (10_000_000_000, 6, 4, 2):
        latest = load_latest_checkpoint(tmp_path)
        assert latest and latest[1].step == expected
        damage(latest[0])
        if expected != 2:
            caplog.clear()
            load_latest_checkpoint(tmp_path)
            assert f"{latest[0] / 'model.safetensors'}: damaged" in caplog.text
    with pytest.raises(BadCheckpoint, match="none of its 4 checkpoints is valid"):
        load_latest_checkpoint(tmp_path)


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    for name in (".step-00000005.77.tmp", "step-5", "step-abcdefgh", "step-00000005.bak", "notes"):
        (tmp_path / name).mkdir()
    assert list_checkpoints(tmp_path) == []
    assert load_latest_checkpoint(tmp_path) is None
    assert load_latest_checkpoint(tmp_path / "absent") is None


def test_checkpoints_after_last_are_not_used(tmp_path: Path) -> None:
    """Killed between writing the checkpoint and the pointer, or rolled back by hand."""
    _, save = checkpoints(tmp_path, keep=9)
    for step in (2, 4, 6):
        save(step)
    (tmp_path / "last").write_text("step-00000004\n")
    latest = load_latest_checkpoint(tmp_path)
    assert latest and latest[1].step == 4


@pytest.mark.parametrize("text", ["", "step-00000099\n", "../../etc\n", "step-4\n", "\xff\xfe"])
def test_a_pointer_to_nothing_is_not_followed(tmp_path: Path, text: str) -> None:
    _, save = checkpoints(tmp_path)
    save(4)
    (tmp_path / "last").write_text(text, encoding="latin-1")
    assert read_pointer(tmp_path, "last") is None
    latest = load_latest_checkpoint(tmp_path)
    assert latest and latest[1].step == 4


# --- keeping ----------------------------------------------------------------------------------------------------------


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    saves, save = checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        save(step)
        if step == 2:
            mark_best(saves, 2)
    assert steps(tmp_path) == [2, 3, 4]
    assert read_pointer(tmp_path, "last") == tmp_path / "step-00000004"
    assert read_pointer(tmp_path, "best") == tmp_path / "step-00000002"
    mark_best(saves, 4)
    assert steps(tmp_path) == [3, 4]


def test_the_best_is_saved_if_its_step_is_not(tmp_path: Path) -> None:
    now = [3]
    saves = CheckpointManager(tmp_path, 2, lambda: snapshot(now[0]))
    mark_best(saves, 3)
    assert steps(tmp_path) == [3]
    raw = (tmp_path / "step-00000003" / "state.json").stat().st_mtime_ns
    mark_best(saves, 3)
    assert (tmp_path / "step-00000003" / "state.json").stat().st_mtime_ns == raw, "it is saved once"


def test_a_run_that_was_rolled_back_deletes_later_checkpoints(tmp_path: Path) -> None:
    saves, save = checkpoints(tmp_path, keep=9)
    for step in (2, 4, 6, 8):
        save(step)
    mark_best(saves, 8)
    (tmp_path / "last").write_text("step-00000004\n")
    _, save_again = checkpoints(tmp_path, keep=9)
    save_again(5)
    assert steps(tmp_path) == [2, 4, 5]
    assert read_pointer(tmp_path, "best") is None


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "is_rank_zero", lambda: False)
    saves = CheckpointManager(tmp_path, 2, lambda: snapshot(5))
    assert saves.save() == tmp_path / "step-00000005"
    mark_best(saves, 5)
    assert saves.last_saved_step == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["save_tensors", "_encode_state"])
def test_a_save_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    _, save = checkpoints(tmp_path)
    save(1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, place, full)
    with pytest.raises(DiskError, match=r"step-00000002: the disk is full; earlier checkpoints are complete"):
        save(2)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# --- in the background ------------------------------------------------------------------------------------------------


class Stuck:
    """Makes saves wait before their first file until the test lets them continue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._save = save_tensors
        monkeypatch.setattr(checkpoint, "save_tensors", self)

    def __call__(self, path: Path, tensors: Any) -> None:
        self.reached.set()
        self.go.wait()
        self._save(path, tensors)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    stuck_save = Stuck(monkeypatch)
    yield stuck_save
    stuck_save.go.set()


class Moving:
    """A changing state to save."""

    def __init__(self) -> None:
        self.weight = torch.zeros(1000)
        self.state: dict[str, Any] = {"deep": [{"step": 0}]}
        self.step = 0

    def move(self) -> None:
        self.step += 1
        self.weight += 1
        self.state["deep"][0]["step"] = self.step

    def capture(self) -> Snapshot:
        tensors = {"w": self.weight, "tied": self.weight, "turned": self.weight.view(10, 100).T}
        return Snapshot(self.step, {"model": tensors, "optimizer": {}}, {**run_state(self.step), "state": self.state})


def test_later_changes_are_not_saved(tmp_path: Path, stuck: Stuck) -> None:
    """The loop takes three more steps before the first file is written."""
    moving = Moving()
    saves = CheckpointManager(tmp_path, 2, moving.capture)
    moving.move()
    path = saves.save()
    stuck.reached.wait()
    for _ in range(3):
        moving.move()
    assert not path.exists()
    stuck.go.set()
    saves.wait()
    loaded = read_checkpoint(path)
    model = loaded.tensors["model"]
    assert loaded.step == 1 and loaded.state["state"] == {"deep": [{"step": 1}]}
    assert torch.equal(model["w"], torch.ones(1000)) and torch.equal(model["turned"], torch.ones(100, 10))
    assert model["tied"] is model["w"]
    assert loaded.tensors["optimizer"] == {}


def test_the_next_save_waits_for_the_previous_save(tmp_path: Path, stuck: Stuck) -> None:
    moving = Moving()
    captured: list[bool] = []

    def capture() -> Snapshot:
        captured.append((tmp_path / "step-00000001").is_dir())
        moving.move()
        return moving.capture()

    saves = CheckpointManager(tmp_path, 2, capture)
    saves.save()
    stuck.reached.wait()
    second_save = threading.Thread(target=saves.save)
    second_save.start()
    stuck.go.set()
    second_save.join()
    saves.wait()
    assert captured == [False, True]
    assert steps(tmp_path) == [1, 2]
    assert all(
        read_checkpoint(path).tensors["model"]["w"][0] == step
        for step, path in enumerate(list_checkpoints(tmp_path), 1)
    )


def test_best_is_marked_after_the_pending_save(tmp_path: Path, stuck: Stuck) -> None:
    saves = CheckpointManager(tmp_path, 1, lambda: snapshot(1))
    saves.save()
    saves.mark_best(1)
    assert read_pointer(tmp_path, "best") is None
    stuck.go.set()
    assert saves.has(1)
    assert read_pointer(tmp_path, "best") == tmp_path / "step-00000001"
    saves.forget_best()
    saves.wait()
    assert read_pointer(tmp_path, "best") is None


def test_a_state_that_is_not_json_is_an_error_at_once(tmp_path: Path) -> None:
    saves = CheckpointManager(tmp_path, 1, lambda: snapshot(1, score=math.nan))
    with pytest.raises(ValueError, match="JSON"):
        saves.save()
    assert saves.last_saved_step is None


@pytest.mark.parametrize("method", ["save", "check", "wait", "has"])
def test_a_failed_save_is_raised_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    failed = threading.Event()

    def full(*arguments: Any) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    saves = CheckpointManager(tmp_path, 2, lambda: snapshot(1))
    saves.save()
    failed.wait()
    if method == "check":
        while not saves._background._error:
            time.sleep(0.001)
    with pytest.raises(DiskError, match=r"step-00000001: the disk is full; earlier checkpoints are complete"):
        saves.has(1) if method == "has" else getattr(saves, method)()
    monkeypatch.undo()
    saves.save()
    saves.wait()
    assert steps(tmp_path) == [1], "saving works when the disk has space again"


# --- killed at every point --------------------------------------------------------------------------------------------


def killed_at(turn: int, action: Callable[[], object]) -> bool:
    """Return whether a forked process is killed at this point of the action; False if it completes."""
    pid = os.fork()
    if pid == 0:
        try:
            die_at(turn)
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def at_every_point(begin: Callable[[], Callable[[], object]]) -> Iterator[int]:
    turn = 1
    while killed_at(turn, begin()):
        yield turn
        turn += 1


@pytest.mark.parametrize("keep", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_any_point_of_a_save_there_is_a_valid_checkpoint(tmp_path: Path, keep: int) -> None:
    def begin() -> Callable[[], object]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (tmp_path / "run").mkdir()
        _, save = checkpoints(tmp_path / "run", keep)
        save(1)
        save(2)
        return lambda: save(3)

    steps_left = []
    for _ in at_every_point(begin):
        remove_leftovers(tmp_path / "run")
        latest = load_latest_checkpoint(tmp_path / "run")
        assert latest is not None
        steps_left.append(latest[1].step)
        assert same_tensors(latest[1].tensors["model"], snapshot(latest[1].step).tensors["model"])
        assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]
    assert steps_left == sorted(steps_left) and set(steps_left) == {2, 3}
    assert len(steps_left) > 15


def test_killed_at_any_point_of_saving_the_same_step_again_it_is_not_lost(tmp_path: Path) -> None:
    """A run stopped at the end of an epoch saves that step twice, and with ``keep: 1`` there is no other."""

    def begin() -> Callable[[], object]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (tmp_path / "run").mkdir()
        _, save = checkpoints(tmp_path / "run", 1)
        save(1)
        return lambda: save(1)

    for turn in at_every_point(begin):
        remove_leftovers(tmp_path / "run")
        latest = load_latest_checkpoint(tmp_path / "run")
        assert latest is not None, turn
        assert [path.name for path in (tmp_path / "run").iterdir()].count("step-00000001") == 1


def test_killed_at_any_point_of_marking_the_best_there_is_a_valid_best(tmp_path: Path) -> None:
    def begin() -> Callable[[], object]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (tmp_path / "run").mkdir()
        saves, save = checkpoints(tmp_path / "run", 1)
        save(1)
        mark_best(saves, 1)
        save(2)
        return lambda: mark_best(saves, 2)

    for _ in at_every_point(begin):
        best = read_pointer(tmp_path / "run", "best")
        assert best is not None
        read_checkpoint(best)
