"""Runs in remote storage: URLs, refused uploads, and checkpoints that another machine fetches."""

import json
import os
import re
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import opabinia
from opabinia.config import ConfigError, Resolved
from opabinia.engine.checkpointing.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from opabinia.engine.checkpointing.manager import list_checkpoints, read_pointer, step_of
from opabinia.engine.checkpointing.sharded import ranks_elsewhere
from opabinia.engine.checkpointing.upload import Upload
from opabinia.runtime import storage
from opabinia.runtime.files import FolderInUse
from opabinia.training import launch, remote_runs
from opabinia.training.run_folder import chosen_checkpoint, downloaded_run, resolve
from tests.engine.toys import run_state
from tests.faults.programs import PAUSE, Program, Server
from tests.faults.runs import RECIPE, Outcome, assert_same
from tests.faults.s3 import S3Server
from tests.training.test_launch import contents, problem, train

KILLS = int(os.environ.get("OPABINIA_TEST_KILLS", "20"))
"""Number of killed machines; each needs the time of a start."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE", str(tmp_path / "remote"))


def uploaded_to(url: str | None) -> Resolved:
    resolved = resolve("classification/digits")
    return replace(resolved, config={**resolved.config, "checkpoint": {"upload": url, "keep": 2}})


def visible(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if not name.startswith(".")}


def save(folder: Path, *steps: int, seed: int = 1) -> Path:
    for step in steps:
        path = folder / "checkpoints" / f"step-{step:08d}"
        write_checkpoint(path, Snapshot(step, {"model": {}, "optimizer": {}}, {**run_state(step), "seed": seed}))
        (folder / "checkpoints" / "last").write_text(path.name + "\n")
    (folder / "config.yaml").write_text("seed: 1\n")
    (folder / "metrics.jsonl").write_text("{}\n" * max(steps, default=0))
    return folder


class Machine:
    """A machine with its own run folder; all machines share the bucket."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.url = folder / name, f"file://{folder}/bucket/run"
        self.checkpoints = self.folder / "checkpoints"

    def fetch(self, chosen: str = "") -> str:
        """Restart with ``--resume auto``; return the checkpoint to resume."""
        remote_runs.fetch_newer(self.url, self.folder, uploaded_to("file:///x"), chosen)
        return self.last()

    def resume(self, step: int) -> None:
        """Restart with ``--resume`` and a checkpoint."""
        self.fetch(f"step-{step:08d}")
        remote_runs.resume_from(self.checkpoints, step)

    def train(self, *steps: int, seed: int = 1) -> None:
        for step in steps:
            save(self.folder, step, seed=seed)
            for later in list_checkpoints(self.checkpoints):  # like the next save
                if step_of(later) > step:
                    shutil.rmtree(later)

    def upload(self) -> None:
        Upload(self.folder, self.url, 9).send_all()

    def last(self) -> str:
        path = read_pointer(self.checkpoints, "last")
        return "" if path is None else f"{step_of(path)} of {read_checkpoint(path).state['seed']}"


def test_the_url_of_a_run_is_derived_from_its_folder(tmp_path: Path) -> None:
    out, bucket, other = tmp_path / "runs", f"file://{tmp_path}/bucket/", f"file://{tmp_path}/b/"
    folder = out / "classification" / "digits" / "a"
    folder.mkdir(parents=True)

    def urls() -> list[str]:
        return [
            remote_runs.run_url(uploaded_to(base), folder, folders).replace(base, "")
            for base, folders in ((bucket, out), (bucket, tmp_path / "other"), (other, out))
        ]

    assert urls() == ["classification/digits/a", "a", "classification/digits/a"]
    (folder / ".upload").write_text(f"{bucket}classification/digits/a")
    assert urls() == ["classification/digits/a"] * 3, "it keeps the URL that it began with"


def test_a_new_upload_is_checked_before_the_first_step(tmp_path: Path) -> None:
    resolved, folder, url = uploaded_to("file:///x"), save(tmp_path / "run", 5), f"file://{tmp_path}/bucket/run"
    remote_runs.check_upload(folder, url, resolved, new=True)
    assert (tmp_path / "bucket" / "run" / ".upload").read_text() == url
    Upload(folder, url, 2).send_all()
    message = problem(lambda: remote_runs.check_upload(folder, url, resolved, new=True))
    assert f"{url} holds a run, which is never overwritten" in message
    remote_runs.check_upload(folder, url, resolved, new=False)
    for wrong, text in (("xyz://bucket/a", "there is no protocol xyz"), ("runs/a", "runs/a is no URL; expected one")):
        assert text in problem(lambda: remote_runs.run_url(uploaded_to(wrong), folder, tmp_path))  # noqa: B023


