import pytest

from opabinia.data import Data, Stream, ValidationStream
from opabinia.data.sources import Digits
from opabinia.data.transforms.combine import Mosaic


def test_combining_transforms_are_refused_for_validation() -> None:
    Stream(source=Digits(), transforms=[Mosaic()])
    with pytest.raises(ValueError, match=r"transforms\.1: Mosaic .* belongs into data\.train\.transforms"):
        ValidationStream(source=Digits(), transforms=[lambda sample: sample, Mosaic()])


def test_invalid_data_raises() -> None:
    with pytest.raises(
        ValueError, match=r"cache_size: 256 is the size of cached images; add cache: ram or cache: disk"
    ):
        Data(train=Stream(source=Digits()), batch_size=64, cache_size=256)
    val = ValidationStream(source=Digits())
    with pytest.raises(
        ValueError, match=r"val\.1: two datasets have the prefix 'val'; give each its own, such as val_2"
    ):
        Data(batch_size=64, val=[val, val])
