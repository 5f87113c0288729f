"""The layout of docs/design.md: a short root, imports that only go down, no import cycles, light modules.

Cyclic and upward imports are errors at the top of a file, inside a function, and under ``TYPE_CHECKING``.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "opabinia"

LEVELS = [
    ["runtime"],
    ["config"],
    ["contracts"],
    ["models", "evaluation", "optim", "visualization"],
    ["engine", "data", "tasks", "migration"],
    ["training"],
    ["inference"],
    ["cli"],
    ["__init__", "__main__"],  # the public API may import anything
]
"""Subpackages from the bottom up; each may import those below it, and those of its level if no import cycle results."""

LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
INDEPENDENT = {
    *{("engine", "data"), ("engine", "tasks"), ("data", "tasks")},
    *{("engine", "migration"), ("data", "migration"), ("tasks", "migration")},
}
"""Subpackages of a level that must not import each other."""
READS_CONFIG = {"config", "training", "inference", "migration", "visualization", "cli", "__init__", "__main__"}
"""Subpackages that read configs; all others only register their parts."""

HEAVY = {"torch", "torchvision", "timm", "sklearn"}
IMPORTS_TORCH = {
    f"opabinia.runtime.{name}"
    for name in (
        "seeds",
        "device",
        "processes",
        "environment",
        "collectives",
        "large_values",
        "process_group",
        "shards",
        "cuda_autocast",
        "operator_costs",
    )
}
MAX_ROOT_ENTRIES = 18
MAX_LEVELS = 11

Sources = Mapping[str, str]
"""Text by module name; a package's own file is called ``opabinia.config.__init__``."""


class Import(NamedTuple):
    source: str
    target: str  # a module of ours under its name in Sources, or the name of another package's
    name: str | None  # None: the module itself

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}" + (f".{self.name}" if self.name else "")


def origin_of(node: ast.ImportFrom, source: str) -> str:
    return resolve_name("." * node.level + (node.module or ""), source.rpartition(".")[0])


def reexports(source: str, tree: ast.Module) -> set[str]:
    """``opabinia.config.adapt`` is a function that hides the module of that name."""
    nodes = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    elsewhere = (node for node in nodes if f"{origin_of(node, source)}.__init__" != source)
    return {f"{source.removesuffix('.__init__')}.{alias.name}" for node in elsewhere for alias in node.names}


def imports(sources: Sources) -> Iterator[Import]:
    trees = {source: ast.parse(text) for source, text in sources.items()}
    hiding = {name for source, tree in trees.items() for name in reexports(source, tree)}

    def module(name: str) -> str | None:
        return next((key for key in (name, f"{name}.__init__") if key in sources), None)

    for source, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(source, module(alias.name) or alias.name, None)
            elif isinstance(node, ast.ImportFrom):
                origin = origin_of(node, source)
                for alias in node.names:
                    name = f"{origin}.{alias.name}"
                    whole = module(name) if name not in hiding else None
                    yield Import(source, whole or module(origin) or origin, None if whole else alias.name)


def subpackage(module: str) -> str:
    return module.split(".")[1]


def goes_up(import_: Import) -> bool:
    return LEVEL[subpackage(import_.source)] < LEVEL[subpackage(import_.target)]


def joins_independent(import_: Import) -> bool:
    pair = (subpackage(import_.source), subpackage(import_.target))
    return pair in INDEPENDENT or pair[::-1] in INDEPENDENT or (pair == ("models", "models") and joins_losses(import_))


def joins_losses(import_: Import) -> bool:
    """Losses know no networks; of these only detectors and decoders, which match ground truth, know losses."""
    source, target = import_.source.split(".")[2], import_.target.split(".")[2]
    if source == "losses":
        return target != "losses"
    return target == "losses" and source not in ("detectors", "decoders")


