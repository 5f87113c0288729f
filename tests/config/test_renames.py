"""Old names of parts and keys are replaced by the current ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from opabinia.config import Catalog, ConfigError, Part, Resolved, check, compose, dump, flatten
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


KEY, PART = "data.workers is deprecated: use data.num_workers", "precise_norm is deprecated: use precise_bn"


@pytest.mark.parametrize(
    ("base", "child", "overrides", "expected", "warnings"),
    [
        ("", "data:\n  workers: 2", [], {"data.num_workers": (2, "child.yaml:3")}, [f"child.yaml:3: {KEY}"]),
        ("", "", ["data.workers=2"], {"data.num_workers": (2, "command line: data.workers=2")},
         [f"command line: data.workers=2: {KEY}"]),
        ("", "data: {num_workers: 2}", [], {"data.num_workers": (2, "child.yaml:2")}, []),
        ("", "hook: {name: precise_norm, samples: 3}", [],
         {"hook.name": ("precise_bn", "child.yaml:2"), "hook.num_samples": (3, "child.yaml:2")},
         [f"child.yaml:2: hook.name: {PART}", "child.yaml:2: hook.samples is deprecated: use hook.num_samples"]),
        # The key stays: checkpoints have the hook's state under it.
        ("", "hooks: {precise_norm: {num_samples: 3}}", [],
         {"hooks.precise_norm.name": ("precise_bn", "child.yaml:2"),
          "hooks.precise_norm.num_samples": (3, "child.yaml:2")},
         [f"child.yaml:2: hooks.precise_norm.name: {PART}"]),
        ("writers: [terminal]", "", ["writers.0.width=7"],
         {"loggers.0.name": ("terminal", "base.yaml:1"), "loggers.0.width": (7, "command line: writers.0.width=7")},
         ["base.yaml:1: writers is deprecated: use loggers"]),
    ],
)  # fmt: skip
def test_old_names_are_replaced_with_a_warning(
    resolve: Resolve, base: str, child: str, overrides: list[str], expected: dict[str, Any], warnings: list[str]
) -> None:
    resolved = resolve(child, *overrides, base=base)
    values = flatten(resolved.config)
    assert {key: (values[key], resolved.origins[key]) for key in expected} == expected
    assert list(resolved.warnings) == warnings


@pytest.mark.parametrize(
    ("child", "override", "message"),
    [
        ("data: {workers: 1, num_workers: 2}", "", "is the old name of 'num_workers', which is given too"),
        ("data: {workers: 1}", "data.num_workers=2", "is the old name of 'num_workers', which is given too"),
        ("", "max_epochs=90", "write train.length=90ep"),
        ("", "model.backbone.model=resnet50", "write task.backbone.model=resnet50"),
        ("", "max_steps=5", "write train.length=5it"),
        ("", "data.bs=32", "write data.batch_size=32"),
        ("", "mixed_precision=true", "write train.precision=bf16"),
        ("epochs: 5", "", "write train.length: 5ep"),
    ],
)
def test_both_names_and_names_of_other_systems_are_errors(
    resolve: Resolve, child: str, override: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(child, *filter(None, [override]))
    assert message in str(error.value)


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