def test_a_machine_fetches_newer_checkpoints_and_keeps_its_own_otherwise(tmp_path: Path) -> None:
    url, resolved = f"file://{tmp_path}/bucket/run", uploaded_to("file:///x")
    remote = save(tmp_path / "a", 5, 10, 15)
    (remote / "checkpoints" / "best").write_text("step-00000005\n")
    fetch = remote_runs.fetch_newer
    fetch(url, tmp_path / "b", resolved)
    assert not (tmp_path / "b").exists()
    Upload(remote, url, 2).send_all()
    fetch(url, tmp_path / "b", resolved)
    newest_and_best = contents(remote)
    assert visible(tmp_path / "b") == {key: newest_and_best[key] for key in newest_and_best if "00000010" not in key}
    ahead = contents(save(tmp_path / "b", 20))
    fetch(url, tmp_path / "b", resolved)
    assert contents(tmp_path / "b") == ahead
    # A checkpoint that is named is fetched, too, and nothing else is changed.
    fetch(url, tmp_path / "b", resolved, "step-00000010")
    added = {key: newest_and_best[key] for key in newest_and_best if "00000010" in key}
    assert contents(tmp_path / "b") == {**ahead, **added}
    # A checkpoint without state.json is not complete: the one before it is fetched.
    bucket = tmp_path / "bucket" / "run" / "checkpoints"
    (bucket / "step-00000015" / "state.json").unlink()
    fetch(url, tmp_path / "c", resolved)
    assert (tmp_path / "c" / "checkpoints" / "last").read_text() == "step-00000010\n"
    for path in bucket.glob("step-*/state.json"):
        path.unlink()
    fetch(url, tmp_path / "d", resolved)
    assert (tmp_path / "d" / "config.yaml").exists() and not (tmp_path / "d" / "checkpoints" / "last").exists()


def test_a_machine_that_is_killed_between_two_checkpoints_fetches_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    a.train(5, 10)
    (a.checkpoints / "best").write_text("step-00000005\n")
    a.upload()
    fetch, fetched = remote_runs._fetch_checkpoint, list[Path]()

    def fetch_one(url: str, objects: Any, path: Path) -> None:
        if fetched:
            raise KeyboardInterrupt
        fetched.append(path)
        fetch(url, objects, path)

    with monkeypatch.context() as patch:
        patch.setattr(remote_runs, "_fetch_checkpoint", fetch_one)
        with pytest.raises(KeyboardInterrupt):
            b.fetch()
    b.fetch()
    assert visible(b.folder) == contents(a.folder)


def test_a_machine_waits_for_a_checkpoint_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    a.train(5, seed=2)
    b.train(5)  # of another branch
    b.upload()
    path, expected = (machine.checkpoints / "step-00000005" for machine in (b, a))
    manifest = (expected / "state.json").read_bytes()
    monkeypatch.setattr(remote_runs, "UPLOAD_SECONDS", 0.0)
    message = problem(lambda: remote_runs.await_checkpoint(b.url, path, manifest))
    assert f"{b.url}/checkpoints/{path.name}, from which rank 0 resumes, was not there after 0 s" in message
    assert f"put {b.folder} on a disk that they share" in message
    a.upload()
    remote_runs.await_checkpoint(b.url, path, manifest)
    assert contents(path) == contents(expected)


