"""Low-shot classification: classifiers trained on a few images of each class."""

import numpy as np
import pytest
import torch

from opabinia.contracts import DataMismatch
from opabinia.evaluation.representation.low_shot import LowShot
from tests.evaluation.features import DATASET_INFO, batches, class_clusters, evaluate_batches

TRAIN, QUERIES = (batches(*class_clusters(torch.eye(3, 8), each, 0.5, seed=each)) for each in (16, 30))


def test_more_shots_give_higher_scores() -> None:
    scores, details = evaluate_batches(lambda: LowShot(DATASET_INFO), TRAIN, QUERIES)
    assert list(scores) == ["low_shot_1", "low_shot_2", "low_shot_4", "low_shot_8", "low_shot_16"]
    assert 0.4 < scores["low_shot_1"] < scores["low_shot_4"] < scores["low_shot_16"]
    for row in details["low_shot"]:
        assert row["mean"] == scores[f"low_shot_{row['shots']}"] == pytest.approx(np.mean(row["draws"]))
        assert len(row["draws"]) == 5
    first, *_, last = details["low_shot"]
    assert first["deviation"] > 0
    assert last["deviation"] == 0  # 16 images allow only one draw


def test_draws_depend_on_the_seed_and_are_nested() -> None:
    labels = torch.arange(30).remainder(3).numpy()
    orders = [
        LowShot(DATASET_INFO, shots=[2, 4], seed=seed)._sampling_order(labels, draw)
        for seed in (0, 1)
        for draw in (0, 1)
    ]
    assert len({order.tobytes() for order in orders}) == 4
    for order in orders:
        assert order.shape == (3, 4)
        assert (labels[order] == np.arange(3)[:, None]).all()
        assert len(set(order.ravel().tolist())) == 12
    fewer = LowShot(DATASET_INFO, shots=[2], seed=1)._sampling_order(labels, 1)
    assert (fewer == orders[3][:, :2]).all()


def test_offset_and_length_of_features_do_not_change_the_score() -> None:
    shifted = [
        ({"embedding": 7 * predictions["embedding"] + torch.arange(len(batch["id"]))[:, None]}, batch)
        for predictions, batch in TRAIN
    ]
    assert (
        evaluate_batches(lambda: LowShot(DATASET_INFO), shifted, QUERIES)[0]
        == evaluate_batches(lambda: LowShot(DATASET_INFO), TRAIN, QUERIES)[0]
    )


def test_a_class_with_too_few_images_is_reported() -> None:
    with pytest.raises(DataMismatch, match="the class a has 16 training images, fewer than 17; lower shots"):
        evaluate_batches(lambda: LowShot(DATASET_INFO, shots=[1, 17]), TRAIN, QUERIES)
