from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from opabinia.config import Catalog, ConfigError, Part, Resolved, check, compose
from opabinia.config import catalog as builtin_catalog
from opabinia.config.registry import Register
from opabinia.runtime.durations import Duration
from tests.config.toys import CATALOG, RECIPE, SchedulePart

Check = Callable[..., Resolved]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Check a recipe, given as text, against the toy catalog."""
    monkeypatch.chdir(tmp_path)

    def checked(text: str, *overrides: str, catalog: Catalog = CATALOG) -> Resolved:
        Path("r.yaml").write_text(text)
        return check(compose("r.yaml", overrides), catalog)

    return checked


@pytest.fixture
def problems(checked: Check) -> Callable[..., list[str]]:
    def problems(text: str, *overrides: str, catalog: Catalog = CATALOG) -> list[str]:
        with pytest.raises(ConfigError) as error:
            checked(text, *overrides, catalog=catalog)
        return [str(problem) for problem in error.value.problems]

    return problems


def test_every_default_is_filled_in(checked: Check) -> None:
    assert checked(RECIPE).config == {
        "task": {
            "name": "classification",
            "backbone": {"name": "timm", "model": "resnet", "pretrained": False, "options": None},
            "loss": {"name": "cross_entropy", "label_smoothing": 0.0},
        },
        "data": {
            "root": "digits",
            "batch_size": 32,
            "transforms": [
                {"name": "crop", "size": 2, "mode": "nearest"},
                {"name": "several", "transforms": [{"name": "crop", "size": 3, "mode": "nearest"}]},
            ],
        },
        "train": {"length": "12ep", "device": "auto"},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False},
        "checkpoint": {"every": "1ep", "keep": 2},
        "hooks": None,
        "seed": None,
    }


def test_every_value_has_an_origin(checked: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "3")
    text = RECIPE + "optimizer: adam\nhooks:\n  ema: {}\nseed: ${env:SEED}\n"
    resolved = checked(text, "data.transforms.0.size=2", "task.loss.eps=0.1")
    origins = resolved.origins
    assert origins["task.name"] == "r.yaml:3"
    assert origins["task.backbone.model"] == "r.yaml:4"
    assert origins["task.backbone.pretrained"] == "signature's default"
    assert origins["task.loss.name"] == "signature's default"
    assert origins["task.loss.label_smoothing"] == "command line: task.loss.eps=0.1"
    assert origins["data.transforms.0.name"] == "r.yaml:8"
    assert origins["data.transforms.0.size"] == "command line: data.transforms.0.size=2"
    assert origins["data.transforms.1.transforms.0.size"] == "r.yaml:9"
    assert origins["optimizer.name"] == "r.yaml:12"
    assert origins["optimizer.betas.1"] == "signature's default"
    assert origins["hooks.ema.name"] == "r.yaml:14"
    assert origins["checkpoint.every"] == "signature's default"
    assert origins["seed"] == "r.yaml:15 (${env:SEED})"
    assert resolved.config["seed"] == 3
    assert resolved.warnings == (
        "command line: task.loss.eps=0.1: task.loss.eps is deprecated: use task.loss.label_smoothing",
    )


def test_values_are_normalized_and_the_default_part_need_not_be_named(checked: Check) -> None:
    config = checked(
        RECIPE, "optimizer.lr=1", "train.length=' 5 ep'", "data.root=a//b/", "optimizer.momentum=0.9"
    ).config
    assert (config["optimizer"]["name"], config["optimizer"]["momentum"]) == ("sgd", 0.9)
    assert (config["optimizer"]["lr"], type(config["optimizer"]["lr"])) == (1.0, float)
    assert (config["train"]["length"], config["data"]["root"]) == ("5ep", "a/b")


def test_hooks_are_named_by_their_keys(checked: Check) -> None:
    text = RECIPE + "hooks:\n  ema: {decay: 0.5}\n  slow: {name: ema}\n  fast: ema\n  stop: null\n"
    hooks = checked(text).config["hooks"]
    assert hooks == {
        "ema": {"name": "ema", "decay": 0.5},
        "slow": {"name": "ema", "decay": 0.999},
        "fast": {"name": "ema", "decay": 0.999},
    }
    assert checked(text, "hooks.slow=null").config["hooks"].keys() == {"ema", "fast"}


def test_a_number_or_a_part(checked: Check, problems: Callable[..., list[str]]) -> None:
    assert checked(RECIPE, "optimizer=adam", "optimizer.lr=3").config["optimizer"]["lr"] == 3.0
    assert checked(RECIPE, "optimizer=adam", "optimizer.lr=constant").config["optimizer"]["lr"] == {"name": "constant"}
    assert problems(RECIPE, "optimizer=adam", "optimizer.lr=[1]") == [
        "command line: optimizer.lr=[1]: optimizer.lr: expected a number or a schedule (found [1])"
    ]


TEN_MISTAKES = """\
plugins: []
vars: {size: 3, sigma: 1}
task:
  name: classification
  backbone: {name: timm, model: resnet, pretained: true}
  loss: {name: focal, gama: 2}
