import errno
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from opabinia.runtime import files
from opabinia.runtime.files import (
    DiskError,
    FolderInUse,
    disk_errors,
    exclusive_lock,
    remove_leftovers,
    temporary_folder,
    write_atomic,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def failing(number: int) -> Any:
    def fail(*arguments: Any, **keywords: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "permission denied"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_disk_errors_name_the_file_the_reason_and_the_consequence(number: int, reason: str) -> None:
    with pytest.raises(DiskError) as caught, disk_errors(Path("outer")), disk_errors(Path("a/b"), "the rest is whole"):
        failing(number)()
    assert str(caught.value) == f"cannot write a/b: {reason}; the rest is whole"
    with pytest.raises(DiskError, match=rf"^cannot write a/b: {reason}$"), disk_errors(Path("a/b")):
        failing(number)()
    with pytest.raises(ValueError, match="other"), disk_errors(Path("x")):
        raise ValueError("other")


# --- one file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [("größer\n", "größer\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b""), ("\udcff", rb"\udcff")],
)
def test_write_atomic(tmp_path: Path, content: str | bytes, expected: bytes) -> None:
    path = tmp_path / "new" / "folder" / "file"
    for text, written in ((content, expected), (b"new", b"new")):
        write_atomic(path, text)
        assert path.read_bytes() == written and names(path.parent) == ["file"]
    with pytest.raises(DiskError, match=r"cannot write .*/file/inside"):
        write_atomic(path / "inside", "x")


@pytest.mark.parametrize("place", ["fsync", "rename"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()], ids=["full", "interrupt"])
def test_a_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException
) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(os, {"fsync": "fsync", "rename": "replace"}[place], fail)
    expected = DiskError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_atomic(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_content_is_on_the_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could leave an empty file under the new name."""
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        calls.append("flush " + os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).split(".")[-1])
        real_fsync(descriptor)

    def replace(source: Any, target: Any, **keywords: Any) -> None:
        calls.append("rename")
        real_replace(source, target, **keywords)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomic(tmp_path / "file", "x")
    assert calls == ["flush tmp", "rename", f"flush {tmp_path.name}"]


# --- a folder ---------------------------------------------------------------------------------------------------------


def fill(folder: Path, text: str) -> None:
    (folder / "a").write_text(text)
    (folder / "b").write_text(text)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_folder_appears_when_it_is_complete(tmp_path: Path, error: type[BaseException] | None) -> None:
    path = tmp_path / "deep" / "folder"
    with temporary_folder(path) as aside:
        fill(aside, "old")
        assert not path.exists()
    with pytest.raises(error) if error else nullcontext(), temporary_folder(path) as aside:
        fill(aside, "new")
        assert (path / "a").read_text() == "old"
        if error:
            raise error
    assert [(path / name).read_text() for name in "ab"] == ["old" if error else "new"] * 2
    assert names(path.parent) == ["folder"]


def test_remove_leftovers(tmp_path: Path) -> None:
    (tmp_path / ".step-1.77.tmp").mkdir()
    (tmp_path / ".step-1.77.tmp" / "half").write_text("x")
    (tmp_path / ".last.8.tmp").write_text("half")
    (tmp_path / "step-2").mkdir()
    (tmp_path / "step-2" / "new").write_text("new")
    for name in (".step-2.77.old", ".step-3.77.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("old")
    for name in (".lock", ".hidden.tmp", "file.7.tmp", ".gitignore"):
        (tmp_path / name).write_text("not ours")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".gitignore", ".hidden.tmp", ".lock", "file.7.tmp", "step-2", "step-3"]
    assert names(tmp_path / "step-2") == ["new"]
    assert names(tmp_path / "step-3") == ["old"]
    remove_leftovers(tmp_path / "absent")


# --- the only writer --------------------------------------------------------------------------------------------------

HOLD = """
import os, sys, time
from pathlib import Path
from opabinia.runtime.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_rejected_until_the_first_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked children of the first writer (loader workers) do not hold the lock."""
    root = Path(files.__file__).parents[2]
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as writer:
        assert writer.stdout
        child = int(writer.stdout.readline())
        try:
            with (
                pytest.raises(FolderInUse, match=f"{tmp_path}: another process is writing this run"),
                exclusive_lock(tmp_path),
            ):
                pass
            writer.send_signal(signal.SIGKILL)
            writer.wait(10)
            os.kill(child, 0)
            for _ in range(2):  # it is released
                with exclusive_lock(tmp_path):
                    pass
        finally:
            os.kill(child, signal.SIGKILL)
            writer.kill()
    with pytest.raises(DiskError, match="cannot write"), exclusive_lock(tmp_path / "absent"):
        pass
    monkeypatch.setattr(files.fcntl, "lockf", failing(errno.ENOLCK))  # a file system without locks
    with exclusive_lock(tmp_path):
        pass
