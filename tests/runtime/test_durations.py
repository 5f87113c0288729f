import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opabinia.runtime.durations import Duration

HOURS = ("ep", "it", "h")


@pytest.mark.parametrize(
    ("text", "shown", "value", "unit"),
    [
        *(("12ep", "12ep", 12, "ep"), ("0.5ep", "0.5ep", 0.5, "ep"), ("0.0000001ep", "0.0000001ep", 1e-7, "ep")),
        *((" 3 ep ", "3ep", 3, "ep"), ("5000.0it", "5000it", 5000, "it"), ("0it", "0it", 0, "it")),
        ("1.5h", "1.5h", 1.5, "h"),
    ],
)
def test_text(text: str, shown: str, value: float, unit: str) -> None:
    duration = Duration.parse(text, HOURS)
    assert duration == Duration(value, unit) and str(duration) == shown


@pytest.mark.parametrize(
    "text",
    ["", "12", "ep", "1.5h", "-1ep", "1e3it", "1,5ep", "12epochs", "12 ep 3", "nanep", "infep", ".5ep", "5.ep", "12EP"],
)
def test_an_invalid_duration_is_reported_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration such as 12ep or 5000it"):
        Duration.parse(text)
    with pytest.raises(ValueError, match=r"such as 1.5h$"):
        Duration.parse("3ep", ("h",))


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
    with pytest.raises(ValueError, match=r"1.5h is not a number of steps"):
        Duration(1.5, "h").steps(steps_per_epoch)


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
    assert Duration.parse(str(duration), HOURS) == duration
