from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

from opabinia.config import Catalog, ConfigError, Part, build, check, compose
from opabinia.config.build import Factory
from opabinia.config.registry import Register
from opabinia.config.validate import fit
from opabinia.runtime.durations import Duration
from opabinia.runtime.files import DiskError
from tests.config import toys
from tests.config.toys import CATALOG, RECIPE, Crop, Data, Ema, Mode, Several, Stop

TEXT = RECIPE.replace("size: 2", "size: [1, 2], mode: bilinear")


def resolved(tmp_path: Path, *overrides: str) -> tuple[dict[str, Any], dict[str, str]]:
    (tmp_path / "r.yaml").write_text(TEXT)
    checked = check(compose(tmp_path / "r.yaml", overrides), CATALOG)
    return checked.config, checked.origins


def parts(tmp_path: Path, *overrides: str) -> dict[str, Any]:
    config, origins = resolved(tmp_path, *overrides)
    return build(config, CATALOG, origins=origins)("the folder")


def test_values_arrive_converted_and_parts_built(tmp_path: Path) -> None:
    built = parts(tmp_path, "hooks.stop.after=1.5h", "hooks.slow.name=ema", "optimizer={name: adam, lr: constant}")
    assert built["folder"] == "the folder"
    crops = (Crop([1, 2], Mode.BILINEAR), Several((Crop(3, Mode.NEAREST),)))
    assert built["data"] == Data(Path("digits"), 32, list(crops))
    assert built["train"].length == Duration(12, "ep")
    assert built["hooks"] == {"stop": Stop(Duration(1.5, "h")), "slow": Ema()}
    name, lr, betas = built["optimizer"]
    assert (name, betas, lr(0.3)) == ("adam", (0.9, 0.999), 1.0)


def test_runtime_parameters_make_factories(tmp_path: Path) -> None:
    task = parts(tmp_path, "task.backbone.options={a: [1, null]}")["task"]
    assert isinstance(task, Factory)
    assert repr(task.keywords["backbone"]) == "timm(model='resnet', pretrained=False, options={'a': [1, None]})"
    model = task(3)
    assert isinstance(model, toys.Classification)
    assert model.backbone == ("timm", 3, "resnet", {"a": [1, None]})
    assert isinstance(model.loss, partial) and model.loss(3.0, 1.0) == 2.0


def test_a_constructor_error_has_its_location(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        parts(tmp_path, "optimizer.nesterov=true")
    (problem,) = error.value.problems
    assert problem.path == "optimizer"
    assert problem.where == "command line: optimizer.nesterov=true"
    assert problem.message == "nesterov needs a momentum"


def test_an_error_of_a_nested_part_has_its_own_location(tmp_path: Path) -> None:
    task = parts(tmp_path, "task.backbone.model=unknown")["task"]
    with pytest.raises(ConfigError) as error:
        task(3)
    (problem,) = error.value.problems
    assert (problem.path, problem.where) == ("task.backbone", "command line: task.backbone.model=unknown")
    assert "there is no model 'unknown'" in problem.message


def catalog_with(family: str, part: Any, command: str = "train") -> Catalog:
    """Return a catalog with a command that takes one part, and this part."""
    register = Register()
    getattr(register, family)(part)

    def run(*, part: Any) -> None:
        """Runs."""
        raise AssertionError("run")

    run.__annotations__["part"] = Annotated[Any, Part(family)]
    register.command(name=command)(run)
    return Catalog.of(register)


def test_an_error_has_the_origin_of_its_key_or_of_the_part(tmp_path: Path) -> None:
    def folder(*, root: Path, split: str = "train", size: int = 1) -> str:
        """Reads a folder."""
        if size < 0:
            raise ValueError("nothing is left")
        return (root / split).read_text()

    catalog = catalog_with("source", folder)
    (tmp_path / "r.yaml").write_text("part:\n  name: folder\n  root: no/where\n")
    for overrides, location in (
        (["part.split=val"], "r.yaml:3"),  # the missing file is below root
        (["part.split=val", "part.size=-1"], "r.yaml:2"),  # no key is known: the part
        (["part.split=val", "part.root=none"], "command line: part.root=none"),
    ):
        resolved_config = check(compose(tmp_path / "r.yaml", overrides), catalog)
        with pytest.raises(ConfigError) as error:
            build(resolved_config.config, catalog, origins=resolved_config.origins)
        assert error.value.problems[0].where.endswith(location), overrides
    with pytest.raises(ConfigError, match="part: No such file or directory: no/where/train"):
        build({"part": {"name": "folder", "root": "no/where"}}, catalog)


def test_an_error_at_run_time_is_not_a_config_error(tmp_path: Path) -> None:
    loss = parts(tmp_path, "task.loss=focal")["task"](3).loss
    with pytest.raises(ValueError, match="no logits"):
        loss(1.0, 2.0)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, "Permission denied", "a.yaml"),
        OverflowError("int too large"),
        RecursionError("too deep"),
        MemoryError("90 TiB"),
        RuntimeError("no home"),
        AttributeError("no 'rows'"),
        KeyError("rows"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_of_a_source_is_one_line_with_its_cause(error: Exception) -> None:
    def odd() -> str:
        """Fails."""
        raise error

    with pytest.raises(type(error)):  # a defect of another part is not the data's
        build({"part": "odd"}, catalog_with("optimizer", odd))
    with pytest.raises(ConfigError) as caught:
        build({"part": "odd"}, catalog_with("source", odd))
    (problem,) = caught.value.problems
    text = "Permission denied: a.yaml" if isinstance(error, OSError) else f"source odd: {type(error).__name__}: {error}"
    assert str(problem).startswith(f"part: {text}") and "\n" not in str(problem)
    assert isinstance(error, OSError) or "(test_build.py:" in problem.message
    cause = caught.value.__cause__
    assert cause is not None and cause.__cause__ is error


def test_errors_of_sources_with_an_exit_status_are_left_alone() -> None:
    def full() -> str:
        """Fails."""
        raise DiskError("the disk is full")

    with pytest.raises(DiskError):
        build({"part": "full"}, catalog_with("source", full))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"seed": "3"}, "seed: expected an integer or null"),
        ({"sed": 3}, "sed: unknown key"),
        ({"train": {}}, "train.length: expected a duration"),
        ({"optimizer": "lion"}, "optimizer: there is no optimizer 'lion'"),
        ({"optimizer": {"name": "sgd", "lr": 0}}, "optimizer.lr: expected a number > 0"),
        ({"hooks": {"stop": {"after": "3"}}}, "hooks.stop.after: expected a duration"),
    ],
)
def test_build_validates_an_unchecked_config(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    complete, _ = resolved(tmp_path)
    with pytest.raises(ConfigError) as error:
        build({**complete, **config}, CATALOG)
    assert message in str(error.value)


def test_parts_with_only_defaults_can_be_built() -> None:
    """Defaults of a catalog equal those of the callables."""
    for family in ("optimizer", "hook", "transform", "section"):
        for entry in CATALOG.entries[family].values():
            if not any(parameter.required for parameter in entry.parameters) and entry.target:
                arguments = {
                    name: fit(p.spec, p.default, (), pytest.fail, pytest.fail) for name, p in entry.by_name.items()
                }
                assert entry.target(**arguments) == entry.target()
