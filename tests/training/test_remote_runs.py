"""Runs in remote storage: where they are, what is refused, and what a machine without them fetches."""

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
from opabinia.engine.checkpointing.manager import read_pointer, step_of
from opabinia.engine.checkpointing.upload import Upload
from opabinia.runtime import storage
from opabinia.training import remote_runs
from opabinia.training.run_folder import downloaded_run, resolve
from tests.engine.toys import run_state
from tests.faults.programs import PAUSE, Program, Server
from tests.faults.runs import RECIPE, Outcome, assert_same
from tests.faults.s3 import S3Server
from tests.training.test_launch import contents, problem, train

KILLS = int(os.environ.get("OPABINIA_TEST_KILLS", "20"))
"""Of machines; each takes the time of a start."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE", str(tmp_path / "remote"))


def uploaded_to(url: str | None) -> Resolved:
    resolved = resolve("classification/digits")
    return replace(resolved, config={**resolved.config, "checkpoint": {"upload": url, "keep": 2}})


def save(folder: Path, *steps: int) -> Path:
    for step in steps:
        path = folder / "checkpoints" / f"step-{step:08d}"
        write_checkpoint(path, Snapshot(step, {"model": {}, "optimizer": {}}, run_state(step)))
        (folder / "checkpoints" / "last").write_text(path.name + "\n")
    (folder / "config.yaml").write_text("seed: 1\n")
    (folder / "metrics.jsonl").write_text("{}\n" * max(steps, default=0))
    return folder


def test_the_url_of_a_run_follows_its_folder(tmp_path: Path) -> None:
    out, bucket = tmp_path / "runs", f"file://{tmp_path}/bucket/"
    folder = out / "classification" / "digits" / "a"
    url = remote_runs.run_url(uploaded_to(bucket), folder, out)
    assert url == f"{bucket}classification/digits/a"
    assert remote_runs.run_url(uploaded_to(bucket), folder, tmp_path / "other") == f"{bucket}a"
    folder.mkdir(parents=True)
    (folder / ".upload").write_text(url)
    assert remote_runs.run_url(uploaded_to(bucket), folder, tmp_path / "other") == url
    assert (
        remote_runs.run_url(uploaded_to(f"file://{tmp_path}/b"), folder, out)
        == f"file://{tmp_path}/b/{'/'.join(folder.parts[-3:])}"
    )


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


def test_a_machine_fetches_what_is_newer_and_keeps_what_is_not(tmp_path: Path) -> None:
    url, resolved = f"file://{tmp_path}/bucket/run", uploaded_to("file:///x")
    remote = save(tmp_path / "a", 5, 10, 15)
    (remote / "checkpoints" / "best").write_text("step-00000005\n")
    fetch = remote_runs.fetch_newer
    assert not fetch(url, tmp_path / "b", resolved) and not (tmp_path / "b").exists()
    Upload(remote, url, 2).send_all()
    assert fetch(url, tmp_path / "b", resolved) and not fetch(url, tmp_path / "b", resolved)
    newest_and_best = contents(remote)
    assert contents(tmp_path / "b") == {key: newest_and_best[key] for key in newest_and_best if "00000010" not in key}
    ahead = contents(save(tmp_path / "b", 20))
    assert not fetch(url, tmp_path / "b", resolved) and contents(tmp_path / "b") == ahead
    # A checkpoint whose state.json is not there yet is none.
    (tmp_path / "bucket" / "run" / "checkpoints" / "step-00000015" / "state.json").unlink()
    assert fetch(url, tmp_path / "c", resolved) and not (tmp_path / "c" / "checkpoints" / "last").exists()


def test_a_machine_that_is_killed_between_two_checkpoints_fetches_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, resolved, remote = f"file://{tmp_path}/bucket/run", uploaded_to("file:///x"), save(tmp_path / "a", 5, 10)
    (remote / "checkpoints" / "best").write_text("step-00000005\n")
    Upload(remote, url, 2).send_all()
    fetch, fetched = remote_runs._fetch_checkpoint, list[Path]()

    def fetch_one(url: str, objects: Any, path: Path) -> None:
        if fetched:
            raise KeyboardInterrupt
        fetched.append(path)
        fetch(url, objects, path)

    with monkeypatch.context() as patch:
        patch.setattr(remote_runs, "_fetch_checkpoint", fetch_one)
        with pytest.raises(KeyboardInterrupt):
            remote_runs.fetch_newer(url, tmp_path / "b", resolved)
    assert remote_runs.fetch_newer(url, tmp_path / "b", resolved)
    assert contents(tmp_path / "b") == contents(remote)


def test_a_machine_waits_for_the_checkpoint_that_another_uploads(tmp_path: Path) -> None:
    url, path = f"file://{tmp_path}/bucket/run", tmp_path / "b" / "checkpoints" / "step-00000005"
    Upload(save(tmp_path / "a", 5), url, 2).send_all()
    remote_runs.await_checkpoint(url, path)
    assert contents(path) == contents(tmp_path / "a" / "checkpoints" / path.name)


def test_a_folder_without_a_run_and_a_run_with_plugins_are_refused(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket/run"
    assert problem(lambda: downloaded_run(url)).endswith(f"{url} holds no run (no config.yaml in it)")
    folder = save(tmp_path / "a", 5)
    (folder / "config.yaml").write_text("plugins: [antigravity]\n")
    Upload(folder, url, 2).send_all()
    assert "imports modules of this machine" in problem(lambda: downloaded_run(url))


@pytest.mark.slow
def test_a_run_is_resumed_and_evaluated_where_there_is_nothing_but_the_storage(tmp_path: Path) -> None:
    def on_machine(name: str, *overrides: str, **options: Any) -> tuple[Path, dict[str, float]]:
        upload = f"checkpoint={{every: 2it, keep: 1, upload: 'file://{tmp_path}/bucket'}}"
        return train(tmp_path / name, upload, "optimizer.lr=0.002", *overrides, **options)

    whole = train(
        tmp_path / "undisturbed", "checkpoint={every: 2it, keep: 1}", "optimizer.lr=0.002", "train.length=6it"
    )[0]
    on_machine("a", "train.length=4it")
    shutil.rmtree(tmp_path / "a")
    folder, scores = on_machine("b", "train.length=6it", resume="last")
    for name in ("model", "optimizer"):
        file = Path("checkpoints", "step-00000006", f"{name}.safetensors")
        assert (folder / file).read_bytes() == (whole / file).read_bytes()
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
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()  # a new process has none
    assert "s3://another/run: access is refused" in refused("s3://another/run")


@pytest.mark.slow
def test_twenty_kills_during_uploads_leave_complete_checkpoints(s3_server: S3Server, tmp_path: Path) -> None:
    """Each time the process that uploads is killed at one of its requests, and an empty machine fetches the run."""
    url, resolved = f"s3://{s3_server.bucket()}/run", uploaded_to("s3://bucket")
    s3_server.latency = 0.01
    saved, fetched_steps = dict[str, dict[str, bytes]](), []
    for number in range(20):
        step = 5 * (number + 1)
        name, folder = f"step-{step:08d}", save(tmp_path / "run", step)
        saved[name] = contents(folder / "checkpoints" / name)
        shutil.rmtree(folder / "checkpoints" / f"step-{step - 10:08d}", ignore_errors=True)
        before = len(s3_server.requests)
        process = os.fork()
        if process == 0:
            with suppress(BaseException):
                Upload(folder, url, 2).send_all()
            os._exit(0)
        end = time.monotonic() + 60
        while len(s3_server.requests) < before + 4 + 5 * (number % 5) and time.monotonic() < end:
            if os.waitpid(process, os.WNOHANG)[0]:
                break  # it has sent everything
            time.sleep(0.001)
        else:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        machine = tmp_path / f"machine-{number}"
        remote_runs.fetch_newer(url, machine, resolved)
        if last := read_pointer(machine / "checkpoints", "last"):
            assert read_checkpoint(last).step == step_of(last) and contents(last) == saved[last.name]
            assert (machine / "metrics.jsonl").stat().st_size >= len("{}\n") * step_of(last)
            fetched_steps.append(step_of(last))
    assert fetched_steps == sorted(fetched_steps) and fetched_steps[-1] >= 90 and len(set(fetched_steps)) >= 4


@pytest.mark.slow
def test_an_outage_delays_the_upload_and_nothing_else(s3_server: S3Server, tmp_path: Path, warm_server: Server) -> None:
    url, recipe = f"s3://{s3_server.bucket()}", tmp_path / "faults.yaml"
    recipe.write_text(RECIPE)
    environment = {**s3_server.environment, "OPABINIA_REMOTE_CACHE": str(tmp_path / "remote")}
    arguments = ("train", str(recipe), "--out", str(tmp_path), f"checkpoint.upload={url}")
    program = warm_server.start(*arguments, environment={**environment, PAUSE: "after_step 4"})
    program.until(program.path.with_suffix(".paused").exists, 300)
    s3_server.stop()
    program.go_on()
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
            words = file.read_bytes().decode().split("\0")
            if "opabinia.engine.checkpointing.upload" in words and any(folder in word for word in words):
                os.kill(int(file.parent.name), signal.SIGKILL)
                while file.read_bytes():
                    time.sleep(0.01)


@pytest.mark.slow
def test_machines_that_are_killed_while_they_upload_are_replaced_by_empty_ones(
    s3_server: S3Server, tmp_path: Path, warm_server: Server
) -> None:
    """Twenty machines in turn train two steps each and are killed while they upload; the last one finishes the run."""
    url, recipe = f"s3://{s3_server.bucket()}", tmp_path / "faults.yaml"
    recipe.write_text(RECIPE)
    prefix = f"{url}/faults/default/checkpoints"
    s3_server.latency = 0.02

    def start(machine: str, *overrides: str, **environment: str) -> Program:
        out = str(tmp_path / machine)
        cache = {"OPABINIA_REMOTE_CACHE": f"{out}/remote", **s3_server.environment}
        words = ("train", str(recipe), "--out", out, "checkpoint={every: 1it, keep: 2}", *overrides)
        return warm_server.start(*words, "--resume", "auto", environment={**cache, **environment})

    def has_begun(since: int) -> bool:
        lines = (line.partition("?")[0] for line in requests[since:] if line.startswith("PUT"))
        return any(line.endswith("/state.json.part") for line in lines)

    def newest_complete() -> int:
        names = [name for name in storage.objects(prefix) if name.endswith("/state.json")]
        return max((int(name[len("step-") :].partition("/")[0]) for name in names), default=0)

    requests = s3_server.requests
    start("undisturbed").expect(0, 300)
    newest, resumed = 0, []
    for number in range(KILLS):
        before = len(requests)
        program = start(f"machine-{number}", f"checkpoint.upload={url}", **{PAUSE: f"before_step {newest + 2}"})
        # Every other machine is killed while it sends its first checkpoint, the others when that is complete.
        moments = (lambda: has_begun(before)), (lambda: newest_complete() > newest)  # noqa: B023
        program.until(moments[number % 2], 300)
        program.kill()
        kill_uploading(f"machine-{number}/faults")  # with the machine
        resumed.append(program.trace[0])
        newest = newest_complete()
    start("last", f"checkpoint.upload={url}").expect(0, 300)
    assert_same(Outcome.of(tmp_path / "last/faults/default"), Outcome.of(tmp_path / "undisturbed/faults/default"))
    assert len(set(resumed)) >= KILLS // 2