def test_a_resume_from_an_older_checkpoint_is_not_undone(tmp_path: Path) -> None:
    a, b, c = (Machine(tmp_path, name) for name in "abc")
    a.train(5, 10, 15, 20)
    a.upload()
    # Killed before the upload: the same machine resumes from there.
    a.resume(10)
    assert a.fetch() == "10 of 1"
    a.train(12, seed=2)
    assert a.fetch() == "12 of 2"
    assert c.fetch() == "20 of 1", "the bucket does not have it yet"
    # Uploaded before the next checkpoint: every machine resumes from there, also one with later checkpoints.
    a.resume(10)
    a.upload()
    assert c.fetch() == "10 of 1" and not (c.checkpoints / "step-00000020").exists()
    assert b.fetch() == "10 of 1"
    a.train(12, seed=2)
    a.upload()
    assert c.fetch() == b.fetch() == "12 of 2"
    # Within a branch the machine with the latest checkpoint continues.
    c.train(14, seed=2)
    c.upload()
    b.train(18, seed=2)
    assert b.fetch() == "18 of 2" and a.fetch() == "14 of 2"
    # Resumed from a checkpoint that only storage has, or only the machine.
    b.resume(5)
    b.train(7, seed=3)
    b.upload()
    c.resume(12)
    assert c.last() == "12 of 2" and (c.checkpoints / "branch").read_text() == "4\n"
    c.train(13, seed=4)
    c.upload()
    assert [machine.fetch() for machine in (a, b, c, Machine(tmp_path, "d"))] == ["13 of 4"] * 4
    for machine in (a, b):
        for path in list_checkpoints(machine.checkpoints):
            assert contents(path) == contents(tmp_path / "bucket/run/checkpoints" / path.name), (
                "no checkpoint of another branch"
            )
    # Killed after deleting other checkpoints: the checkpoint is fetched again.
    (b.checkpoints / "branch").unlink()
    save(b.folder, 20)
    assert b.fetch() == "13 of 4"


def test_a_run_that_is_trained_while_it_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    a.train(5)
    a.upload()
    fetch, changes = remote_runs._fetch_checkpoint, iter([10, 15])

    def fetch_late(url: str, objects: Any, path: Path) -> None:
        if step := next(changes, 0):
            a.train(step)
            Upload(a.folder, a.url, 1).send_all()
            shutil.rmtree(a.checkpoints / f"step-{step - 5:08d}")
            Upload(a.folder, a.url, 1)._delete_old()
        fetch(url, objects, path)

    monkeypatch.setattr(remote_runs, "_fetch_checkpoint", fetch_late)
    assert b.fetch() == "15 of 1"


def test_a_folder_that_another_process_writes_to_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = Machine(tmp_path, "a"), Machine(tmp_path, "b")
    a.train(5, 10)
    a.upload()
    b.train(5)
    initial = contents(b.folder)

    def locked(folder: Path) -> Any:
        raise FolderInUse(f"{folder}: another process is writing this run")

    with monkeypatch.context() as patch, pytest.raises(FolderInUse, match="another process is writing this run"):
        patch.setattr(remote_runs, "run_lock", locked)
        b.fetch()
    assert visible(b.folder) == initial and b.fetch() == "10 of 1"


def test_results_of_this_machine_are_kept(tmp_path: Path) -> None:
    a = Machine(tmp_path, "a")
    a.train(5)
    for name in ("val", "test"):
        (a.folder / "eval" / name).mkdir(parents=True)
        (a.folder / "eval" / name / "scores.json").write_text("there")
    (a.folder / "results.json").write_text("{}")
    a.upload()
    copy = remote_runs.fetch_run(a.url)
    local_file, updated_file = (copy / "eval" / name / "scores.json" for name in ("val", "test"))
    now = time.time()
    for file, seconds in ((local_file, 60), (updated_file, 30)):
        file.write_text("here")
        os.utime(file, (now + seconds, now + seconds))
    assert (copy / "results.json").exists()
    (a.folder / "results.json").unlink()
    a.train(10)
    a.upload()
    remote_file = tmp_path / "bucket/run/eval/test/scores.json"
    remote_file.write_text("later")
    os.utime(remote_file, (now + 45, now + 45))
    remote_runs.fetch_run(a.url)
    assert local_file.read_text() == "here" and updated_file.read_text() == "later"
    assert not (copy / "results.json").exists(), "the run was extended"
    assert read_pointer(copy / "checkpoints", "last") == copy / "checkpoints" / "step-00000010"


def test_any_checkpoint_of_a_remote_run_can_be_chosen(tmp_path: Path) -> None:
    a = Machine(tmp_path, "a")
    a.train(5, 10, 15)
    a.upload()

    def fetched() -> list[str]:
        return [path.name for path in list_checkpoints(remote_runs.fetch_run(a.url) / "checkpoints")]

    assert fetched() == ["step-00000015"]
    copy = storage.local_run(a.url)
    path = chosen_checkpoint(copy, "step-00000010")
    assert path.parent == copy / "checkpoints" and read_checkpoint(path).step == 10
    assert "there is no 'step-00000007'" in problem(lambda: chosen_checkpoint(copy, "step-00000007"))
    Upload(a.folder, a.url, 1)._delete_checkpoint("step-00000010")
    assert fetched() == ["step-00000015"], "deleted checkpoints do not fill the disk"


