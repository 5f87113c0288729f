"""Runs in remote storage: where they are, what is refused, and what a machine without them fetches."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import opabinia
from opabinia.config import ConfigError, Resolved
from opabinia.engine.checkpointing.checkpoint import Snapshot, write_checkpoint
from opabinia.engine.checkpointing.upload import Upload
from opabinia.training import remote_runs
from opabinia.training.run_folder import downloaded_run, resolve
from tests.engine.toys import run_state
from tests.training.test_launch import contents, problem, train


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
