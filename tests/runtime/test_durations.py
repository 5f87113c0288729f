import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opabinia.runtime.durations import Duration, Units


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("12ep", 12, "ep"),
        ("0.5ep", 0.5, "ep"),
        ("5000it", 5000, "it"),
        ("5000.0it", 5000, "it"),
        (" 3 ep ", 3, "ep"),
        ("0it", 0, "it"),
    ],
)
def test_parse(text: str, value: float, unit: str) -> None:
    assert Duration.parse(text) == Duration(value, unit)


@pytest.mark.parametrize(
    "text",
    ["", "12", "ep", "1.5h", "-1ep", "1e3it", "1,5ep", "12epochs", "12 ep 3", "nanep", "infep", ".5ep", "5.ep", "12EP"],
)
def test_an_invalid_duration_is_reported_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration such as 12ep or 5000it"):
        Duration.parse(text)


def test_hours_only_where_they_are_allowed() -> None:
    assert Duration.parse("1.5h", ("ep", "it", "h")) == Duration(1.5, "h")
    with pytest.raises(ValueError, match=r"such as 1.5h$"):
        Duration.parse("3ep", ("h",))
    assert Units("ep", "h").allowed == ("ep", "h")


@pytest.mark.parametrize(
    ("value", "unit", "message"),
    [
        (1.5, "it", "a whole number, not 1.5"),
        (-1, "ep", "at least 0, not -1"),
        (float("nan"), "ep", "finite"),
        (float("inf"), "it", "finite"),
        (1, "min", "unknown unit 'min'; use one of ep, it, h"),
    ],
)
def test_invalid_durations(value: float, unit: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Duration(value, unit)


def test_fractions_of_iterations_are_rejected() -> None:
    with pytest.raises(ValueError, match="a whole number"):
        Duration.parse("2.5it")


@pytest.mark.parametrize(
    ("text", "steps_per_epoch", "steps"),
    [
        ("3ep", 10, 30),
        ("0.5ep", 15, 8),  # 7.5: Python rounds to even
        ("0.5ep", 13, 6),  # 6.5
        ("0.3ep", 10, 3),
        ("0.001ep", 10, 1),  # at least one
        ("0ep", 10, 0),
        ("7it", 10, 7),
        ("0it", 10, 0),
    ],
)
def test_steps(text: str, steps_per_epoch: int, steps: int) -> None:
    assert Duration.parse(text).steps(steps_per_epoch) == steps


def test_hours_cannot_be_converted_to_steps() -> None:
    with pytest.raises(ValueError, match=r"1.5h is not a number of steps"):
        Duration(1.5, "h").steps(10)


durations = st.one_of(
    st.builds(Duration, st.floats(0, 1e25), st.sampled_from(["ep", "h"])),
    st.builds(Duration, st.integers(0, 2**53), st.just("it")),
)


@given(durations)
@example(Duration(1e-7, "ep"))
@example(Duration(10**17, "it"))
@example(Duration(0.1 + 0.2, "ep"))
def test_text_is_parsed_to_the_same_duration(duration: Duration) -> None:
    """A resumed run reads its length from the config.yaml of the run."""
    assert Duration.parse(str(duration), ("ep", "it", "h")) == duration


@pytest.mark.parametrize("text", ["12ep", "0.5ep", "5000it", "1.5h", "0.0000001ep"])
def test_text_has_the_usual_form(text: str) -> None:
    assert str(Duration.parse(text, ("ep", "it", "h"))) == text
