"""The cache is tested in separate processes, with a small module instead of ``opabinia.training.builtin_parts``."""

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


def test_the_second_catalog_imports_nothing(look: Look, tmp_path: Path) -> None:
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
def test_a_failing_plugin_is_reported_and_not_cached(look: Look, tmp_path: Path, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    for _ in range(2):
        found = look("mine")
        assert found["failed"]["mine"].startswith(reason)
        assert found["live"]
    assert not (tmp_path / "cache").exists()


def test_a_damaged_cache_is_rewritten(look: Look, tmp_path: Path) -> None:
    look()
    (cache,) = caches(tmp_path)
    whole = cache.read_text()
    for damage in ("", "{", "[]", "null", '{"entries": {"loss": {"x": {}}}}', "\x00" * 100):
        cache.write_text(damage)
        assert look()["live"], damage
        assert cache.read_text() == whole


def test_a_cache_that_cannot_be_written_is_skipped(look: Look, tmp_path: Path) -> None:
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


LAZY_HOUSE = """
import many_losses
import many_hooks
import math
from collections.abc import Callable
from typing import Annotated
from opabinia.config import Part, register

@register.command
def train(*, loss: Annotated[object, Part("loss")]) -> object:
    "Trains."
    return loss
"""

LOSSES = """
from helper import register_all
register_all()
"""

HELPER = """
from opabinia.config import register

def register_all():
    for name in ("one", "two"):
        def loss(*, scale: float = 1.0):
            "A loss."
            return scale
        loss.__name__ = loss.__qualname__ = name
        register.loss(loss)
"""

HOOKS = """
from opabinia.config import register

@register.hook
def slow(*, x: int = 1) -> int:
    "A hook."
    return x
"""

BUILD = """
import json, sys
from opabinia.config import build, check, compose
module = sys.modules["opabinia.config.catalog"]
module.ROOT = "lazy_house"
catalog = module.catalog(sys.argv[2:])
config = check(compose(sys.argv[1]), catalog).config
imported = sorted({"lazy_house", "many_losses", "many_hooks", "mine"} & set(sys.modules))
built = build(config, catalog).keywords["loss"]
after = sorted({"lazy_house", "many_losses", "many_hooks", "mine"} & set(sys.modules))
print(json.dumps([imported, after, built]))
"""


def test_building_from_the_cache_imports_only_the_modules_of_the_parts(tmp_path: Path) -> None:
    """The part is registered by a helper that another module calls: that module is imported."""
    mine = PLUGIN.replace('"My loss."', '"My loss."\n    return scale')
    sources = {"lazy_house": LAZY_HOUSE, "many_losses": LOSSES, "many_hooks": HOOKS, "helper": HELPER, "mine": mine}
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(loss: str, *plugins: str) -> list[Any]:
        (tmp_path / "r.yaml").write_text(f"loss: {{name: {loss}, scale: 3}}\n")
        command = [sys.executable, "-c", BUILD, str(tmp_path / "r.yaml"), *plugins]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        result: list[Any] = json.loads(done.stdout)
        return result

    everything = ["lazy_house", "many_hooks", "many_losses"]
    assert run("two") == [everything, everything, 3]
    # The command itself is registered by lazy_house, which imports everything; so build it from another module.
    (tmp_path / "commands.py").write_text(LAZY_HOUSE.replace("import many_losses\nimport many_hooks\n", ""))
    (tmp_path / "lazy_house.py").write_text("import commands, many_losses, many_hooks")
    assert run("two", "mine") == [[*everything, "mine"], [*everything, "mine"], 3]
    assert run("two", "mine") == [[], ["many_losses"], 3]
    assert run("mine", "mine") == [[], ["mine"], 3]


def test_parts_of_this_process_are_in_a_cached_catalog(look: Look, tmp_path: Path) -> None:
    look()
    (tmp_path / "mine.py").write_text(PLUGIN)
    program = "import mine\n" + PROGRAM
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["names"] == {"command": ["train"], "loss": ["mine"]} and not found["imported"]


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
