"""Samples that tell their number."""

import numpy as np
import pytest
import torch

from opabinia.contracts import Source
from opabinia.data.loader import BatchReader, Loader, training_requests
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sources import Concat, Digits, Indexed, Synthetic
from opabinia.runtime.durations import Duration
from opabinia.training.samples import fingerprint


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits(split="val")


def test_it_is_the_source_with_numbers(digits: Digits) -> None:
    numbered = Indexed(source=digits)
    assert isinstance(numbered, Source) and len(numbered) == len(digits)
    sample, plain = numbered[7], digits[7]
    assert sample.pop("index") == 7
    assert sample.keys() == plain.keys() and torch.equal(sample["image"], plain["image"])


def test_what_else_a_source_has_is_there(digits: Digits) -> None:
    numbered = Indexed(source=digits)
    assert (numbered.labels == digits.labels).all()
    assert fingerprint(numbered) == fingerprint(digits)
    assert not hasattr(numbered, "cameras")


def test_numbers_are_those_of_the_outermost(digits: Digits) -> None:
    twice = Indexed(source=Concat(sources=[digits, digits]))
    assert twice[len(digits) + 3]["index"] == len(digits) + 3
    assert list(twice.starts) == [0, len(digits)], "samplers that mix sources still find them"


def test_whole_batches_have_numbers_too() -> None:
    """A source that hands over whole batches knows no numbers."""
    source = Synthetic(samples=20)
    assert hasattr(source, "batch")
    order = np.random.default_rng(0).permutation(20)
    requests = training_requests(ConstantPlan(20, 8, Duration(2, "ep")), lambda epoch: order.__getitem__, 0, 1)
    found = [batch for _, batch in Loader(BatchReader(Indexed(source=source)), requests).iterate()]
    assert torch.cat([batch["index"] for batch in found]).tolist() == [*order, *order]
    for batch in found:
        assert batch["id"] == [source[index]["id"] for index in batch["index"].tolist()]