def joins_tasks(import_: Import) -> bool:
    """A task imports no other task; ``distillation`` and ``semi_supervised`` wrap any task; ``*_base`` and three helper
    modules are shared."""
    if not subpackage(import_.source) == subpackage(import_.target) == "tasks":
        return False
    source, target = import_.source.split(".")[2], import_.target.split(".")[2]
    shared = target.endswith("_base") or target in ("dataset_checks", "step_hooks", "teachers")
    return not shared and source not in {target, "distillation", "semi_supervised", "__init__"}


def reads_config(import_: Import) -> bool:
    declares = {"register", "adapt"} | ({"Part", "MustExist"} if subpackage(import_.source) == "contracts" else set())
    if import_.source.startswith("opabinia.data.layouts."):  # makes sections of sources, and has nothing to read
        declares |= {"ConfigError", "Problem"}
    if subpackage(import_.target) != "config" or subpackage(import_.source) in READS_CONFIG:
        return False
    return import_.target != "opabinia.config.__init__" or import_.name not in declares


def needs_migration(import_: Import) -> bool:
    """Only the commands convert configs of other frameworks. Their names of weights are registered by the root."""
    return subpackage(import_.target) == "migration" and subpackage(import_.source) not in ("migration", "cli")


RULES = {
    "upwards": goes_up,
    "independent subpackages": joins_independent,
    "a task that imports a task": joins_tasks,
    "a part that reads the config": reads_config,
    "migration is imported": needs_migration,
}