def test_a_folder_without_a_run_and_a_run_with_plugins_are_refused(tmp_path: Path) -> None:
    a = Machine(tmp_path, "a")
    assert problem(lambda: downloaded_run(a.url)).endswith(f"{a.url} holds no run (no config.yaml in it)")
    assert not storage.local_run(a.url).exists()
    a.train(5)
    (a.folder / "config.yaml").write_text("plugins: [antigravity]\n")
    a.upload()
    assert "imports modules of this machine" in problem(lambda: downloaded_run(a.url))


def test_ranks_that_would_write_shards_to_another_disk_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ranks_elsewhere(tmp_path) == [] and not list(tmp_path.iterdir())
    monkeypatch.setattr(launch, "ranks_elsewhere", lambda folder: [2, 3])
    launch._check_shared(tmp_path, resolve("classification/digits", ["train.parallel=ddp"]))
    sharded = resolve("classification/digits", ["train.parallel=fsdp"])
    message = problem(lambda: launch._check_shared(tmp_path, sharded))
    assert f"{tmp_path} of rank 2, 3 is not that of rank 0: put it on a disk that all machines share" in message


@pytest.mark.slow
def test_machines_without_a_common_disk_resume_from_storage(tmp_path: Path, warm_server: Server) -> None:
    recipe, upload = tmp_path / "faults.yaml", f"checkpoint.upload=file://{tmp_path}/bucket"
    recipe.write_text(RECIPE)

    def start_both(*overrides: str) -> list[Program]:
        arguments = ("train", str(recipe), f"train.distributed.init=file://{tmp_path}/{len(overrides)}", *overrides)
        return [
            warm_server.start(
                *(*arguments, "--out", f"{tmp_path}/machine-{rank}"), environment={"RANK": str(rank), "WORLD_SIZE": "2"}
            )
            for rank in range(2)
        ]

    for program in start_both("train.parallel=fsdp"):
        program.expect(2, 300)
        assert "of rank 1 is not that of rank 0: put it on a disk that all machines share" in program.err
    warm_server.run("train", str(recipe), "--out", str(tmp_path / "first"), upload, "train.length=1ep", seconds=300)
    for program in start_both(upload, "train.length=2ep", "--resume", "auto"):
        program.expect(0, 300)
        assert program.trace[0] == "start 15"
    rank_0_dir, rank_1_dir = (tmp_path / f"machine-{rank}/faults/default/checkpoints" for rank in range(2))
    assert read_pointer(rank_0_dir, "last") == rank_0_dir / "step-00000030"
    assert [path.name for path in list_checkpoints(rank_1_dir)] == ["step-00000015"]


@pytest.mark.slow
def test_a_run_is_resumed_and_evaluated_from_storage_alone(tmp_path: Path) -> None:
    def on_machine(name: str, *overrides: str, **options: Any) -> tuple[Path, dict[str, float]]:
        upload = f"checkpoint={{every: 2it, keep: 1, upload: 'file://{tmp_path}/bucket'}}"
        return train(tmp_path / name, upload, "optimizer.lr=0.002", *overrides, **options)

    reference = train(
        tmp_path / "undisturbed", "checkpoint={every: 2it, keep: 1}", "optimizer.lr=0.002", "train.length=6it"
    )[0]
    on_machine("a", "train.length=4it")
    shutil.rmtree(tmp_path / "a")
    folder, scores = on_machine("b", "train.length=6it", resume="last")
    for name in ("model", "optimizer"):
        file = Path("checkpoints", "step-00000006", f"{name}.safetensors")
        assert (folder / file).read_bytes() == (reference / file).read_bytes()
    url = f"file://{tmp_path}/bucket/classification/digits/default"
    remote = downloaded_run(url)
    assert opabinia.evaluate(remote) == scores == json.loads((remote / "results.json").read_text())
    assert opabinia.load(url).dataset_info.classes
    with pytest.raises(ConfigError, match="holds a run, which is never overwritten"):
        on_machine("c")


