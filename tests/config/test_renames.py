"""Old names of parts and keys mean the same as the current ones, in files and on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from opabinia.config import Catalog, ConfigError, Part, Resolved, check, compose, dump, json_schema
from opabinia.config.keys import completed
from opabinia.config.registry import Register

register = Register()


@register.hook(aliases=("precise_norm",), renamed={"samples": "num_samples"})
@dataclass(frozen=True)
class PreciseBn:
    """Toy hook."""

    num_samples: int = 8
    every: int = 1


@register.hook
@dataclass(frozen=True)
class Ema:
    """Toy average."""

    decay: float = 0.5


@register.logger
@dataclass(frozen=True)
class Terminal:
    """Toy logger."""

    width: int = 80


@register.section(renamed={"workers": "num_workers"})
@dataclass(frozen=True)
class Data:
    """Toy data."""

    num_workers: int = 0
    batch_size: int = 1
    root: str = ""


HookPart = Annotated[Any, Part("hook")]


@register.command(renamed={"writers": "loggers"})
def train(
    *,
    data: Data,
    hooks: dict[str, HookPart] | None = None,
    loggers: list[Annotated[Any, Part("logger")]] = [Terminal],  # noqa: B006
    hook: HookPart = PreciseBn,
) -> None:
    """Toy training."""


CATALOG = Catalog.of(register)
Resolve = Callable[..., Resolved]


@pytest.fixture
def resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    monkeypatch.chdir(tmp_path)

    def resolve(child: str, *overrides: str, base: str = "") -> Resolved:
        Path("base.yaml").write_text(base)
        Path("child.yaml").write_text(f"base: base.yaml\n{child}")
        return check(compose("child.yaml", overrides), CATALOG)

    return resolve


def test_an_old_key_gives_one_warning_with_its_location(resolve: Resolve) -> None:
    resolved = resolve("data:\n  workers: 2")
    assert resolved.config["data"]["num_workers"] == 2
    assert resolved.warnings == ("child.yaml:3: data.workers is deprecated: use data.num_workers",)
    assert resolved.origins["data.num_workers"] == "child.yaml:3"
    assert resolve("", "data.workers=2").warnings == (
        "command line: data.workers=2: data.workers is deprecated: use data.num_workers",
    )
    assert resolve("data: {num_workers: 2}").warnings == ()


@pytest.mark.parametrize("names", [("workers", "num_workers"), ("num_workers", "workers"), ("workers", "workers")])
def test_the_later_of_old_and_new_wins(resolve: Resolve, names: tuple[str, str]) -> None:
    earlier, later = names
    resolved = resolve(f"data: {{{later}: 2}}", base=f"data: {{{earlier}: 1, batch_size: 3}}")
    assert resolved.config["data"] == {"num_workers": 2, "batch_size": 3, "root": ""}
    assert len(resolved.warnings) == names.count("workers")
    resolved = resolve("", f"data.{earlier}=1", f"data.{later}=2")
    assert resolved.config["data"]["num_workers"] == 2
    assert len(resolved.warnings) == names.count("workers")


def test_both_names_in_one_file_are_an_error(resolve: Resolve) -> None:
    with pytest.raises(ConfigError, match="is the old name of 'num_workers', which is given too"):
        resolve("data: {workers: 1, num_workers: 2}")


def test_an_old_section_merges_with_the_new_section(resolve: Resolve) -> None:
    resolved = resolve("loggers: [{name: terminal, width: 9}]", base="writers: []")
    assert resolved.config["loggers"] == [{"name": "terminal", "width": 9}]
    assert resolved.warnings == ("base.yaml:1: writers is deprecated: use loggers",)
    resolved = resolve("", "writers.0.width=7", base="writers: [terminal]")
    assert resolved.config["loggers"] == [{"name": "terminal", "width": 7}]


@pytest.mark.parametrize("names", [("precise_norm", "precise_bn"), ("precise_bn", "precise_norm")])
def test_an_old_part_is_the_same_part(resolve: Resolve, names: tuple[str, str]) -> None:
    base_name, child_name = names
    resolved = resolve(f"hook: {{name: {child_name}, every: 2}}", base=f"hook: {{name: {base_name}, samples: 3}}")
    assert resolved.config["hook"] == {"name": "precise_bn", "num_samples": 3, "every": 2}
    assert len(resolved.warnings) == 2
    part = "hook.name: precise_norm is deprecated: use precise_bn"
    assert sum(warning.endswith(part) for warning in resolved.warnings) == 1
    assert sum(warning.endswith("hook.samples is deprecated: use hook.num_samples") for warning in resolved.warnings)
    assert resolve("hook: ema", base=f"hook: {{name: {base_name}, every: 3}}").config["hook"] == {
        "name": "ema",
        "decay": 0.5,
    }


def test_an_old_part_as_key(resolve: Resolve) -> None:
    base = "hooks: {precise_bn: {num_samples: 3}}"
    resolved = resolve("", "hooks.precise_norm.every=2", base=base)
    assert resolved.config["hooks"] == {"precise_bn": {"name": "precise_bn", "num_samples": 3, "every": 2}}
    assert resolved.warnings == (
        "command line: hooks.precise_norm.every=2: hooks.precise_norm is deprecated: use hooks.precise_bn",
    )
    assert resolve("hooks: {precise_norm: null}", base=base).config["hooks"] == {}
    # The key of the base is kept: checkpoints have the hook's state under it.
    base = "hooks: {precise_norm: {name: precise_norm, samples: 3}}"
    resolved = resolve("hooks: {precise_bn: {every: 2}}", base=base)
    assert resolved.config["hooks"] == {"precise_norm": {"name": "precise_bn", "num_samples": 3, "every": 2}}


def test_a_key_that_is_an_old_name_of_another_part_is_just_a_key(resolve: Resolve) -> None:
    resolved = resolve("hooks: {precise_norm: {name: ema}, precise_bn: {}}")
    assert list(resolved.config["hooks"]) == ["precise_norm", "precise_bn"]


def test_references_may_use_either_name(resolve: Resolve) -> None:
    for written in ("workers", "num_workers"):
        for read in ("workers", "num_workers"):
            resolved = resolve(f"data: {{{written}: 2, batch_size: '${{data.{read}}}'}}")
            assert resolved.config["data"] == {"num_workers": 2, "batch_size": 2, "root": ""}
            assert len(resolved.warnings) == (written == "workers") + (read == "workers"), resolved.warnings
    assert resolve("data: {root: '${hook.name}'}\nhook: {name: precise_norm}").config["hook"]["name"] == "precise_bn"
    with pytest.raises(ConfigError, match=r"\$\{data\.worker\} refers to no key; did you mean 'data\.num_workers'"):
        resolve("data: {workers: 2, batch_size: '${data.worker}'}")


def test_a_part_named_by_a_reference_may_have_old_keys(resolve: Resolve) -> None:
    resolved = resolve("vars: {hook: precise_norm}\nhook: {name: '${vars.hook}', samples: 3}")
    assert resolved.config["hook"] == {"name": "precise_bn", "num_samples": 3, "every": 1}
    assert len(resolved.warnings) == 2


def test_saved_configs_with_old_names_resolve_to_current_names(resolve: Resolve, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(
        "data: {workers: 2, batch_size: 4, root: x}\n"
        "hooks: {precise_norm: {name: precise_norm, samples: 3, every: 1}}\n"
        "writers: [{name: terminal, width: 80}]\n"
        "hook: {name: precise_norm, samples: 8, every: 1}\n"
    )
    resolved = check(compose(tmp_path / "run", ["data.num_workers=1", "hooks.precise_bn.every=5"]), CATALOG)
    assert resolved.config["data"]["num_workers"] == 1
    assert resolved.config["hooks"] == {"precise_norm": {"name": "precise_bn", "num_samples": 3, "every": 5}}
    (tmp_path / "saved.yaml").write_text(dump(resolved.config))
    reloaded = check(compose(tmp_path / "saved.yaml"), CATALOG)
    assert reloaded.config == resolved.config and reloaded.warnings == ()


def test_completion_understands_old_names() -> None:
    config: Mapping[str, Any] = {"writers": [{"name": "terminal"}], "hooks": {"precise_norm": {"every": 1}}}
    assert completed("writers.0.w", config, CATALOG) == ["writers.0.width="]
    assert completed("hooks.precise_norm.e", config, CATALOG) == ["hooks.precise_norm.every="]
    assert completed("data.num_workers=", {"data": {"workers": 2}}, CATALOG) == ["data.num_workers=2"]
    assert completed("data.n", {}, CATALOG) == ["data.num_workers="]
    assert completed("data.w", {}, CATALOG) == []


def test_the_schema_marks_old_names() -> None:
    schema = json_schema(CATALOG)
    workers = schema["$defs"]["section.data"]["properties"]["workers"]
    assert workers["deprecated"] and workers["description"] == "deprecated: use num_workers"
    assert schema["properties"]["writers"]["deprecated"]
    assert {"enum": ["precise_norm"], "deprecated": True} in schema["$defs"]["hook"]["anyOf"]
    assert schema["$defs"]["hook.precise_bn"]["properties"]["name"]["enum"] == ["precise_bn", "precise_norm"]


def test_old_names_of_a_plugin() -> None:
    plugin_register = Register()
    with pytest.warns(DeprecationWarning, match=r"register\.writer is deprecated: use register\.logger"):
        family = plugin_register.writer

    @family
    @dataclass
    class FileLogger:
        """A logger."""

    @plugin_register.command
    def train(*, writers: list[Annotated[Any, Part("writer")]] = [FileLogger]) -> None:  # noqa: B006
        """Trains."""

    assert plugin_register.entries["logger"]["file_logger"].target is FileLogger
    assert plugin_register.entries["command"]["train"].by_name["writers"].default == [{"name": "file_logger"}]


def test_an_alias_must_be_free() -> None:
    plugin_register = Register()
    plugin_register.hook(aliases=("old",))(PreciseBn)
    with pytest.raises(TypeError, match=r"the name 'old' is taken by .*PreciseBn"):
        plugin_register.hook(name="old")(Ema)
    with pytest.raises(TypeError, match="the name 'precise_bn' is taken"):
        plugin_register.hook(aliases=("precise_bn",))(Ema)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("max_epochs=90", "write train.length=90ep"),
        ("max_steps=5", "write train.length=5it"),
        ("data.bs=32", "write data.batch_size=32"),
        ("mixed_precision=true", "write train.precision=bf16"),
    ],
)
def test_keys_of_other_systems_are_translated(resolve: Resolve, override: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve("", override)
    assert hint in str(error.value)


def test_the_hint_for_a_key_in_a_file_has_yaml_syntax(resolve: Resolve) -> None:
    with pytest.raises(ConfigError, match=r"write train\.length: 5ep"):
        resolve("epochs: 5")