def find_cycle(edges: set[tuple[str, str]]) -> list[str]:
    graph: dict[str, list[str]] = {}
    for source, target in sorted(edges):
        graph.setdefault(source, []).append(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return ["import cycle: " + " <- ".join(error.args[1])]
    return []


def must_be_light(module: str) -> bool:
    return subpackage(module) in {"runtime", "config"} and module not in IMPORTS_TORCH


def between_subpackages(ours: list[Import]) -> set[tuple[str, str]]:
    return {
        (subpackage(import_.source), subpackage(import_.target))
        for import_ in ours
        if subpackage(import_.source) != subpackage(import_.target)
    }


def broken(sources: Sources) -> list[str]:
    if unknown := [f"no level: {module}" for module in sources if subpackage(module) not in LEVEL]:
        return unknown
    all_imports = sorted(set(imports(sources)), key=str)
    ours = [import_ for import_ in all_imports if import_.target in sources]
    heavy = [
        f"too heavy: {import_}"
        for import_ in all_imports
        if import_.target.split(".")[0] in HEAVY and must_be_light(import_.source)
    ]
    files = {(import_.source, import_.target) for import_ in ours if import_.source != import_.target}
    return (
        [f"{rule}: {import_}" for rule, breaks in RULES.items() for import_ in ours if breaks(import_)]
        + heavy
        + find_cycle(between_subpackages(ours))
        + find_cycle(files)
    )


def package_sources() -> dict[str, str]:
    files = {path: path.relative_to(PACKAGE.parent).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    return {".".join(parts): path.read_text(encoding="utf-8") for path, parts in files.items()}


def test_imports_go_down_only_and_without_cycles() -> None:
    problems = broken(package_sources())
    assert not problems, "\n".join(problems)


def test_the_root_of_the_package_is_short() -> None:
    entries = sorted(path.name for path in PACKAGE.iterdir() if path.name != "__pycache__")
    assert len(entries) <= MAX_ROOT_ENTRIES, entries


def test_private_operations_of_torch_are_imported_only_by_the_exports_that_need_them() -> None:
    statements = [(module, node) for module, text in package_sources().items() for node in ast.parse(text).body]
    imported = [(module, node.module or "") for module, node in statements if isinstance(node, ast.ImportFrom)]
    assert [module for module, target in imported if target.startswith("torch._higher_order_ops")] == []


def test_there_are_few_import_levels() -> None:
    sources = package_sources()
    below: dict[str, set[str]] = {}
    for source, target in between_subpackages([import_ for import_ in imports(sources) if import_.target in sources]):
        below.setdefault(source, set()).add(target)

    @cache
    def height(name: str) -> int:
        return 1 + max((height(subpackage_below) for subpackage_below in below.get(name, ())), default=0)

    assert max(map(height, LEVEL)) <= MAX_LEVELS


FOLDERS = sorted({str(path.parent.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_has_a_docstring(folder: str) -> None:
    assert ast.get_docstring(ast.parse((PACKAGE.parent / folder / "__init__.py").read_text(encoding="utf-8")))


@pytest.mark.parametrize("module", ["opabinia", "opabinia.config", "opabinia.cli"])
def test_light_modules_stay_light(module: str) -> None:
    """`opabinia --help` and a warm `config check` answer in half a second: they cannot wait for torch."""
    program = f"import sys, {module}; print(*{HEAVY} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


@pytest.mark.parametrize(
    ("module", "text", "rule"),
    [
        ("models.net", "from opabinia.engine import trainer", "upwards"),
        ("models.net", "def late():\n    import opabinia.engine.trainer", "upwards"),
        ("models.net", "if TYPE_CHECKING:\n    import opabinia.engine.trainer", "upwards"),
        ("models.net", "from opabinia.models.losses import focal", "independent subpackages"),
        ("models.losses.new", "from opabinia.models import necks", "independent subpackages"),
        ("models.net", "from opabinia.config import register, adapt", None),
        ("models.net", "from opabinia.config import Part", "a part that reads the config"),
        ("models.net", "from opabinia.config.tree import compose", "a part that reads the config"),
        ("models.net", "from opabinia import register", "upwards"),
        ("models.net", "from ..engine.trainer import Trainer", "upwards"),
        ("engine.step", "from opabinia.data import loader", "independent subpackages"),
        ("data.sources", "from opabinia.engine import trainer", "independent subpackages"),
        ("tasks.video", "from opabinia.tasks.detection import boxes", "a task that imports a task"),
        ("tasks.video", "from opabinia.tasks.classification_base import Base", None),
        ("tasks.distillation", "from opabinia.tasks.detection import boxes", None),
        ("tasks.selfsup.swav", "from opabinia.tasks.selfsup import views", None),
        ("config.build", "def late():\n    import torch.nn", "too heavy"),
        ("models.net", "import opabinia.evaluation.knn", "import cycle"),
        ("models.net", "if TYPE_CHECKING:\n    import opabinia.evaluation.knn", "import cycle"),
        ("config.tree", "from opabinia.config import yaml", "import cycle"),
        ("cli.config", "from opabinia.migration import convert", None),
        ("training.builtin_parts", "from opabinia.migration import weights", "migration is imported"),
        ("training.session", "from opabinia.migration import convert", "migration is imported"),
        ("inference.load", "from opabinia.migration import convert", "migration is imported"),
        ("__main__", "from opabinia.migration import convert", "migration is imported"),
        ("migration.weights", "from opabinia.models import net", None),
        ("migration.weights", "from opabinia.tasks import detection", "independent subpackages"),
        ("migration.weights", "from opabinia.training import session", "upwards"),
        ("unknown", "", "no level"),
    ],
)
def test_violations_are_detected(module: str, text: str, rule: str | None) -> None:
    names = "config.__init__ config.adapt config.tree engine.trainer data.loader models.losses.focal migration.__init__"
    names += " models.necks tasks.detection tasks.selfsup.views tasks.classification_base training.session"
    package = dict.fromkeys((f"opabinia.{name}" for name in names.split()), "")
    package["opabinia.__init__"] = "from opabinia.config import register"
    package["opabinia.config.__init__"] = "from opabinia.config import tree\nfrom opabinia.config.adapt import adapt"
    package["opabinia.evaluation.knn"] = "from opabinia.models import net"
    problems = broken(package | {f"opabinia.{module}": text})
    assert {problem.split(":")[0] for problem in problems} == ({rule} if rule else set())
