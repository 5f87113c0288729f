"""The floor plan of docs/design.md holds: imports go down only, never in a circle, and light doors stay light."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "opabinia"

FLOORS = {
    0: ["runtime"],
    1: ["config"],
    2: ["contracts", "models", "losses", "evaluation", "optim", "segments", "drawing", "inspect", "explain"],
    3: ["engine", "data", "tasks"],
    4: [
        "run",
        "settings",
        "pieces",
        "predictor",
        "films",
        "gallery",
        "loading",
        "pictures",
        "timetable",
        "report",
        "summary",
        "flops",
    ],
    5: [
        "launch",
        "scaling",
        "auto",
        "trial",
        "bench",
        "replay",
        "agent",
        "elastic",
        "predict",
        "compare",
        "columns",
        "layers",
        "extract",
        "search",
        "maps",
        "export",
        "serving",
        "evidence",
        "doctor",
        "recipes",
        "sweep",
    ],
    6: ["cli"],
    7: ["__init__", "__main__"],  # the public face may show anything
}
FLOOR = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
STRANGERS = {("models", "losses")} | {(a, b) for a in FLOORS[3] for b in FLOORS[3] if a != b}
READS_CONFIG = {
    "config",
    "run",
    "pieces",
    "launch",
    "scaling",
    "auto",
    "trial",
    "bench",
    "replay",
    "loading",
    "predict",
    "compare",
    "layers",
    "extract",
    "search",
    "maps",
    "evidence",
    "report",
    "export",
    "serving",
    "sweep",
    "timetable",
    "cli",
    "__init__",
    "__main__",
}  # all others only declare themselves there
HEAVY = {"torch", "torchvision", "timm", "sklearn"}
KNOWS_TORCH = {
    f"opabinia.runtime.{name}"
    for name in ("seeds", "device", "processes", "environment", "exchange", "group", "shards")
}

Sources = Mapping[str, str]
"""Text by module name; a package's own file is called ``opabinia.config.__init__``."""


class Import(NamedTuple):
    source: str
    target: str  # a module of ours under its name in Sources, or the name of somebody else's
    name: str | None  # None: the module itself
    hidden: bool  # inside a function: may be lazy, may not go up

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}" + (f".{self.name}" if self.name else "")


