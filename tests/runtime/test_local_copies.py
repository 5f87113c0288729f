import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from opabinia.data.decoding import images, video
from opabinia.runtime import local_copies, storage
from opabinia.runtime.local_copies import RangeFile, local_copy, read_file, refresh
from opabinia.runtime.storage import StorageError

pytestmark = pytest.mark.usefixtures("remote")


def fill(memory: Any, **objects: bytes) -> None:
    for name, content in objects.items():
        memory.pipe_file(f"/{name}", content)


def test_a_folder_is_listed_once_and_files_are_fetched_when_read(remote: Any) -> None:
    fill(remote, **{"data/a/1.jpg": b"one", "data/a/b/2.jpg": b"two", "data/list.txt": b"a", "data/empty.png": b""})
    folder = Path(local_copy("memory://data"))
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        *("a/1.jpg", "a/b/2.jpg", "empty.png", "list.txt"),
    ]
    assert (folder / "list.txt").read_text() == "a"
    image = folder / "a" / "1.jpg"
    assert local_copies.is_placeholder(image) and image.stat().st_size == 3
    assert storage.url_of(image) == "memory:///data/a/1.jpg"
    assert read_file(image) == b"one" and read_file(folder / "empty.png") == b""
    assert not local_copies.is_placeholder(image)
    remote.rm("/data", recursive=True)  # no requests from now on
    assert local_copy("memory:/data/a") == str(folder / "a")  # as pathlib writes it
    assert local_copy("memory://data/{a,c}/*.jpg") == f"{folder}/{{a,c}}/*.jpg"
    assert read_file(image) == b"one"


def test_all_images_and_videos_are_fetched_when_read() -> None:
    assert {*images.EXTENSIONS, *video.EXTENSIONS} <= set(local_copies._FETCHED_WHEN_READ)
    assert local_copies._PLACEHOLDER == stat.S_IWUSR


