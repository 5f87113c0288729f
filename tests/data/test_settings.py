import pytest

from opabinia.config import register
from opabinia.data import Data, Stream, ValidationStream
from opabinia.data.sources import Digits
from opabinia.data.transforms.combine import Mosaic


def test_defaults() -> None:
    data = Data(train=Stream(source=Digits()), batch_size=64)
    assert (data.num_workers, data.shuffle, data.drop_last, list(data.mix), data.val) == (0, True, False, [], None)
    assert list(data.train.transforms) == []


def test_keys_of_the_section() -> None:
    section = register.entries["section"]["data"]
    names = [parameter.name for parameter in section.parameters]
    assert names == [
        *("train", "val", "batch_size", "num_workers", "shuffle", "sampler", "drop_last", "mix", "decode"),
        *("cache", "cache_size", "augment_on", "on_error"),
    ]
    assert [parameter.name for parameter in section.parameters if parameter.required] == ["batch_size"]
    assert all(parameter.doc for parameter in section.parameters)


def test_combining_transforms_are_refused_for_validation() -> None:
    Stream(source=Digits(), transforms=[Mosaic()])
    with pytest.raises(ValueError, match=r"transforms\.1: Mosaic .* belongs into data\.train\.transforms"):
        ValidationStream(source=Digits(), transforms=[lambda sample: sample, Mosaic()])


def test_a_cache_size_without_a_cache_raises() -> None:
    with pytest.raises(
        ValueError, match=r"cache_size: 256 is the size of cached images; add cache: ram or cache: disk"
    ):
        Data(train=Stream(source=Digits()), batch_size=64, cache_size=256)
