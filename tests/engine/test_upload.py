"""The copy of a run folder in remote storage: only complete checkpoints, nothing sent twice, as many as on the disk."""

import shutil
from pathlib import Path

import pytest
import torch

from opabinia.engine.checkpointing.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from opabinia.engine.checkpointing.upload import Upload
from opabinia.runtime import storage
from tests.engine.toys import run_state


class Interrupted(Exception):
    pass


class Run:
    """A run folder and its copy."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.remote = folder / "run", folder / "bucket" / "run"
        self.sent: list[str] = []
        self.allowed = 10**6
        upload = storage.upload

        def count(file: Path, url: str) -> None:
            if len(self.sent) >= self.allowed:
                raise Interrupted
            upload(file, url)
            self.sent.append(url.partition("/bucket/run/")[2])

        monkeypatch.setattr(storage, "upload", count)
        (self.folder / "checkpoints").mkdir(parents=True)
        (self.folder / "config.yaml").write_text("seed: 1\n")
        (self.folder / "metrics.jsonl").write_text("{}\n")
        (self.folder / ".lock").touch()

    def save(self, step: int, value: float = 0.0) -> None:
        tensors = {name: {"a": torch.full((3,), value)} for name in ("model", "optimizer")}
        write_checkpoint(self.path(step), Snapshot(step, tensors, run_state(step)))
        self.point("last", step)

    def path(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:08d}"

    def point(self, pointer: str, step: int) -> None:
        (self.folder / "checkpoints" / pointer).write_text(f"{self.path(step).name}\n")

    def upload(self, keep: int = 2) -> Upload:
        return Upload(self.folder, f"file://{self.remote}", keep)

    def complete(self) -> list[int]:
        """Read the checkpoints that are complete in storage; return their steps."""
        paths = sorted((self.remote / "checkpoints").glob("step-*/state.json"))
        return [read_checkpoint(path.parent).step for path in paths]

    def value(self, step: int) -> float:
        return float(read_checkpoint(self.remote / "checkpoints" / self.path(step).name).tensors["model"]["a"][0])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, monkeypatch)


def test_all_checkpoints_are_complete_and_the_newest_is_sent_first(run: Run) -> None:
    run.save(5)
    run.save(10)
    run.point("best", 5)
    run.upload().send_all()
    newest, older = ([f"checkpoints/step-{step:08d}/{name}" for name in
                     ("state.json.part", "model.safetensors", "optimizer.safetensors", "state.json")]
                     for step in (10, 5))  # fmt: skip
    assert run.sent == ["config.yaml", "metrics.jsonl", *newest, *older]
    assert run.complete() == [5, 10]
    pointers = [(run.remote / "checkpoints" / name).read_text() for name in ("last", "best")]
    assert pointers == ["step-00000010\n", "step-00000005\n"]
    assert not list(run.remote.rglob("*.part")) and not list((run.folder / "checkpoints").glob(".*"))


def test_an_interrupted_upload_leaves_complete_checkpoints_and_the_next_one_continues(run: Run) -> None:
    run.save(5)
    run.upload().send_all()
    run.save(10)
    run.sent.clear()
    for count in (0, 1, 2, 3, 3, 3):  # each sends the config and the metrics, then one more file of the checkpoint
        run.allowed = len(run.sent) + count
        with pytest.raises(Interrupted):
            run.upload().send_all()
        assert run.complete() == [5]
        assert (run.remote / "checkpoints" / "last").read_text() == "step-00000005\n"
    run.allowed = 10**6
    run.upload().send_all()
    assert run.complete() == [5, 10]
    files = [name for name in run.sent if name.endswith(".safetensors")]
    assert len(files) == len(set(files)) == 2, "a file was sent twice"


def test_files_of_another_checkpoint_of_the_same_step_and_size_are_replaced(run: Run) -> None:
    run.save(5, value=1.0)
    upload = run.upload()
    upload.send_all()
    shutil.rmtree(run.path(5))
    run.save(5, value=2.0)
    run.allowed = len(run.sent) + 2  # the file that marks it as incomplete, and its model
    with pytest.raises(Interrupted):
        upload.send_all()
    assert run.complete() == []
    shutil.rmtree(run.path(5))
    run.save(5, value=3.0)
    run.allowed = 10**6
    run.upload().send_all()
    assert run.value(5) == 3.0


def test_as_many_are_kept_as_on_the_disk(run: Run) -> None:
    upload = run.upload()
    for step in (5, 10, 15, 20):
        run.save(step)
        if step == 5:
            run.point("best", 5)
        if step > 15:
            shutil.rmtree(run.path(10))
        upload.send_all()
    assert run.complete() == [5, 15, 20]
    # The run is resumed at step 5, and the best is forgotten: later checkpoints go with the next save.
    for step in (15, 20):
        shutil.rmtree(run.path(step))
    (run.folder / "checkpoints" / "best").unlink()
    run.point("last", 5)
    (run.folder / "results.json").write_text("{}")
    upload.send_all()
    assert run.complete() == [5, 15, 20]
    run.save(6)
    (run.folder / "results.json").unlink()
    upload.send_all()
    assert run.complete() == [5, 6]
    assert not (run.remote / "checkpoints" / "best").exists() and not (run.remote / "results.json").exists()


def test_a_checkpoint_that_is_deleted_while_it_is_sent_stays_complete(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(5)
    send = storage.upload

    def delete_first(file: Path, url: str) -> None:
        if url.endswith("model.safetensors"):
            shutil.rmtree(run.path(5))
        send(file, url)

    monkeypatch.setattr(storage, "upload", delete_first)
    run.upload().send_all()
    assert run.complete() == [5]
