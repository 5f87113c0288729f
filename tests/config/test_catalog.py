"""The cache is tested in separate processes, with a small module instead of ``opabinia.training.builtin_parts``."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opabinia.config import Catalog
from tests.config.toys import CATALOG

TOY_PARTS = """
import math
from opabinia.config import register

@register.command
def train(*, seed: int = 3) -> None:
    "Trains."
"""

PLUGIN = """
from opabinia.config import register

@register.loss
def my_loss(*, scale: float = 1.0) -> None:
    "A custom loss."
"""

PROGRAM = """
import json, sys
module = __import__("opabinia.config.catalog", fromlist=["ROOT"])
module = sys.modules["opabinia.config.catalog"]
module.ROOT = "toy_parts"
catalog = module.catalog(sys.argv[1:])
live = any(entry.target for entries in catalog.entries.values() for entry in entries.values())
names = {family: catalog.names(family) for family in catalog.entries if catalog.names(family)}
imported = "toy_parts" in sys.modules
print(json.dumps({"live": live, "names": names, "failed": dict(catalog.failed), "imported": imported}))
"""

LoadCatalog = Callable[..., dict[str, Any]]


@pytest.fixture
def load_catalog(tmp_path: Path) -> LoadCatalog:
    """Load the catalog in a new process."""
    (tmp_path / "toy_parts.py").write_text(TOY_PARTS)

    def load_catalog(*plugins: str, cache: Path = tmp_path / "cache") -> dict[str, Any]:
        environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "XDG_CACHE_HOME": str(cache)}
        command = [sys.executable, "-c", PROGRAM, *plugins]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        report: dict[str, Any] = json.loads(run.stdout)
        return report

    return load_catalog


def caches(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "opabinia").iterdir())


def test_the_second_catalog_imports_nothing(load_catalog: LoadCatalog, tmp_path: Path) -> None:
    uncached, cached = load_catalog(), load_catalog()
    assert uncached == {"live": True, "names": {"command": ["train"]}, "failed": {}, "imported": True}
    assert cached == {**uncached, "live": False, "imported": False}
    (cache,) = caches(tmp_path)
    assert cache.suffix == ".json"  # no temporary file is left


def test_plugins_have_their_own_cache_which_depends_on_their_files(load_catalog: LoadCatalog, tmp_path: Path) -> None:
    (tmp_path / "my_loss").mkdir()
    (tmp_path / "my_loss" / "__init__.py").write_text("")
    (tmp_path / "my_loss" / "parts.py").write_text(PLUGIN)
    load_catalog()
    assert load_catalog("my_loss.parts")["names"] == {"command": ["train"], "loss": ["my_loss"]}
    assert not load_catalog("my_loss.parts")["live"]
    assert load_catalog()["names"] == {"command": ["train"]}
    # Another length: Python takes compiled files for valid if time (in seconds) and size are equal.
    (tmp_path / "my_loss" / "parts.py").write_text(PLUGIN.replace("def my_loss", "def renamed_loss"))
    report = load_catalog("my_loss.parts")
    assert report["live"] and report["names"]["loss"] == ["renamed_loss"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'my_loss'"),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere' (my_loss.py:1)"),
        ("def x(:", "SyntaxError: "),
        ("raise SystemExit(3)", "SystemExit: 3 (my_loss.py:1)"),
        (
            "from opabinia.config import register\n\n@register.loss\ndef x(y): pass",
            "TypeError: register.loss: my_loss.x: has no docstring; its first line is shown by `opabinia config list` "
            "(my_loss.py:3)",
        ),
    ],
)
def test_a_failing_plugin_is_reported_and_not_cached(
    load_catalog: LoadCatalog, tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        (tmp_path / "my_loss.py").write_text(text)
    for _ in range(2):
        report = load_catalog("my_loss")
        assert report["failed"]["my_loss"].startswith(reason)
        assert report["live"]
    assert not (tmp_path / "cache").exists()


def test_a_damaged_cache_is_rewritten(load_catalog: LoadCatalog, tmp_path: Path) -> None:
    load_catalog()
    (cache,) = caches(tmp_path)
    content = cache.read_text()
    for damage in ("", "{", "[]", "null", '{"entries": {"loss": {"x": {}}}}', "\x00" * 100):
        cache.write_text(damage)
        assert load_catalog()["live"], damage
        assert cache.read_text() == content


def test_a_cache_that_cannot_be_written_is_skipped(load_catalog: LoadCatalog, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for _ in range(2):
        assert load_catalog(cache=blocked / "cache")["live"]


def test_old_caches_are_removed(load_catalog: LoadCatalog, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "opabinia"
    folder.mkdir(parents=True)
    for number in range(20):
        (folder / f"catalog-{number:032}.json").write_text("{}")
        os.utime(folder / f"catalog-{number:032}.json", (number, number))
    load_catalog()
    names = [path.name for path in caches(tmp_path)]
    assert len(names) == 8 and f"catalog-{19:032}.json" in names and f"catalog-{0:032}.json" not in names
    assert not load_catalog()["live"]


LAZY_PARTS = """
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
module.ROOT = "lazy_parts"
catalog = module.catalog(sys.argv[2:])
config = check(compose(sys.argv[1]), catalog).config
imported = sorted({"lazy_parts", "many_losses", "many_hooks", "my_loss"} & set(sys.modules))
built = build(config, catalog).keywords["loss"]
after = sorted({"lazy_parts", "many_losses", "many_hooks", "my_loss"} & set(sys.modules))
print(json.dumps([imported, after, built]))
"""


def test_building_from_the_cache_imports_only_the_modules_of_the_parts(tmp_path: Path) -> None:
    """The part is registered by a helper that another module calls: that module is imported."""
    plugin = PLUGIN.replace('"A custom loss."', '"A custom loss."\n    return scale')
    sources = {
        "lazy_parts": LAZY_PARTS,
        "many_losses": LOSSES,
        "many_hooks": HOOKS,
        "helper": HELPER,
        "my_loss": plugin,
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(loss: str, *plugins: str) -> list[Any]:
        (tmp_path / "r.yaml").write_text(f"loss: {{name: {loss}, scale: 3}}\n")
        command = [sys.executable, "-c", BUILD, str(tmp_path / "r.yaml"), *plugins]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        report: list[Any] = json.loads(result.stdout)
        return report

    all_modules = ["lazy_parts", "many_hooks", "many_losses"]
    assert run("two") == [all_modules, all_modules, 3]
    # The command itself is registered by lazy_parts, which imports everything; so build it from another module.
    (tmp_path / "commands.py").write_text(LAZY_PARTS.replace("import many_losses\nimport many_hooks\n", ""))
    (tmp_path / "lazy_parts.py").write_text("import commands, many_losses, many_hooks")
    assert run("two", "my_loss") == [[*all_modules, "my_loss"], [*all_modules, "my_loss"], 3]
    assert run("two", "my_loss") == [[], ["many_losses"], 3]
    assert run("my_loss", "my_loss") == [[], ["my_loss"], 3]


def test_parts_of_this_process_are_in_a_cached_catalog(load_catalog: LoadCatalog, tmp_path: Path) -> None:
    load_catalog()
    (tmp_path / "my_loss.py").write_text(PLUGIN)
    program = "import my_loss\n" + PROGRAM
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    report = json.loads(result.stdout)
    assert report["names"] == {"command": ["train"], "loss": ["my_loss"]} and not report["imported"]


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
def test_a_check_with_a_cached_catalog_imports_no_large_library(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def run() -> str:
        result = subprocess.run([sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert "torch" in run()  # cold
    assert re.fullmatch(r"classification/digits: no problems in the config; .*\n\[\]\n", run())
