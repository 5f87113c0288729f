"""Short training runs on the pretended device, and what happened there; called in its process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opabinia.config import build
from opabinia.engine.checkpointing.checkpoint import Snapshot
from opabinia.engine.checkpointing.manager import load_latest_checkpoint
from opabinia.runtime.signals import Stopped
from opabinia.training.run_folder import resolve
from opabinia.training.session import Session, TrainingRun
from scripts.update_golden import DATA, SMALLER, TEACHERS, save_teacher
from tests.device.data import shorten_validation
from tests.device.phases import stopping_after
from tests.device.records import RECORD, Event

COMMON = (
    *("seed=0", "train.device=cuda", "train.num_threads=1", "train.log_every=1000", "data.num_workers=0"),
    *("evaluate.every=0ep", "evaluate.batch_size=64", "checkpoint.every=1000it", "loggers=[]"),
)


class Events(NamedTuple):
    """What a run did on the device: numbers of events by phase (see :class:`tests.device.records.Record`)."""

    waits: dict[str, dict[Event, int]]
    pageable: dict[str, dict[Event, int]]
    nondeterministic: dict[str, dict[Event, int]]
    float64: dict[str, dict[Event, int]]


def observe(recipe: str, overrides: Sequence[str], data: Callable[[Path], None] | None = None) -> Events:
    """Train two steps, stop, resume with ``train.deterministic`` for a third, and evaluate; return the events."""
    RECORD.forbid_nondeterministic = False
    config = small_config(recipe, [*overrides, "train.length=3it"], data)
    with tempfile.TemporaryDirectory() as folder:
        interrupted = train(config, Path(folder), stop_after=2)
        train({**config, "train": {**config["train"], "deterministic": True}}, Path(folder), resume=interrupted)
    recorded = (RECORD.waits, RECORD.pageable, RECORD.nondeterministic, RECORD.float64)
    return Events(*({phase: dict(counts) for phase, counts in events.items()} for events in recorded))


def resumes_bitwise(recipe: str, overrides: Sequence[str]) -> list[str]:
    """Train four steps, once in one go and once stopped after two; return the names of tensors that differ."""
    config = small_config(recipe, [*overrides, "train.length=4it", "train.deterministic=true"])
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        expected = train(config, Path(whole))
        resumed = train(config, Path(parts), resume=train(config, Path(parts), stop_after=2))
    assert expected.step == resumed.step == 4 and expected.tensors.keys() == resumed.tensors.keys()
    return [
        f"{file}: {name}"
        for file, tensors in expected.tensors.items()
        for name in different(tensors, resumed.tensors[file])
    ]


def different(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not equal in both."""
    return [name for name in tensors.keys() | others.keys() if not torch.equal(tensors[name], others[name])]


def train(
    config: Mapping[str, Any], folder: Path, stop_after: int | None = None, resume: Snapshot | None = None
) -> Snapshot:
    """Train a complete config to its end, or until it is stopped after some step; return the last checkpoint."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    run = TrainingRun(**build(config).keywords)
    with suppress(Stopped), stopping_after(stop_after):
        run(Session(folder, resume))
    newest = load_latest_checkpoint(folder / "checkpoints")
    assert newest is not None
    return newest[1]


# --- configs ----------------------------------------------------------------------------------------------------------


def small_config(recipe: str, overrides: Sequence[str], data: Callable[[Path], None] | None = None) -> dict[str, Any]:
    """Return the complete config of a recipe, made small as for the golden losses and then by ``overrides``.

    In these ``TEACHER`` is the path of weights of timm's ``test_resnet``, and ``ROOT`` that of the data that ``data``
    generates instead of those for the golden losses.
    """
    root = generated(data or DATA[recipe]) if data or recipe in DATA else None
    smaller = [*SMALLER.get(recipe, ())]
    if recipe in DATA:
        smaller.append(f"vars.root={root}")
    if recipe in TEACHERS:
        smaller.append(f"vars.teacher={json.dumps(teacher(TEACHERS[recipe]))}")
    paths = {"ROOT": str(root), "TEACHER": teacher(3)["weights"]}
    for name, path in paths.items():
        overrides = [override.replace(name, path) for override in overrides]
    return dict(resolve(recipe, [*COMMON, *smaller, *overrides]).config)


@cache
def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that exists as long as this process."""
    return tempfile.TemporaryDirectory(prefix="opabinia-device-")


@cache
def generated(generate: Callable[[Path], None]) -> Path:
    """Return a folder with generated data."""
    folder = Path(tempfile.mkdtemp(dir=temporary_folder().name)) / "data"
    generate(folder)
    shorten_validation(folder)
    return folder


@cache
def teacher(channels: int) -> dict[str, Any]:
    """Return the config of a teacher with random weights, timm's ``test_resnet``."""
    return save_teacher(Path(temporary_folder().name) / f"channels-{channels}", channels)
