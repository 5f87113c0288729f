"""Every recipe and command line gives a complete config or a ConfigError."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from opabinia.config import Catalog, ConfigError, build, check, compose, dump, live_catalog
from tests.config.toys import CATALOG

FULL = """\
vars: {n: 2}
task:
  name: classification
  backbone: {name: timm, model: x}
data: {root: d, transforms: [{name: crop, size: 2}]}
train: {length: 12ep}
optimizer: {name: adam, lr: 1e-3}
hooks:
  ema: &ema {decay: 0.9}
  stop: {after: "${vars.n}ep"}
seed: ${vars.n}
"""

FULL_CONFIG = yaml.safe_load(FULL)

KEYS = """
task data train optimizer checkpoint hooks seed vars plugins base name lr betas transforms size root model options loss
backbone ema stop after every keep length device 0 1 2 9 -1 mode eps label_smoothing deep x n
""".split()  # noqa: SIM905 (a list of words is more readable as a text)

TOKENS = """
: - { } [ ] , # & * ! | > ' " % @ ` ? ~ ${ } ${vars.n} ${env:HOME} ${env:NOPE} $${ ${data} << null true 3 -1 0.5 1e3
.nan .inf 12ep 1h 5it crop sgd adam several cross_entropy focal auto bilinear *ema &ema !!str --- ... é
""".split()  # noqa: SIM905
TOKENS += ["\n", "\n  ", "\t", "\u2028", "\x00", "\x85", "\ud800", "\r"]

SCALARS = (None, True, False, 0, 3, -1, 0.5, 1e300, 10**50, "", "crop", "sgd", "12ep", "1h", "auto", "3", "a.b", "name",
           "${vars.n}", "$${x}", "${data}", "${seed}")  # fmt: skip

EXAMPLES = settings().max_examples
"""Examples of a test in the current profile; these tests use multiples of it."""

values = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
noise = st.lists(st.sampled_from(TOKENS + KEYS), max_size=12).map(" ".join)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "recipe.yaml"


def check_recipe(recipe: Path | str, *overrides: str, catalog: Catalog = CATALOG) -> None:
    """Check that a recipe gives printable one-line problems, or a complete config that is the same after saving and
    loading, and builds unless a constructor refuses it."""
    try:
        resolved = check(compose(recipe, overrides), catalog)
    except ConfigError as error:
        assert error.problems
        for problem in error.problems:
            assert str(problem).isprintable()
            str(problem).encode()
        return
    if catalog is CATALOG:
        saved = Path(recipe)
        saved.write_text(dump(resolved.config))
        assert dump(check(compose(saved), catalog).config) == dump(resolved.config)
        try:
            build(resolved.config, catalog, origins=resolved.origins)
        except ConfigError:
            assert "nesterov" in dump(resolved.config)


def test_the_full_recipe_is_valid(recipe: Path) -> None:
    recipe.write_text(FULL)
    assert check(compose(recipe), CATALOG).config["seed"] == 2
    check_recipe(recipe)


@settings(max_examples=7 * EXAMPLES)
@given(st.binary(max_size=60) | noise.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_noise(recipe: Path, data: bytes) -> None:
    recipe.write_bytes(data)
    check_recipe(recipe)


@settings(max_examples=18 * EXAMPLES)
@given(
    st.lists(st.tuples(st.integers(0, len(FULL)), st.integers(0, 12), st.sampled_from(TOKENS)), min_size=1, max_size=3)
)
def test_recipes_with_random_edits(recipe: Path, edits: list[tuple[int, int, str]]) -> None:
    text = FULL
    for position, length, token in edits:
        text = text[:position] + token + text[position + length :]
    recipe.write_bytes(text.encode("utf-8", "surrogatepass"))
    check_recipe(recipe)


@settings(max_examples=7 * EXAMPLES)
@given(st.permutations(FULL.splitlines()), st.integers(0, 11))
def test_recipes_with_shuffled_lines(recipe: Path, lines: list[str], count: int) -> None:
    recipe.write_text("\n".join(lines[:count]))
    check_recipe(recipe)


@settings(max_examples=8 * EXAMPLES)
@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=5))
def test_recipes_of_the_wrong_shape(recipe: Path, config: dict[str, object]) -> None:
    recipe.write_text(json.dumps({**FULL_CONFIG, **config}))  # JSON is YAML too
    check_recipe(recipe)


paths = st.lists(st.sampled_from(KEYS), min_size=1, max_size=5).map(".".join)
overrides = st.tuples(paths, values.map(json.dumps) | noise).map("=".join)


@settings(max_examples=7 * EXAMPLES)
@given(st.lists(overrides | noise, max_size=4))
def test_overrides(recipe: Path, arguments: list[str]) -> None:
    recipe.write_text(FULL)
    check_recipe(recipe, *arguments)


@settings(max_examples=3 * EXAMPLES)
@given(st.text(max_size=30))
def test_names_of_recipes(name: str) -> None:
    check_recipe(name)


@pytest.fixture(scope="module")
def real() -> Catalog:
    return live_catalog()


@settings(max_examples=3 * EXAMPLES)
@given(data=st.data())
def test_overrides_of_a_packaged_recipe(real: Catalog, data: st.DataObject) -> None:
    """Any key of any of Opabinia's parts, at any position."""
    families = [entries for entries in real.entries.values() if entries]
    names = sorted({name for entries in families for name in entries})
    keys = sorted({key for entries in families for entry in entries.values() for key in entry.by_name})
    path = st.lists(st.sampled_from([*keys, "name", "0", "1"]), min_size=1, max_size=4).map(".".join)
    value = st.sampled_from(
        [*names, "3", "0.5", "null", "true", "12ep", "[1, 2]", "{}", "{name: 3}", "${data}", "text"]
    )
    arguments = data.draw(st.lists(st.tuples(path, value).map("=".join), min_size=1, max_size=4))
    check_recipe("classification/digits", *arguments, catalog=real)