data:
  root: ${vars.sise}
  batch_size: 0
  transforms:
  - {name: corp, anything: 1}
  - {name: crop, size: "3"}
train: {device: gpu}
optimizr: sgd
checkpoint: {every: 1 day}
hooks:
  stop: {after: ${vars.size}}
"""


def test_many_mistakes_at_once(problems: Callable[..., list[str]]) -> None:
    text = TEN_MISTAKES.replace("${vars.size}", "'${vars.size}'")
    assert problems(text, "optimizer={name: adam, lr: true}", "seed.x=1") == (
        [
            "r.yaml:2: vars.sigma: nothing reads it (found 1)",
            "r.yaml:5: task.backbone.pretained: unknown key (found true); did you mean 'pretrained'? "
            "timm knows: model, pretrained, options",
            "r.yaml:6: task.loss.gama: unknown key (found 2); did you mean 'gamma'? focal knows: gamma",
            "r.yaml:8: data.root: ${vars.sise} refers to no key; did you mean 'vars.size'?",
            "r.yaml:9: data.batch_size: expected an integer >= 1 (found 0)",
            "r.yaml:11: data.transforms.0.name: there is no transform of this name (found 'corp'); "
            "did you mean 'crop'? every transform: crop, several",
            "r.yaml:12: data.transforms.1.size: expected an integer or a list of integers (found '3'); "
            "without quotes it would fit",
            "r.yaml:13: train.length: missing; a duration such as 12ep or 5000it is required",
            "r.yaml:13: train.device: expected one of 'auto', 'cpu', 'cuda' (found 'gpu'); did you mean 'cpu'?",
            "r.yaml:14: optimizr: unknown key (found 'sgd'); did you mean 'optimizer'? "
            "train knows: task, data, train, optimizer, checkpoint, hooks, seed",
            "r.yaml:15: checkpoint.every: expected a duration such as 12ep, 5000it or 1.5h (found '1 day')",
            "r.yaml:17: hooks.stop.after: expected a duration such as 12ep, 5000it or 1.5h (found 3)",
            "command line: optimizer={name: adam, lr: true}: optimizer.lr: expected a number or a schedule "
            "(found true)",
            "command line: seed.x=1: seed: expected an integer or null (found {x: 1})",
        ]
    )


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("task.backbone=3", "task.backbone: expected a backbone (found 3); every backbone: timm"),
        ("task.backbone.name=3", "task.backbone.name: expected text (found 3); every backbone: timm"),
        (
            "task.backbone.options=3",
            "task.backbone.options: expected a mapping of names to any values or null (found 3)",
        ),
        ("data=digits", "data: expected a data section (found 'digits'); a section with keys"),
        ("data=[1]", "data: expected a data section (found [1]); a section with keys"),
        ("data.transforms=crop", "data.transforms: expected a list of transforms (found 'crop')"),
        (
            "data.transforms=[{size: 3}]",
            "data.transforms.0.name: missing; it says which transform this is; every transform",
        ),
        ("data.transforms=[3, [], null]", "data.transforms.0: expected a transform (found 3)"),
        (
            "data.transforms.0.size=[1, x]",
            "data.transforms.0.size: expected an integer or a list of integers (found [1, 'x']",
        ),
        (
            "data.transforms.0.mode=bilnear",
            "mode: expected one of 'nearest', 'bilinear' (found 'bilnear'); did you mean",
        ),
        ("optimizer={name: adam, betas: [1]}", "optimizer.betas: expected a list of 2 numbers (found [1])"),
        ("optimizer={name: adam, betas: [1, x]}", "optimizer.betas.1: expected a number (found 'x')"),
        ("optimizer.lr=.nan", "optimizer.lr: expected a number > 0 (found nan)"),
        ("optimizer.lr=1e999", "optimizer.lr: expected a number > 0 (found inf)"),
        (
            "optimizer.betas=[1, 2]",
            "unknown key (found [1, 2]); sgd knows: lr, momentum, nesterov; 'betas' belongs to adam",
        ),
        ("batch_size=3", "batch_size: unknown key (found 3); write data.batch_size=3"),
        (
            "data.momentum=3",
            "data.momentum: unknown key (found 3); data knows: root, batch_size, transforms; 'momentum' belongs to "
            "optimizer",
        ),
        ("hooks=[ema]", "hooks: expected a mapping of names to hooks or null (found ['ema'])"),
        ("hooks.none={}", "hooks.none.name: there is no hook of this name (found 'none'); every hook: ema, stop"),
        ("hooks.ema=true", "hooks.ema: expected a hook (found true); every hook: ema, stop"),
        (
            "task.loss={name: cross_entropy, eps: 0, label_smoothing: 0}",
            "is the old name of 'label_smoothing', which is given too",
        ),
        ("task=null", "task: expected a task (found null); every task: classification"),
    ],
)
def test_each_mistake_is_one_problem(problems: Callable[..., list[str]], override: str, problem: str) -> None:
    messages = problems(RECIPE, override)
    assert len(messages) == (3 if "null]" in override else 1), messages
    assert problem in messages[0]


def test_missing_keys(problems: Callable[..., list[str]]) -> None:
    assert problems("{}") == [
        "r.yaml:1: task: missing; a task is required; every task: classification",
        "r.yaml:1: data: missing; a data section is required",
        "r.yaml:1: train: missing; a training section is required",
    ]


def test_a_changed_name_is_reported_as_the_reason_of_missing_keys(problems: Callable[..., list[str]]) -> None:
    (problem,) = problems(RECIPE, "data.transforms.1.name=crop")
    assert "data.transforms.1.size: missing; " in problem
    assert problem.endswith("another name drops the keys of the one before: give data.transforms.1 as a whole")


def test_missing_keys_are_not_reported_if_a_file_is_missing(problems: Callable[..., list[str]]) -> None:
    (problem,) = problems("base: nothing.yaml")
    assert "there is no such file" in problem
    with pytest.raises(ConfigError) as error:
        check(compose("no_recipe"), CATALOG)
    assert len(error.value.problems) == 1


def test_a_section_that_contains_itself_is_never_filled_in() -> None:
    register = Register()

    def nested(*, inner: Annotated[Any, Part("section", "nested")]) -> None:
        """Contains itself."""

    def train(*, inner: Annotated[Any, Part("section", "nested")]) -> None:
        """Trains."""

    register.section(nested)
    register.command(train)
    assert not Catalog.of(register).fills_itself({"kind": "part", "family": "section", "name": "nested"})


def test_a_failing_plugin_is_one_problem(problems: Callable[..., list[str]]) -> None:
    broken = Catalog(CATALOG.entries, {"my.parts": "ModuleNotFoundError: No module named 'my'"})
    text = RECIPE.replace("{name: crop, size: 2}", "custom") + "plugins: [my.parts]\n"
    assert problems(text, catalog=broken) == [
        "r.yaml:12: plugins: the plugin 'my.parts' cannot be imported: ModuleNotFoundError: No module named 'my'"
    ]


def test_plugins_stay_in_the_config(checked: Check) -> None:
    config = checked(RECIPE + "plugins: json\n").config
    assert config["plugins"] == ["json"]


def test_an_unknown_command() -> None:
    with pytest.raises(ConfigError, match="there is no command 'trian'; commands: train"):
        check(compose("x"), CATALOG, "trian")


def test_durations_and_parts_in_a_union_are_distinguished(checked: Check) -> None:
    register = Register()

    @register.schedule
    def constant(progress: float, /) -> float:
        """Always 1."""
        return 1.0

    @register.command
    def train(*, warmup: Duration | SchedulePart) -> None:
        """Trains."""

    catalog = Catalog.of(register)
    assert checked("warmup: 3ep", catalog=catalog).config == {"warmup": "3ep"}
    assert checked("warmup: constant", catalog=catalog).config == {"warmup": {"name": "constant"}}


def test_an_unsupported_part_has_a_reason(problems: Callable[..., list[str]]) -> None:
    register = Register()
    register.loss.mark_unsupported("triplet", "it needs embeddings, not logits")
    catalog = Catalog(CATALOG.entries, unsupported=Catalog.of(register).unsupported)
    (problem,) = problems(RECIPE, "task.loss=triplet", catalog=catalog)
    assert problem.endswith("is not supported: it needs embeddings, not logits (found 'triplet')")


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("detection/digits", "boxes do not follow"),
        ("selfsup/digits_simclr", "each view has a size of its own"),
        ("selfsup/digits_mae", "masks have a patch for each"),
    ],
)
def test_batch_shapes_are_refused_for_samples_of_fixed_size(recipe: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"shapes: {reason}"):
        check(compose(recipe, ["shapes={name: progressive, start: 16, end: 32}"]), builtin_catalog())
