"""Samples with their index."""

import numpy as np
import pytest
import torch

from opabinia.contracts import Source
from opabinia.data.loader import Loader
from opabinia.data.reading import BatchReader
from opabinia.data.sampling.batches import ConstantPlan
from opabinia.data.sampling.requests import training_requests
from opabinia.data.sources import Concat, Digits, Indexed, Synthetic
from opabinia.runtime.durations import Duration


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits(split="val")


def test_samples_have_an_index(digits: Digits) -> None:
    indexed = Indexed(source=digits)
    assert isinstance(indexed, Source) and len(indexed) == len(digits)
    sample, original = indexed[7], digits[7]
    assert sample.pop("index") == 7
    assert sample.keys() == original.keys() and torch.equal(sample["image"], original["image"])


def test_attributes_of_the_source_are_available(digits: Digits) -> None:
    indexed = Indexed(source=digits)
    assert (indexed.info.labels == digits.info.labels).all()
    assert indexed.fingerprint() == digits.fingerprint()
    assert indexed.info.cameras is None


def test_the_index_is_that_of_the_outermost_source(digits: Digits) -> None:
    indexed = Indexed(source=Concat(sources=[digits, digits]))
    assert indexed[len(digits) + 3]["index"] == len(digits) + 3
    assert indexed.info.starts == (0, len(digits)), "samplers that mix sources need them"


def test_batches_have_indices() -> None:
    """Batches of a source do not have indices."""
    source = Synthetic(samples=20)
    assert source.batch(np.arange(2)) is not None
    order = np.random.default_rng(0).permutation(20)
    requests = training_requests(ConstantPlan(20, 8, Duration(2, "ep")), lambda epoch: order.__getitem__, 0, 1)
    batches = [batch for _, batch in Loader(BatchReader(Indexed(source=source)), requests).iterate()]
    assert torch.cat([batch["index"] for batch in batches]).tolist() == [*order, *order]
    for batch in batches:
        assert batch["id"] == [source[index]["id"] for index in batch["index"].tolist()]
