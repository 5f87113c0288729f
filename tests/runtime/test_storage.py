from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opabinia.runtime import storage
from opabinia.runtime.local_copies import local_copy
from opabinia.runtime.storage import StorageError

pytestmark = pytest.mark.usefixtures("remote")


def test_errors_of_invalid_urls() -> None:
    for url, text in (
        ("xyz://bucket/a", "there is no protocol xyz; use s3://, gs://, az://"),
        ("memory://nothing", "there is no memory:///nothing"),
        ("s3://", "is no URL"),
    ):
        with pytest.raises(StorageError, match=text):
            local_copy(url)


def test_empty_objects_of_folders_are_no_files(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    infos = {
        "/run/": {"size": 0},
        "/run/a/": {"size": 0},
        "/run/a/1": {"size": 0},
    }  # S3 consoles create such objects for folders
    with monkeypatch.context() as patch:
        patch.setattr(type(remote), "find", lambda self, path, detail: infos)
        assert list(storage.objects("memory://run")) == ["a/1"]


def test_uploaded_folders_are_complete_once_their_last_file_exists(
    remote: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out" / "sub").mkdir(parents=True)
    for name in ("about.json", "features.npy", "sub/ids.json"):
        (tmp_path / "out" / name).write_text(name)
    storage.upload_folder(tmp_path / "out", "memory:/features", last="about.json")
    assert remote.cat_file("/features/sub/ids.json") == b"sub/ids.json"
    monkeypatch.setattr(storage, "upload", lambda file, url: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        storage.upload_folder(tmp_path / "out", "memory:/features", last="about.json")
    assert not remote.exists("/features/about.json")


@pytest.mark.parametrize(
    ("name", "reached", "patience"),
    [("ServiceRequestError", False, 30), ("ServiceRequestError", True, 180), ("ServiceResponseError", False, 180)],
)
def test_a_server_that_has_never_answered_is_given_up_early(
    name: str, reached: bool, patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def request() -> None:
        raise type(name, (Exception,), {"__module__": "azure.core"})("Cannot connect to host")

    monkeypatch.setattr(storage, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(storage, "PATIENCE", 180.0)
    monkeypatch.setattr(storage, "_reached", set())
    if reached:
        storage.retry("az://box/a", lambda: None)
    with pytest.raises(StorageError, match=rf"az://box/b: no success for {patience} seconds: {name}: Cannot connect"):
        storage.retry("az://box/b", request)
    assert patience - 20 < now[0] <= patience


def test_a_copy_is_shown_as_its_url_and_a_run_and_other_files_as_their_path(tmp_path: Path) -> None:
    url = "s3://bucket/data/a.jpg"
    assert storage.shown_path(storage.local_path(url)) == url
    for path in (storage.local_run("s3://bucket/runs/x"), tmp_path / "a.jpg"):
        assert storage.shown_path(path) == str(path)
