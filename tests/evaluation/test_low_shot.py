"""Classifiers of a few images of each class."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from opabinia.contracts import DataMismatch, DatasetInfo
from opabinia.evaluation.representation.low_shot import LowShot
from tests.evaluation.features import FACTS, around, batches, scored

KNOWN, ASKED = (batches(*around(torch.eye(3, 8), each, 0.5, seed=each)) for each in (16, 30))


def test_more_images_tell_more() -> None:
    scores, details = scored(lambda: LowShot(FACTS), KNOWN, ASKED)
    assert list(scores) == ["low_shot_1", "low_shot_2", "low_shot_4", "low_shot_8", "low_shot_16"]
    assert 0.4 < scores["low_shot_1"] < scores["low_shot_4"] < scores["low_shot_16"]
    for row in details["low_shot"]:
        assert row["mean"] == scores[f"low_shot_{row['shots']}"] == pytest.approx(np.mean(row["draws"]))
        assert len(row["draws"]) == 5
    first, *_, last = details["low_shot"]
    assert first["deviation"] > 0
    assert last["deviation"] == 0  # of 16 images there is one draw only


def test_the_same_digits_on_any_number_of_processes() -> None:
    assert scored(lambda: LowShot(FACTS), KNOWN, ASKED, 3) == scored(lambda: LowShot(FACTS), KNOWN, ASKED)


def test_draws_hang_on_the_seed_and_hold_each_other() -> None:
    labels = torch.arange(30).remainder(3).numpy()
    orders = [
        LowShot(FACTS, shots=[2, 4], seed=seed)._sampling_order(labels, draw) for seed in (0, 1) for draw in (0, 1)
    ]
    assert len({order.tobytes() for order in orders}) == 4
    for order in orders:
        assert order.shape == (3, 4)
        assert (labels[order] == np.arange(3)[:, None]).all()
        assert len(set(order.ravel().tolist())) == 12
    fewer = LowShot(FACTS, shots=[2], seed=1)._sampling_order(labels, 1)
    assert (fewer == orders[3][:, :2]).all()


def test_a_mean_and_a_length_say_nothing() -> None:
    other = [
        ({"embedding": 7 * said["embedding"] + torch.arange(len(batch["id"]))[:, None]}, batch) for said, batch in KNOWN
    ]
    assert scored(lambda: LowShot(FACTS), other, ASKED)[0] == scored(lambda: LowShot(FACTS), KNOWN, ASKED)[0]


def test_a_class_with_too_few_images_is_reported() -> None:
    with pytest.raises(DataMismatch, match="the class a has 16 training images, fewer than 17; lower shots"):
        scored(lambda: LowShot(FACTS, shots=[1, 17]), KNOWN, ASKED)


def test_what_cannot_be_learned_is_refused() -> None:
    with pytest.raises(ValueError, match="low_shot: every image of the data needs one label"):
        LowShot(replace(FACTS, multi_label=True))
    with pytest.raises(ValueError, match="low_shot: every image of the data needs one label"):
        LowShot(DatasetInfo(samples=1))
    with pytest.raises(ValueError, match="shots is empty"):
        LowShot(FACTS, shots=[])