def statements(node: ast.AST, hidden: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            child.body = []
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, hidden
        yield from statements(child, hidden or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def origin_of(node: ast.ImportFrom, source: str) -> str:
    return resolve_name("." * node.level + (node.module or ""), source.rpartition(".")[0])


def reexports(source: str, text: str) -> set[str]:
    """``opabinia.config.adapt`` is a function that hides the module of that name."""
    found = (node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom))
    elsewhere = (node for node in found if f"{origin_of(node, source)}.__init__" != source)
    return {f"{source.removesuffix('.__init__')}.{alias.name}" for node in elsewhere for alias in node.names}


def imports(sources: Sources) -> Iterator[Import]:
    hiding = {name for source, text in sources.items() for name in reexports(source, text)}

    def module(name: str) -> str | None:
        return next((key for key in (name, f"{name}.__init__") if key in sources), None)

    for source, text in sources.items():
        for node, hidden in statements(ast.parse(text)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(source, module(alias.name) or alias.name, None, hidden)
                continue
            origin = origin_of(node, source)
            for alias in node.names:
                name = f"{origin}.{alias.name}"
                whole = module(name) if name not in hiding else None
                yield Import(source, whole or module(origin) or origin, None if whole else alias.name, hidden)


def room(module: str) -> str:
    return module.split(".")[1]


def task(module: str) -> str:
    return module.split(".")[2]


def goes_up(found: Import) -> bool:
    return FLOOR[room(found.source)] < FLOOR[room(found.target)]


def meets_a_stranger(found: Import) -> bool:
    return (room(found.source), room(found.target)) in STRANGERS


def joins_tasks(found: Import) -> bool:
    both = room(found.source) == room(found.target) == "tasks"
    # `labelled` is no task, but what tasks with labels have in common.
    return (
        both
        and task(found.target) != "labelled"
        and task(found.source) not in {task(found.target), "distill", "__init__"}
    )


def sees_config(found: Import) -> bool:
    declares = {"register", "adapt"} | ({"Part"} if room(found.source) == "contracts" else set())
    if room(found.target) != "config" or room(found.source) in READS_CONFIG:
        return False
    return found.target != "opabinia.config.__init__" or found.name not in declares


RULES = {
    "upwards": goes_up,
    "strangers": meets_a_stranger,
    "a task that imports a task": joins_tasks,
    "a part that sees the config": sees_config,
}


def circle(arrows: set[tuple[str, str]]) -> list[str]:
    graph: dict[str, list[str]] = {}
    for source, target in sorted(arrows):
        graph.setdefault(source, []).append(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return ["in a circle: " + " <- ".join(error.args[1])]
    return []


def broken(sources: Sources) -> list[str]:
    strange = [f"no floor: {module}" for module in sources if room(module) not in FLOOR]
    if strange:
        return strange
    found = sorted(set(imports(sources)), key=str)
    # The version is a constant, so anyone may ask the face for it.
    ours = [one for one in found if one.target in sources and one.name != "__version__"]
    heavy = [f"too heavy: {one}" for one in found if one.target.split(".")[0] in HEAVY and must_be_light(one.source)]
    rooms = {(room(one.source), room(one.target)) for one in ours if room(one.source) != room(one.target)}
    files = {(one.source, one.target) for one in ours if not one.hidden}
    return (
        [f"{rule}: {one}" for rule, breaks in RULES.items() for one in ours if breaks(one)]
        + heavy
        + circle(rooms)
        + circle(files)
    )


def must_be_light(module: str) -> bool:
    return room(module) in {"runtime", "config"} and module not in KNOWS_TORCH


def test_imports_go_down_only() -> None:
    files = {path: path.relative_to(PACKAGE.parent).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    problems = broken({".".join(parts): path.read_text(encoding="utf-8") for path, parts in files.items()})
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("module", ["opabinia", "opabinia.config", "opabinia.cli"])
def test_light_doors_stay_light(module: str) -> None:
    """`opabinia --help` and a warm `config check` answer in half a second: they cannot wait for torch."""
    program = f"import sys, {module}; print(*{HEAVY} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


@pytest.mark.parametrize(
    ("module", "text", "rule"),
    [
        ("models.net", "from opabinia.engine import trainer", "upwards"),
        ("models.net", "def late():\n    import opabinia.engine.loop.trainer", "upwards"),
        ("models.net", "if TYPE_CHECKING:\n    import opabinia.engine.loop.trainer", None),
        ("models.net", "from opabinia.models.losses import focal", "strangers"),
        ("models.net", "from opabinia.config import register, adapt", None),
        ("models.net", "from opabinia.config import Part", "a part that sees the config"),
        ("models.net", "from opabinia.config.tree import compose", "a part that sees the config"),
        ("models.net", "from opabinia import __version__", None),
        ("models.net", "from opabinia import register", "upwards"),
        ("models.net", "from ..engine.trainer import Trainer", "upwards"),
        ("engine.step", "from opabinia.data import loader", "strangers"),
        ("tasks.video", "from opabinia.tasks.detection import boxes", "a task that imports a task"),
        ("tasks.distill", "from opabinia.tasks.detection import boxes", None),
        ("tasks.selfsup.swav", "from opabinia.tasks.selfsup import views", None),
        ("config.build", "def late():\n    import torch.nn", "too heavy"),
        ("models.net", "import opabinia.evaluation.representation.knn", "in a circle"),
        ("models.net", "def late():\n    import opabinia.evaluation.representation.knn", "in a circle"),
        ("config.tree", "from opabinia.config import yaml", "in a circle"),
        ("cellar", "", "no floor"),
    ],
)
def test_the_rules_bite(module: str, text: str, rule: str | None) -> None:
    names = "config.__init__ config.adapt config.tree engine.trainer data.loader losses.focal"
    names += " tasks.detection tasks.selfsup.views"
    house = dict.fromkeys((f"opabinia.{name}" for name in names.split()), "")
    house["opabinia.__init__"] = "from opabinia.config import register"
    house["opabinia.config.__init__"] = "from opabinia.config import tree\nfrom opabinia.config.adapt import adapt"
    house["opabinia.evaluation.representation.knn"] = "from opabinia.models import net"
    problems = broken(house | {f"opabinia.{module}": text})
    assert {problem.split(":")[0] for problem in problems} == ({rule} if rule else set())
