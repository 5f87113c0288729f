"""The cache is tried in processes of its own, with a small house in place of ``opabinia.training.builtin_parts``."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import Catalog
from tests.config.toys import CATALOG

HOUSE = """
import math
from opabinia.config import register

@register.command
def train(*, seed: int = 3) -> None:
    "Trains."
"""

PLUGIN = """
from opabinia.config import register

@register.loss
def mine(*, scale: float = 1.0) -> None:
    "My loss."
"""

PROGRAM = """
import json, sys
module = __import__("opabinia.config.catalog", fromlist=["ROOT"])
module = sys.modules["opabinia.config.catalog"]
module.ROOT = "house"
found = module.catalog(sys.argv[1:])
live = any(entry.target for entries in found.entries.values() for entry in entries.values())
names = {family: found.names(family) for family in found.entries if found.names(family)}
print(json.dumps({"live": live, "names": names, "failed": dict(found.failed), "imported": "house" in sys.modules}))
"""

Look = Callable[..., dict[str, Any]]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Asks for the catalog in a new process."""
    (tmp_path / "house.py").write_text(HOUSE)

    def look(*plugins: str, cache: Path = tmp_path / "cache") -> dict[str, Any]:
        environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "XDG_CACHE_HOME": str(cache)}
        command = [sys.executable, "-c", PROGRAM, *plugins]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found: dict[str, Any] = json.loads(run.stdout)
        return found

    return look


def caches(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "opabinia").iterdir())


def test_the_second_look_imports_nothing(look: Look, tmp_path: Path) -> None:
    first, second = look(), look()
    assert first == {"live": True, "names": {"command": ["train"]}, "failed": {}, "imported": True}
    assert second == {**first, "live": False, "imported": False}
    (cache,) = caches(tmp_path)
    assert cache.suffix == ".json"  # nothing is left beside it


def test_plugins_have_a_cache_of_their_own_that_follows_their_files(look: Look, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("")
    (tmp_path / "mine" / "parts.py").write_text(PLUGIN)
    look()
    assert look("mine.parts")["names"] == {"command": ["train"], "loss": ["mine"]}
    assert not look("mine.parts")["live"]
    assert look()["names"] == {"command": ["train"]}
    (tmp_path / "mine" / "parts.py").write_text(PLUGIN.replace("def mine", "def yours"))
    changed = look("mine.parts")
    assert changed["live"] and changed["names"]["loss"] == ["yours"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'mine'"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere' (mine.py:1)"),
        ("def x(:", "SyntaxError: "),
        ("raise SystemExit(3)", "SystemExit: 3 (mine.py:1)"),
        (
            "from opabinia.config import register\n\n@register.loss\ndef x(y): pass",
            "TypeError: register.loss: mine.x: has no docstring; its first line is shown by `opabinia config list` "
            "(mine.py:3)",
        ),
    ],
)
def test_a_plugin_that_fails_is_told_and_nothing_is_kept(
    look: Look, tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    for _ in range(2):
        found = look("mine")
        assert found["failed"]["mine"].startswith(reason)
        assert found["live"]
    assert not (tmp_path / "cache").exists()


def test_a_damaged_cache_is_written_anew(look: Look, tmp_path: Path) -> None:
    look()
    (cache,) = caches(tmp_path)
    whole = cache.read_text()
    for damage in ("", "{", "[]", "null", '{"entries": {"loss": {"x": {}}}}', "\x00" * 100):
        cache.write_text(damage)
        assert look()["live"], damage
        assert cache.read_text() == whole


def test_a_cache_that_cannot_be_written_is_done_without(look: Look, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for _ in range(2):
        assert look(cache=blocked / "cache")["live"]


def test_old_caches_are_removed(look: Look, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "opabinia"
    folder.mkdir(parents=True)
    for number in range(20):
        (folder / f"catalog-{number:032}.json").write_text("{}")
        os.utime(folder / f"catalog-{number:032}.json", (number, number))
    look()
    names = [path.name for path in caches(tmp_path)]
    assert len(names) == 8 and f"catalog-{19:032}.json" in names and f"catalog-{0:032}.json" not in names
    assert not look()["live"]


def test_names_and_entries() -> None:
    assert CATALOG.names("loss") == ["cross_entropy", "focal"]
    assert CATALOG.names("nothing") == []
    entry = CATALOG.get("loss", "focal")
    assert entry is not None and entry.name == "focal"
    assert CATALOG.get("loss", "nothing") is CATALOG.get("nothing", "focal") is None
    assert Catalog({}).fills_itself({"kind": "int"}) is False


CHECK = """
import sys
from opabinia.cli import main
try:
    main(["config", "check", "classification/digits"])
except SystemExit as end:
    assert not end.code, end.code
print(sorted({"torch", "torchvision", "timm", "sklearn", "numpy"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_a_warm_check_imports_nothing_heavy(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def run() -> str:
        done = subprocess.run([sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "torch" in run()  # cold
    assert run() == "classification/digits: no problems\n[]\n"