# --- a server of S3 ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_wrong_buckets_and_missing_credentials_are_reported(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(url: str) -> str:
        return problem(lambda: remote_runs.check_upload(tmp_path, url, uploaded_to(url), new=True))

    assert re.search("no s3://no-bucket/run.*bucket", refused("s3://no-bucket/run"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()  # clients of a new process have no credentials
    assert "s3://another/run: access is refused" in refused("s3://another/run")


@pytest.mark.slow
def test_an_outage_delays_the_upload_and_nothing_else(s3_server: S3Server, tmp_path: Path, warm_server: Server) -> None:
    url, recipe = f"s3://{s3_server.bucket()}", tmp_path / "faults.yaml"
    recipe.write_text(RECIPE)
    environment = {**s3_server.environment, "OPABINIA_REMOTE_CACHE": str(tmp_path / "remote")}
    arguments = ("train", str(recipe), "--out", str(tmp_path), f"checkpoint.upload={url}")
    program = warm_server.start(*arguments, environment={**environment, PAUSE: "after_step 4"})
    program.until(program.path.with_suffix(".paused").exists, 300)
    s3_server.stop()
    program.unpause()
    program.until(lambda: "finish done" in program.trace, 300)  # without storage
    s3_server._start()
    program.expect(0, 300)
    run, remote = tmp_path / "faults" / "default", remote_runs.fetch_run(f"{url}/faults/default")
    for name in ("config.yaml", "metrics.jsonl", "results.json", "checkpoints/last", "checkpoints/best"):
        assert (remote / name).read_bytes() == (run / name).read_bytes()
    assert contents(remote / "checkpoints" / "step-00000030") == contents(run / "checkpoints" / "step-00000030")


def kill_uploading(folder: str) -> None:
    """Kill the process that uploads a run folder, and wait until it is gone."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = file.read_bytes().decode().split("\0")
            if "opabinia.engine.checkpointing.upload" in arguments and any(
                folder in argument for argument in arguments
            ):
                os.kill(int(file.parent.name), signal.SIGKILL)
                while file.read_bytes():
                    time.sleep(0.01)


@pytest.mark.slow
def test_machines_that_are_killed_while_they_upload_are_replaced_by_empty_ones(
    s3_server: S3Server, tmp_path: Path, warm_server: Server
) -> None:
    """Machines train two steps each and are killed during the upload; the last one completes the run."""
    url, recipe = f"s3://{s3_server.bucket()}", tmp_path / "faults.yaml"
    recipe.write_text(RECIPE)
    prefix = f"{url}/faults/default/checkpoints"
    s3_server.latency = 0.02

    def start(machine: str, *overrides: str, **environment: str) -> Program:
        out = str(tmp_path / machine)
        cache = {"OPABINIA_REMOTE_CACHE": f"{out}/remote", **s3_server.environment}
        arguments = ("train", str(recipe), "--out", out, "checkpoint={every: 1it, keep: 2}", *overrides)
        return warm_server.start(*arguments, "--resume", "auto", environment={**cache, **environment})

    def has_begun(since: int) -> bool:
        lines = (line.partition("?")[0] for line in requests[since:] if line.startswith("PUT"))
        return any(line.endswith("/state.json.part") for line in lines)

    def last_step() -> int:
        """Return the step that the next machine resumes from; a checkpoint is complete before ``last`` names it."""
        fs, root = storage.filesystem(prefix)
        with suppress(FileNotFoundError):
            return step_of(Path(fs.cat_file(f"{root}/last").decode().split()[0]))
        return 0

    requests = s3_server.requests
    start("undisturbed").expect(0, 300)
    newest, resumed = 0, []
    for number in range(KILLS):
        num_requests = len(requests)
        program = start(f"machine-{number}", f"checkpoint.upload={url}", **{PAUSE: f"before_step {newest + 2}"})
        # Machines are killed alternately during the upload of their first checkpoint, or after it.
        moments = (lambda: has_begun(num_requests)), (lambda: last_step() > newest)  # noqa: B023
        program.until(moments[number % 2], 300)
        program.kill()
        kill_uploading(f"machine-{number}/faults")  # with the machine
        resumed.append(program.trace[0])
        newest = last_step()
    start("last", f"checkpoint.upload={url}").expect(0, 300)
    assert_same(Outcome.of(tmp_path / "last/faults/default"), Outcome.of(tmp_path / "undisturbed/faults/default"))
    assert len(set(resumed)) >= KILLS // 2