def test_names_of_objects(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["é ü.jpg", "new\nline.jpg", "a::b.jpg", "what?x=1#y.jpg", "[z]*{1}.jpg", "50%25.jpg", "n" * 250 + ".jpg"]
    fill(remote, **{f"data/{name}": name.encode() for name in names})
    folder = Path(local_copy("memory://data"))
    assert {name: read_file(folder / name) for name in os.listdir(folder)} == {name: name.encode() for name in names}
    for number, name in enumerate(("a/../../b.jpg", "./b.jpg", "n" * 256)):
        fill(remote, **{f"data{number}/good.jpg": b""})
        remote.store[f"/data{number}/{name}"] = remote.store[f"/data{number}/good.jpg"]
        with pytest.raises(StorageError, match=r"is no name of a file|holds no objects|there is no"):
            local_copy(f"memory://data{number}")
    for url in ("memory://a/../b", "s3://user:secret@bucket/a"):
        with pytest.raises(StorageError) as error:
            local_copy(url)
        assert "secret" not in str(error.value)
    fill(remote, **{"other/1.jpg": b"one"})
    monkeypatch.setattr(local_copies, "_is_placeholder", lambda status: False)
    with pytest.raises(StorageError, match="keeps no permissions"):
        local_copy("memory://other")


def test_interrupted_listing_is_completed(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["data/1.txt", "data/2.txt", "data/a/1.jpg", "data/b"]
    fill(remote, **dict.fromkeys(names, b"one"))

    def interrupted(listing: Callable[[str], object]) -> Path:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(local_copies, "fetch", Mock(side_effect=KeyboardInterrupt))
            listing("memory://data")
        return Path(local_copy("memory://data"))

    folder = interrupted(local_copy)
    assert [(folder / name).read_text() for name in ("1.txt", "2.txt", "b")] == ["one"] * 3
    for name in ("/data/a/1.jpg", "/data/b"):
        remote.rm(name)
    fill(remote, **{"data/1.txt": b"three", "data/a": b"a", "data/b/1.jpg": b"one"})  # objects replace folders
    folder = interrupted(refresh)
    assert (folder / "1.txt").read_text() == "three" and (folder / "a").read_bytes() == b"a"
    assert read_file(folder / "b" / "1.jpg") == b"one"


def test_changed_and_deleted_objects(remote: Any) -> None:
    fill(remote, **{"data/1.jpg": b"one", "data/2.jpg": b"two", "data/3.tar": b"tar", "data/4.jpg": b"four"})
    folder = Path(local_copy("memory://data"))
    assert read_file(folder / "4.jpg") == b"four" and RangeFile(folder / "3.tar").pread(3, 0) == b"tar"
    fill(remote, **{"data/1.jpg": b"ONE!", "data/3.tar": b"TAR!", "data/5.jpg": b"five"})
    remote.rm("/data/2.jpg")
    with pytest.raises(
        StorageError, match=r"1.jpg has changed since it was listed; opabinia data refresh memory:///data"
    ):
        read_file(folder / "1.jpg")
    with pytest.raises(
        StorageError, match=r"there is no memory:///data/2.jpg; opabinia data refresh memory:///data lists"
    ):
        read_file(folder / "2.jpg")
    with pytest.raises(StorageError, match="it was not there when the folder was listed"):
        local_copy("memory://data/5.jpg")
    with pytest.raises(StorageError, match=r"memory:///data/1.jpg is an object, not a folder"):
        local_copy("memory://data/1.jpg/a")
    assert refresh("memory://data") == 4
    assert sorted(os.listdir(folder)) == ["1.jpg", "3.tar", "4.jpg", "5.jpg"]
    assert not local_copies.is_placeholder(folder / "4.jpg")  # the copy is kept
    assert read_file(folder / "1.jpg") == b"ONE!" and RangeFile(folder / "3.tar").pread(3, 0) == b"TAR"


def test_ranges(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copies, "CHUNK", 10)
    content = bytes(range(35))
    fill(remote, **{"data/a.tar": content})
    path = Path(local_copy("memory://data/a.tar"))
    for offset, count in ((0, 35), (3, 4), (8, 5), (9, 26), (30, 100), (35, 5), (40, 1), (5, 0)):
        assert RangeFile(path).pread(count, offset) == content[offset : offset + count]
    with local_copies.open_file(path) as file:
        file.seek(-5, os.SEEK_END)
        assert file.read() == content[-5:]
    remote.rm("/data", recursive=True)
    assert RangeFile(path).pread(10, 12) == content[12:22]


def test_objects_are_compared_with_the_listing_once_a_minute(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copies, "CHUNK", 10)
    fill(remote, **{"data/a.tar": bytes(35)})
    path = Path(local_copy("memory://data/a.tar"))
    compare, compared = local_copies.check_unchanged, list[str]()

    def count(url: str, listed: tuple[int, int]) -> None:
        compared.append(url)
        compare(url, listed)

    monkeypatch.setattr(local_copies, "check_unchanged", count)
    assert RangeFile(path).pread(25, 0) == bytes(25) and len(compared) == 1
    for seconds, content in ((0.0, bytes(36)), (60.0, b"short")):
        monkeypatch.setattr(local_copies, "COMPARE_EVERY", seconds)
        fill(remote, **{"data/a.tar": content})
        with pytest.raises(StorageError, match=r"a.tar has changed since it was listed"):
            RangeFile(path).pread(1, 30)


def test_requests_are_repeated(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PATIENCE", 20.0)
    fill(remote, **{"data/1.jpg": b"one"})
    path = Path(local_copy("memory://data")) / "1.jpg"
    responses: list[Any] = [OSError("SlowDown"), b"on", TimeoutError("late"), b"one"]

    def respond(source: str, target: str) -> None:
        content = responses.pop(0)
        if isinstance(content, Exception):
            raise content
        Path(target).write_bytes(content)

    monkeypatch.setattr(type(remote), "get_file", lambda self, source, target: respond(source, target))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert read_file(path) == b"one" and not responses
    for error, text in (
        (PermissionError("Forbidden"), "access is refused"),
        (OSError(28, "No space left on device"), "cannot be kept in"),
        (FileNotFoundError("gone"), "there is no memory:///data/2.jpg; opabinia data refresh memory:///data lists"),
    ):
        responses = [error]
        fill(remote, **{"data/2.jpg": b"two"})
        refresh("memory://data")
        with pytest.raises(StorageError, match=text):
            read_file(path.with_name("2.jpg"))
        assert local_copies.is_placeholder(path.with_name("2.jpg")) and not os.listdir(storage.cache_root() / ".tmp")


def test_local_files_are_read_directly(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(b"a")
    for mode in (0o644, 0o044, 0o000):  # root may read all of them
        file.chmod(mode)
        if os.access(file, os.R_OK):
            assert read_file(file) == b"a"
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "b.jpg")
    assert not storage.is_url(file) and not storage.is_url("a.jpg") and storage.is_url(Path("s3://bucket/a"))
    assert storage.is_stored("s3://bucket/a") and not storage.is_stored("http://host/stream")


def test_the_size_of_the_cache_stays_below_its_limit(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(remote, **{f"data/{number}.jpg": bytes(1000) for number in range(40)}, **{"data/a.tar": bytes(9000)})
    folder = Path(local_copy("memory://data"))
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE_SIZE", "10KB")
    sizes = []

    def read(numbers: range) -> None:
        for number in numbers:
            read_file(folder / f"{number}.jpg")
            sizes.append(sum(size for _, size, _ in local_copies._fetched_files(storage.cache_root())))

    threads = [threading.Thread(target=read, args=(range(start, 40, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sizes) == 40 and 8000 <= max(sizes) <= 10_000
    RangeFile(folder / "a.tar").pread(10, 0)
    assert sum(size for _, size, _ in local_copies._fetched_files(storage.cache_root())) == 9000
    read_file(folder / "0.jpg")
    assert RangeFile(folder / "a.tar").pread(5, 5) == bytes(5)  # fetched again
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE_SIZE", "much")
    with pytest.raises(StorageError, match="expected a size such as 200GB"):
        read_file(folder / "1.jpg")
    # Run folders are no part of it.
    result = storage.local_run("memory://data/runs/a") / "predictions" / "1.jpg"
    result.parent.mkdir(parents=True)
    result.write_bytes(b"result")
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE_SIZE", "1")
    read_file(folder / "1.jpg")
    refresh("memory://data")
    assert result.read_bytes() == b"result"


def test_processes_take_the_lock_for_many_files_at_once(remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(remote, **{f"data/{number}.jpg": bytes(100) for number in range(300)})
    folder = Path(local_copy("memory://data"))
    monkeypatch.setenv("OPABINIA_REMOTE_CACHE_SIZE", "20KB")
    monkeypatch.setattr(local_copies, "_RESERVES", 10)
    reserve, reserved, sizes = local_copies._reserve, list[int](), list[int]()

    def count(size: int, text: str) -> tuple[int, str]:
        reserved.append(size)
        return reserve(size, text)

    monkeypatch.setattr(local_copies, "_reserve", count)
    for number in range(300):
        monkeypatch.setattr(os, "getpid", lambda process=number % 3: -1 - process)
        read_file(folder / f"{number}.jpg")
        if number % 10 == 9:
            sizes.append(sum(size for _, size, _ in local_copies._fetched_files(storage.cache_root())))
    assert 18_000 < max(sizes) <= 20_000 and len(reserved) < 150
    room = int((storage.cache_root() / ".room").read_text().split()[0])
    assert sizes[-1] + room <= 20_000
