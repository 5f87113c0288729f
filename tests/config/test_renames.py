"""Old names of parts and keys are replaced by the current ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from opabinia.config import Catalog, ConfigError, Part, Resolved, check, compose, dump
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


def test_both_names_are_an_error(resolve: Resolve) -> None:
    with pytest.raises(ConfigError, match="is the old name of 'num_workers', which is given too"):
        resolve("data: {workers: 1, num_workers: 2}")
    with pytest.raises(ConfigError, match="is the old name of 'num_workers', which is given too"):
        resolve("data: {num_workers: 2}", base="data: {workers: 1}")


def test_an_old_part_is_the_same_part(resolve: Resolve) -> None:
    resolved = resolve("hook: {name: precise_norm, samples: 3}")
    assert resolved.config["hook"] == {"name": "precise_bn", "num_samples": 3, "every": 1}
    assert resolved.warnings == (
        "child.yaml:2: hook.name: precise_norm is deprecated: use precise_bn",
        "child.yaml:2: hook.samples is deprecated: use hook.num_samples",
    )


def test_an_old_part_as_key(resolve: Resolve) -> None:
    """The key stays: checkpoints have the hook's state under it."""
    resolved = resolve("hooks: {precise_norm: {num_samples: 3}}")
    assert resolved.config["hooks"] == {"precise_norm": {"name": "precise_bn", "num_samples": 3, "every": 1}}
    assert len(resolved.warnings) == 1


def test_an_old_section_has_its_places(resolve: Resolve) -> None:
    resolved = resolve("", "writers.0.width=7", base="writers: [terminal]")
    assert resolved.config["loggers"] == [{"name": "terminal", "width": 7}]
    assert resolved.origins["loggers.0.width"] == "command line: writers.0.width=7"


def test_saved_configs_with_old_names_resolve_to_current_names(resolve: Resolve, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(
        "data: {workers: 2, batch_size: 4, root: x}\n"
        "hooks: {precise_norm: {name: precise_norm, samples: 3, every: 1}}\n"
        "writers: [{name: terminal, width: 80}]\n"
        "hook: {name: precise_norm, samples: 8, every: 1}\n"
    )
    resolved = check(compose(tmp_path / "run", ["hooks.precise_norm.every=5"]), CATALOG)
    assert resolved.config["data"]["num_workers"] == 2
    assert resolved.config["hooks"] == {"precise_norm": {"name": "precise_bn", "num_samples": 3, "every": 5}}
    (tmp_path / "saved.yaml").write_text(dump(resolved.config))
    reloaded = check(compose(tmp_path / "saved.yaml"), CATALOG)
    assert reloaded.config == resolved.config and reloaded.warnings == ()


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
        ("model.backbone.model=resnet50", "write task.backbone.model=resnet50"),
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
