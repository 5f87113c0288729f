import pickle

from opabinia.config import ConfigError, Problem
from opabinia.config.errors import listing, nearest, show


def test_a_problem_is_one_line() -> None:
    problem = Problem("digits.yaml:12", "optimizer.lrr", "unknown key", "0.1", "lr", "sgd knows: lr, momentum")
    expected = "digits.yaml:12: optimizer.lrr: unknown key (found 0.1); did you mean 'lr'? sgd knows: lr, momentum"
    assert str(problem) == expected
    assert str(Problem("", "", "nothing", allowed="there is more")) == "nothing; there is more"


def test_an_error_reports_all_and_survives_pickling() -> None:
    error = ConfigError([Problem("a", "", "one"), Problem("b", "", "two")])
    assert str(error) == "a: one\nb: two"
    restored = pickle.loads(pickle.dumps(error))
    assert restored.problems == error.problems


def test_values_are_shown_as_written() -> None:
    value = {"a": [1, 2.5, True, None], "b c": "text\n", "d": {}}
    assert show(value) == "{a: [1, 2.5, true, null], 'b c': 'text\\n', d: {}}"
    assert show("x" * 100, limit=20) == "'" + "x" * 15 + " ..."
    assert len(show([[0] * 1000] * 1000)) <= 60


def test_nearest_overlooks_case_and_dashes() -> None:
    assert nearest("RandomCorp", ["RandomCrop", "Resize"]) == "RandomCrop"
    assert nearest("cross-entropy", ["focal", "cross_entropy"]) == "cross_entropy"
    assert nearest("adamW", ["adamw", "adam"]) == "adamw"
    assert nearest("quite different", ["adam"]) == ""


def test_listing_is_cut() -> None:
    assert listing(["a", "b"]) == "a, b"
    assert listing(["a", "b", "c"], 2) == "a, b, ... (3 in all)"
