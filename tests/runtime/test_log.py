import logging
from pathlib import Path

import pytest

from opabinia.runtime import log as module
from opabinia.runtime.files import DiskError
from opabinia.runtime.log import log, log_to_file, logging_to, warn_once
from opabinia.runtime.quiet import warnings_once


def test_the_file_has_all_messages_and_the_terminal_short_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_to(tmp_path):
        log.info("hello %d", 5)
        log.warning("careful")
        log_to_file("model", "line 1\nline 2")
        log.debug("not logged")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hello 5\ncareful\n")
    lines = (tmp_path / "train.log").read_text().splitlines()
    assert [line[15:] for line in lines[:3]] == ["I hello 5", "W careful", "I model"]
    assert lines[3:] == ["line 1", "line 2"]
    with logging_to(tmp_path):
        log.info("resumed")
    assert len((tmp_path / "train.log").read_text().splitlines()) == 6
    with pytest.raises(DiskError, match=r"cannot write .*/absent/train.log"), logging_to(tmp_path / "absent"):
        pass


def test_a_command_shows_a_warning_of_data_once_and_files_have_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # two commands
        with warnings_once():
            for folder in (None, tmp_path, tmp_path):
                with logging_to(folder):
                    warn_once("%s: 1 box outside", "a.json")
                    warn_once("b.json: 1 box outside")
                    log.warning("step")
        warnings = ["a.json: 1 box outside", "b.json: 1 box outside"]
        assert capsys.readouterr().err.splitlines() == [*warnings, "step", "step", "step"]
    assert (tmp_path / "train.log").read_text().count("W a.json") == 4
    with logging_to(None):
        warn_once("outside of a command")
        warn_once("outside of a command")
    assert capsys.readouterr().err.count("outside of a command") == 2


def test_outside_the_block_nothing_is_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handlers, raising = list(log.handlers), logging.raiseExceptions
    with pytest.raises(ZeroDivisionError), logging_to(tmp_path):
        raise ZeroDivisionError
    assert log.handlers == handlers
    assert logging.raiseExceptions is raising
    log.info("later")
    assert (tmp_path / "train.log").read_text() == ""
    assert capsys.readouterr().err == ""


def test_other_processes_write_a_file_of_their_own_and_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "is_rank_zero", lambda: False)
    monkeypatch.setattr(module, "rank", lambda: 3)
    with logging_to(tmp_path):
        log.info("another rank")
    assert capsys.readouterr().err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["train.rank3.log"]


def test_the_log_ignores_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error of a more important file is reported; a traceback for each line of the log would hide it."""
    (tmp_path / "train.log").symlink_to("/dev/full")
    with logging_to(tmp_path):
        log.info("hello")
        log.info("again")
    assert capsys.readouterr().err == "hello\nagain\n"
